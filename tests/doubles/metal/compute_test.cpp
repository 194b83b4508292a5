// Libraries, pipelines and dispatches to host functions.
#include <dispatch/dispatch.h>

#include <cstdio>
#include <fstream>

#include "double_fixture.h"

namespace berth::metal_test {
namespace {

constexpr const char* kSource = R"(
  #include <metal_stdlib>
  // kernel void commented(
  kernel void scale(device float* data [[buffer(0)]], constant float& by [[buffer(1)]]) { data[0] *= by; }
  [[kernel]] void other(device float* data) {}
  void helper(int x) {}
)";

void scale(const MetalDoubleLaunch* launch) {
  auto* data = static_cast<float*>(launch->arguments[0].data);
  const float by = *static_cast<const float*>(launch->arguments[1].data);
  ASSERT_EQ(launch->arguments[2].data, nullptr);
  for (std::size_t i = 0; i < launch->threads[0]; ++i) data[i] *= by;
}

class MetalCompute : public MetalDouble {
 protected:
  MetalCompute() {
    const MetalDoubleKernel kernel{"scale", &scale};
    metal_double().register_kernel(&kernel);
  }

  MTL::Library* library(const char* source, std::string* complaint = nullptr) {
    const Pool pool;
    NS::Error* error = nullptr;
    MTL::Library* made = device_->newLibrary(NS::String::string(source, NS::UTF8StringEncoding), nullptr, &error);
    if (complaint != nullptr) *complaint = error == nullptr ? "" : error->localizedDescription()->utf8String();
    return made;
  }

  MTL::Function* function(MTL::Library* of, const char* name) {
    const Pool pool;
    return of->newFunction(NS::String::string(name, NS::UTF8StringEncoding));
  }

  MTL::ComputePipelineState* pipeline() {
    const Pool pool;
    MTL::Library* from = library(kSource);
    MTL::Function* kernel = function(from, "scale");
    NS::Error* error = nullptr;
    MTL::ComputePipelineState* made = device_->newComputePipelineState(kernel, &error);
    EXPECT_EQ(error, nullptr);
    kernel->release();
    from->release();
    return made;
  }

  void compute(const std::function<void(MTL::ComputeCommandEncoder*)>& encode) {
    const Pool pool;
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    MTL::ComputeCommandEncoder* encoder = commands->computeCommandEncoder();
    encode(encoder);
    encoder->endEncoding();
    commands->commit();
    commands->waitUntilCompleted();
    status_ = commands->status();
  }

  MTL::CommandBufferStatus status_ = MTL::CommandBufferStatusNotEnqueued;
};

TEST_F(MetalCompute, FindsTheKernelsOfASource) {
  MTL::Library* made = library(kSource);
  ASSERT_NE(made, nullptr);
  for (const char* name : {"scale", "other"}) {
    MTL::Function* found = function(made, name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_STREQ(found->name()->utf8String(), name);
    found->release();
  }
  for (const char* name : {"commented", "helper", "absent"}) EXPECT_EQ(function(made, name), nullptr) << name;
  made->release();
}

TEST_F(MetalCompute, ComplainsAboutASourceAsACompilerDoes) {
  std::string complaint;
  EXPECT_EQ(library("", &complaint), nullptr);
  EXPECT_THAT(complaint, HasSubstr("error: the source is empty"));
  EXPECT_EQ(library("// nothing\n", &complaint), nullptr);
  EXPECT_THAT(complaint, HasSubstr("error: the source is empty"));
  EXPECT_EQ(library("kernel void f() {\n", &complaint), nullptr);
  EXPECT_THAT(complaint, HasSubstr("program_source:2:1: error: expected"));
  EXPECT_EQ(library("kernel void f() {}\n }", &complaint), nullptr);
  EXPECT_THAT(complaint, HasSubstr("program_source:2:2: error: extraneous '}'"));
}

TEST_F(MetalCompute, GivesNoPipelineForAKernelWithoutAHostFunction) {
  const Pool pool;
  MTL::Library* made = library(kSource);
  MTL::Function* other = function(made, "other");
  NS::Error* error = nullptr;
  EXPECT_EQ(device_->newComputePipelineState(other, &error), nullptr);
  EXPECT_THAT(error->localizedDescription()->utf8String(), HasSubstr("no host function"));
  other->release();
  made->release();
}

TEST_F(MetalCompute, ReadsTheNamesOfACompiledLibrary) {
  const Pool pool;
  const std::string bytes = std::string("MTLB....") + "NAME" + std::string("\x06\x00scale\x00", 8) + "ENDT";
  NS::Error* error = nullptr;
  dispatch_data_t data = dispatch_data_create(bytes.data(), bytes.size(), nullptr, DISPATCH_DATA_DESTRUCTOR_DEFAULT);
  MTL::Library* made = device_->newLibrary(data, &error);
  dispatch_release(data);
  ASSERT_NE(made, nullptr);
  MTL::Function* found = function(made, "scale");
  ASSERT_NE(found, nullptr);
  found->release();
  made->release();

  const std::string path = ::testing::TempDir() + "metal_double.metallib";
  std::ofstream(path, std::ios::binary) << bytes;
  made =
      device_->newLibrary(NS::URL::fileURLWithPath(NS::String::string(path.c_str(), NS::UTF8StringEncoding)), &error);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->functionNames()->count(), 1u);
  made->release();
  std::remove(path.c_str());
  EXPECT_EQ(
      device_->newLibrary(NS::URL::fileURLWithPath(NS::String::string(path.c_str(), NS::UTF8StringEncoding)), &error),
      nullptr);
  EXPECT_THAT(error->localizedDescription()->utf8String(), StartsWith("library not found"));

  data = dispatch_data_create("text", 4, nullptr, DISPATCH_DATA_DESTRUCTOR_DEFAULT);
  EXPECT_EQ(device_->newLibrary(data, &error), nullptr);
  EXPECT_STREQ(error->localizedDescription()->utf8String(), "Invalid library file");
  dispatch_release(data);
}

TEST_F(MetalCompute, RunsTheHostFunctionWithTheArgumentsOfTheDispatch) {
  MTL::ComputePipelineState* state = pipeline();
  MTL::Buffer* data = buffer(64);
  auto* values = static_cast<float*>(data->contents());
  for (int i = 0; i < 16; ++i) values[i] = 1;
  float by = 3;
  compute([&](MTL::ComputeCommandEncoder* encoder) {
    encoder->setComputePipelineState(state);
    encoder->setBuffer(data, 16, 0);
    encoder->setBytes(&by, sizeof by, 1);
    by = 100;  // the bytes were copied
    encoder->dispatchThreadgroups(MTL::Size(2, 1, 1), MTL::Size(2, 1, 1));
    encoder->setBufferOffset(32, 0);
    encoder->memoryBarrier(MTL::BarrierScopeBuffers);
    encoder->dispatchThreads(MTL::Size(1, 1, 1), MTL::Size(1, 1, 1));
  });
  EXPECT_EQ(status_, MTL::CommandBufferStatusCompleted);
  EXPECT_EQ(values[3], 1);
  EXPECT_EQ(values[4], 3);
  EXPECT_EQ(values[7], 3);
  EXPECT_EQ(values[8], 3);
  EXPECT_EQ(values[9], 1);
  data->release();
  state->release();
}

TEST_F(MetalCompute, FaultsOnAnArgumentThatIsNotResident) {
  MTL::ComputePipelineState* state = pipeline();
  MTL::Buffer* data = buffer(64);
  const float by = 2;
  metal_double().set_residency(kMetalResidencyStrict);
  const auto encode = [&](MTL::ComputeCommandEncoder* encoder) {
    encoder->setComputePipelineState(state);
    encoder->setBuffer(data, 0, 0);
    encoder->setBytes(&by, sizeof by, 1);
    encoder->dispatchThreads(MTL::Size(1, 1, 1), MTL::Size(1, 1, 1));
  };
  compute(encode);
  EXPECT_EQ(status_, MTL::CommandBufferStatusError);
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("not resident: MTLCommandBuffer")));
  compute([&](MTL::ComputeCommandEncoder* encoder) {
    encoder->useResource(data, MTL::ResourceUsageRead | MTL::ResourceUsageWrite);
    encode(encoder);
  });
  EXPECT_EQ(status_, MTL::CommandBufferStatusCompleted);
  data->release();
  state->release();
}

TEST_F(MetalCompute, RefusesWhatADispatchCannotMean) {
  MTL::ComputePipelineState* state = pipeline();
  MTL::Buffer* data = buffer(64);
  const std::vector<char> many(4097);
  compute([&](MTL::ComputeCommandEncoder* encoder) {
    const MTL::Size one(1, 1, 1);
    encoder->dispatchThreads(one, one);
    encoder->setComputePipelineState(state);
    encoder->setBuffer(data, 64, 0);
    encoder->setBuffer(data, 0, 31);
    encoder->setBufferOffset(0, 3);
    encoder->setBytes(many.data(), many.size(), 1);
    encoder->dispatchThreads(MTL::Size(0, 1, 1), one);
    encoder->dispatchThreads(one, MTL::Size(1025, 1, 1));
  });
  EXPECT_THAT(take_metal_violations(),
              ElementsAre(HasSubstr("before a pipeline was set"), HasSubstr("is outside the 64 bytes"),
                          HasSubstr("index 31; there are 31"), HasSubstr("which has no buffer"),
                          HasSubstr("4097 bytes"), HasSubstr("with a side of 0"), HasSubstr("more than 1024 threads")));
  data->release();
  state->release();
}

}  // namespace
}  // namespace berth::metal_test
