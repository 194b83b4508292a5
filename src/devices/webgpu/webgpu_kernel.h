// A WGSL compute pipeline with its layout. A kernel keeps the context it was compiled in alive; any thread may launch
// it. A kernel with some read-only storage buffers is compiled a second time, with all of them writable, when it is
// first launched on windows of one buffer of which some are read and some written.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/kernel.h"
#include "devices/webgpu/webgpu_context.h"
#include "devices/webgpu/webgpu_wgsl.h"

namespace berth::internal::webgpu {

class WgslKernel final : public KernelBody {
 public:
  struct Variant {
    wgpu::BindGroupLayout layout = nullptr;
    wgpu::ComputePipeline pipeline = nullptr;
    std::uint64_t id = 0;
  };

  // kInvalidArgument for bindings that Berth cannot create; kDriver, with the compiler's message, for code that does
  // not compile.
  static Result<std::shared_ptr<const WgslKernel>> compile(std::shared_ptr<Context> context, std::string_view code,
                                                           std::string_view entry);
  ~WgslKernel() override;
  WgslKernel(std::shared_ptr<Context> context, std::string_view code, std::string_view entry)
      : context_(std::move(context)), code_(code), entry_(entry) {}

  const Context* context() const noexcept { return context_.get(); }
  std::size_t windows() const noexcept { return windows_; }
  bool takes_constants() const noexcept { return takes_constants_; }
  bool reads_only(std::size_t window) const noexcept { return bindings_[window].kind == WgslBinding::Kind::kRead; }

  const Variant& as_written() const noexcept { return as_written_; }
  Result<const Variant*> all_writable() const;

 private:
  Result<Variant> build(const std::string& code, bool writable) const;
  void release(const Variant& variant) const noexcept;

  std::shared_ptr<Context> context_;
  std::string code_;
  std::string entry_;
  std::vector<WgslBinding> bindings_;
  std::size_t windows_ = 0;
  bool takes_constants_ = false;
  Variant as_written_;
  mutable Mutex mutex_;
  mutable Variant all_writable_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::internal::webgpu
