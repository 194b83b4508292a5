// What the double's own tests stand on: a device, a queue and short ways to say the usual things.
#pragma once

#include <gmock/gmock.h>

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>
#include <cstring>
#include <functional>
#include <thread>

#include "doubles/metal/metal_testing.h"

namespace berth::metal_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// An autorelease pool for a scope.
class Pool {
 public:
  Pool() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~Pool() { pool_->release(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  NS::AutoreleasePool* pool_;
};

class MetalDouble : public MetalDoubleTest {
 protected:
  explicit MetalDouble(const MetalDoubleOptions& options = {}) : MetalDoubleTest(options) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // queues have threads
    device_ = MTL::CreateSystemDefaultDevice();
    queue_ = device_->newCommandQueue();
  }

  void TearDown() override {
    metal_double().set_pace(kMetalEager);
    metal_double().drain();
    if (queue_ != nullptr) queue_->release();
    if (device_ != nullptr) device_->release();
    MetalDoubleTest::TearDown();
  }

  // Work is run when somebody asks for it, and never by itself.
  void run_only_when_asked() {
    drop_device();
    restart({.pause_milliseconds = 0});
    device_ = MTL::CreateSystemDefaultDevice();
    queue_ = device_->newCommandQueue();
  }

  // For a test that makes its own.
  void drop_device() {
    queue_->release();
    device_->release();
    queue_ = nullptr;
    device_ = nullptr;
  }

  MTL::Buffer* buffer(std::size_t bytes, MTL::ResourceOptions options = MTL::ResourceStorageModeShared) {
    return device_->newBuffer(bytes, options);
  }

  // A command buffer with these blits, committed; its reference is the caller's.
  MTL::CommandBuffer* blit(const std::function<void(MTL::BlitCommandEncoder*)>& encode) {
    const Pool pool;
    MTL::CommandBuffer* commands = queue_->commandBuffer()->retain();
    MTL::BlitCommandEncoder* encoder = commands->blitCommandEncoder();
    encode(encoder);
    encoder->endEncoding();
    commands->commit();
    return commands;
  }

  void blit_and_wait(const std::function<void(MTL::BlitCommandEncoder*)>& encode) {
    MTL::CommandBuffer* commands = blit(encode);
    commands->waitUntilCompleted();
    commands->release();
  }

  MTL::ResidencySet* residency_set() {
    const Pool pool;
    MTL::ResidencySetDescriptor* descriptor = MTL::ResidencySetDescriptor::alloc();
    if (descriptor != nullptr) descriptor = descriptor->init();
    if (descriptor == nullptr) return nullptr;
    NS::Error* error = nullptr;
    MTL::ResidencySet* set = device_->newResidencySet(descriptor, &error);
    descriptor->release();
    return set;
  }

  static unsigned char* bytes(MTL::Buffer* of) { return static_cast<unsigned char*>(of->contents()); }

  MTL::Device* device_ = nullptr;
  MTL::CommandQueue* queue_ = nullptr;
};

}  // namespace berth::metal_test
