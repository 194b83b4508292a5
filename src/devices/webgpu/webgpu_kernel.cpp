#include "devices/webgpu/webgpu_kernel.h"

#include <atomic>

#include "base/try.h"
#include "berth/base/mutex.h"

namespace berth::internal::webgpu {
namespace {

std::uint64_t next_variant() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Result<std::shared_ptr<const WgslKernel>> WgslKernel::compile(std::shared_ptr<Context> context, std::string_view code,
                                                              std::string_view entry) {
  auto kernel = std::make_shared<WgslKernel>(std::move(context), code, entry);
  BERTH_TRY_ASSIGN(kernel->bindings_, wgsl_bindings(code));
  kernel->takes_constants_ = !kernel->bindings_.empty() && kernel->bindings_.back().kind == WgslBinding::Kind::kUniform;
  kernel->windows_ = kernel->bindings_.size() - (kernel->takes_constants_ ? 1 : 0);
  if (const std::uint32_t most = kernel->context_->limits().max_storage_buffers_per_shader_stage;
      kernel->windows_ > most)
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "the kernel has {} storage buffers and the adapter binds at most {}", kernel->windows_, most);
  BERTH_TRY_ASSIGN(kernel->as_written_, kernel->build(kernel->code_, false));
  return std::shared_ptr<const WgslKernel>(std::move(kernel));
}

WgslKernel::~WgslKernel() {
  release(as_written_);
  release(all_writable_);
}

void WgslKernel::release(const Variant& variant) const noexcept {
  if (variant.pipeline != nullptr) context_->calls().ComputePipelineRelease(variant.pipeline);
  if (variant.layout != nullptr) context_->calls().BindGroupLayoutRelease(variant.layout);
}

Result<const WgslKernel::Variant*> WgslKernel::all_writable() const {
  const MutexLock lock(mutex_);
  if (all_writable_.pipeline == nullptr) {
    BERTH_TRY_ASSIGN(all_writable_, build(wgsl_all_writable(code_, bindings_), true));
  }
  return &all_writable_;
}

Result<WgslKernel::Variant> WgslKernel::build(const std::string& code, bool writable) const {
  const wgpu::Calls& calls = context_->calls();
  BERTH_TRY_ASSIGN(const wgpu::ShaderModule module, context_->create_shader(code));

  std::vector<wgpu::BindGroupLayoutEntry> entries;
  for (const WgslBinding& binding : bindings_) {
    wgpu::BindGroupLayoutEntry entry{};
    entry.binding = binding.binding;
    entry.visibility = wgpu::kStageCompute;
    switch (binding.kind) {
      case WgslBinding::Kind::kRead:
        entry.buffer.type = writable ? wgpu::kBindingStorage : wgpu::kBindingReadOnlyStorage;
        break;
      case WgslBinding::Kind::kReadWrite: entry.buffer.type = wgpu::kBindingStorage; break;
      case WgslBinding::Kind::kUniform:
        entry.buffer.type = wgpu::kBindingUniform;
        entry.buffer.has_dynamic_offset = 1;  // so that launches with other constants share a bind group
        break;
    }
    entries.push_back(entry);
  }
  Variant variant{.id = next_variant()};
  wgpu::PipelineLayout layout = nullptr;
  const auto make = [&]() -> Result<void> {
    wgpu::BindGroupLayoutDescriptor group{};
    group.entry_count = entries.size();
    group.entries = entries.data();
    BERTH_TRY_ASSIGN(variant.layout, context_->create_bind_group_layout(group));
    wgpu::PipelineLayoutDescriptor groups{};
    groups.bind_group_layout_count = 1;
    groups.bind_group_layouts = &variant.layout;
    BERTH_TRY_ASSIGN(layout, context_->create_pipeline_layout(groups));
    wgpu::ComputePipelineDescriptor pipeline{};
    pipeline.layout = layout;
    pipeline.compute.module = module;
    pipeline.compute.entry_point = {entry_.data(), entry_.size()};
    BERTH_TRY_ASSIGN(variant.pipeline, context_->create_pipeline(pipeline));
    return {};
  };
  const Result<void> made = make();
  calls.ShaderModuleRelease(module);
  if (layout != nullptr) calls.PipelineLayoutRelease(layout);
  if (made) return variant;
  release(variant);
  return made.error();
}

}  // namespace berth::internal::webgpu
