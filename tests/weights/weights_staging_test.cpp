// Loading to a device whose memory the host cannot reach, through staging buffers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/crc32.h"
#include "berth/memory/registry.h"
#include "berth/weights/save.h"
#include "berth/weights/weights.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/support.h"
#include "support/weight_loads.h"

namespace berth {

using namespace internal;

namespace {

// Plain memory behind a handle: no host pointer, all transfers through the queue. Counts and can fail writes.
class FarDevice final : public Device {
 public:
  FarDevice() : Device("CUDA:9", {}) {}
  std::size_t writes = 0;
  std::size_t fail_at = ~std::size_t{0};
  std::function<void()> on_write{};

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    return Block{.handle = reinterpret_cast<std::uint64_t>(new std::byte[spec.bytes]), .bytes = spec.bytes};
  }
  void free_block(const Block& block, Timepoint) noexcept override {
    delete[] reinterpret_cast<std::byte*>(block.handle);
  }
  Result<std::unique_ptr<Queue>> create_queue() override;
};

class FarQueue final : public Queue {
 public:
  explicit FarQueue(FarDevice& device) : Queue(device), far_(device) {}
  ~FarQueue() override { close(); }

 protected:
  static std::byte* at(const Window& window) {
    return reinterpret_cast<std::byte*>(window.block.handle) + window.offset;
  }
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override {
    if (far_.on_write) far_.on_write();
    if (far_.writes++ == far_.fail_at) return Error(Code::kDriver, Layer::kQueue, "the far side hung up");
    std::memcpy(at(target), source.data(), source.size());
    return {};
  }
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    std::memcpy(target.data(), at(source), target.size());
    return {};
  }
  Result<void> do_copy(const Window&, const Window&) override { return {}; }
  Result<void> do_fill(const Window&, std::uint8_t) override { return {}; }
  Result<void> do_submit(std::uint64_t value) override {
    reached_ = value;
    return {};
  }
  Result<void> do_wait(std::uint64_t) override { return {}; }
  std::uint64_t poll() noexcept override { return reached_; }

 private:
  FarDevice& far_;
  std::uint64_t reached_ = 0;
};

Result<std::unique_ptr<Queue>> FarDevice::create_queue() {
  return std::unique_ptr<Queue>(new FarQueue(*this));
}

class StagedWeights : public ::testing::Test {
 protected:
  StagedWeights() {
    const DevicePtr cpu = device("CPU").value();
    for (const std::size_t count : {std::size_t{3}, std::size_t{6'000'000}, std::size_t{100}, std::size_t{9'000'001}}) {
      Buffer buffer = Buffer::allocate(cpu, u32, {count}).value();
      auto values = buffer.as_slice_mut<std::uint32_t>().value();
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u + count);
      names_.push_back("t" + std::to_string(count));
      buffers_.push_back(std::move(buffer));
    }
    std::vector<NamedBuffer> tensors;
    for (std::size_t i = 0; i < names_.size(); ++i) tensors.push_back({names_[i], buffers_[i]});
    save_safetensors((folder_ / "a.safetensors").string(), tensors).value();
    file_ = open_weights((folder_ / "a.safetensors").string()).value();
    auto far = std::make_unique<FarDevice>();
    far_ = far.get();
    device_ = share_device(std::move(far));
  }

  const test::TemporaryFolder own_;
  const std::filesystem::path folder_ = own_.path();
  std::vector<std::string> names_;
  std::vector<Buffer> buffers_;
  WeightFile file_;
  FarDevice* far_ = nullptr;
  DevicePtr device_;
};

TEST_F(StagedWeights, ArriveByteForByteWithChecksumsAndProgress) {
  std::uint64_t done = 0;
  LoadOptions options{.threads = 3, .checksums = true};
  options.progress = [&](const LoadProgress& progress) {
    done = progress.bytes_done;
    return true;
  };
  const std::vector<std::string_view> names(names_.begin(), names_.end());
  const LoadedTensors loaded = file_.load(names, device_, options).value();
  EXPECT_EQ(done, file_.total_bytes());
  EXPECT_GT(far_->writes, 6u) << "large tensors go in pieces";
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(loaded.buffers[i].as_host_bytes().error().code(), Code::kNotCpuAccessible);
    std::vector<std::byte> back(loaded.buffers[i].size());
    ASSERT_TRUE(loaded.buffers[i].copyout(back));
    const auto original = buffers_[i].as_host_bytes().value();
    EXPECT_TRUE(std::equal(back.begin(), back.end(), original.begin(), original.end())) << names[i];
    EXPECT_EQ(loaded.checksums[i], crc32(original));
  }
}

// Bytes that all threads of this process have read from files so far; none where the system does not count them.
std::optional<std::uint64_t> bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string word;
  std::uint64_t bytes = 0;
  if (counters >> word >> bytes && word == "rchar:") return bytes;
  return std::nullopt;
}

TEST_F(StagedWeights, AreReadWhileEarlierOnesAreUploaded) {
  if (!bytes_read()) GTEST_SKIP() << "this system does not count the bytes read";
  const std::uint64_t before = *bytes_read();
  bool read_on = false;
  // The first upload takes until two more pieces of 8 MiB are read, which only other threads can do meanwhile.
  far_->on_write = [&] {
    if (far_->writes > 0) return;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
         !read_on && std::chrono::steady_clock::now() < end; std::this_thread::yield())
      read_on = *bytes_read() - before > 2 * (std::uint64_t{8} << 20);
  };
  ASSERT_TRUE(file_.load_all(device_, {.threads = 2}));
  EXPECT_TRUE(read_on);
}

TEST_F(StagedWeights, LeaveNothingBehindWhenAWriteFailsOrTheCallerCancels) {
  for (const std::size_t fail_at : {0, 2, 5}) {
    far_->writes = 0;
    far_->fail_at = fail_at;
    EXPECT_EQ(file_.load_all(device_, {.threads = 2}).error().code(), Code::kDriver);
    EXPECT_EQ(far_->counters().live_count, 0u);
  }
  far_->fail_at = ~std::size_t{0};
  LoadOptions options;
  options.progress = [](const LoadProgress& progress) { return progress.bytes_done < 20'000'000; };
  EXPECT_EQ(file_.load_all(device_, options).error().code(), Code::kCancelled);
  EXPECT_EQ(far_->counters().live_count, 0u);
  std::filesystem::resize_file(folder_ / "a.safetensors", 1000);
  EXPECT_EQ(file_.load_all(device_).error().code(), Code::kIo);
  EXPECT_EQ(far_->counters().live_count, 0u);
}

// The same on the devices themselves: the real WEBGPU, and CUDA through the double of its driver where there is no GPU.
using WeightsOnDevices = cuda_test::CudaTest;

TEST_F(WeightsOnDevices, ArriveOnCuda) {
  test::expect_weights_to_arrive(device("CUDA").value());
}

TEST_F(WeightsOnDevices, ArriveOnWebGpu) {
  const auto gpu = device("WEBGPU");
  if (!gpu) GTEST_SKIP() << gpu.error().message();
  test::expect_weights_to_arrive(*gpu);
}

}  // namespace
}  // namespace berth
