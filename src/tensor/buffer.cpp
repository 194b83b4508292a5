#include "berth/tensor/buffer.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/try.h"
#include "berth/memory/address_space.h"
#include "berth/memory/registry.h"
#include "memory/check_alignment.h"
#include "memory/host_copy.h"
#include "memory/uses.h"
#include "tensor/import.h"
#include "tensor/storage.h"

namespace berth {

using namespace internal;

namespace {

Result<std::size_t> bytes_of(DType dtype, const Shape& shape) {
  BERTH_TRY_ASSIGN(const std::size_t elements, shape.element_count());
  return byte_size(dtype, elements);
}

// Copies between devices that cannot reach each other go through the host in pieces of this size: large enough for full
// bandwidth, small enough to stay in the cache.
constexpr std::size_t kBounceBytes = std::size_t{4} << 20;

// The device of empty handles.
class NoDevice final : public Device {
 public:
  NoDevice() : Device("NONE", {}) {}
  BlockFlags expected_flags(const BlockSpec&) noexcept override { return BlockFlags::kNone; }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    return Error(Code::kNotAllocated, Layer::kDevice, "{} bytes were requested from the device of an empty handle",
                 spec.bytes);
  }
  void free_block(const Block&, Timepoint) noexcept override {}
  Result<std::unique_ptr<Queue>> create_queue() override {
    return Error(Code::kNotAllocated, Layer::kDevice, "the device of an empty handle has no queues");
  }
};

// Never destroyed: a handle with static lifetime may ask at exit.
Device& no_device() noexcept {
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): once, of a few bytes
  static const DevicePtr* const none = new DevicePtr(share_device(std::make_unique<NoDevice>()));
  return **none;
}

}  // namespace

Buffer::Buffer(Storage* storage, std::size_t offset, std::size_t bytes, DType dtype, const Shape& shape) noexcept
    : storage_(storage), offset_(offset), bytes_(bytes), id_(next_id()), shape_(shape), dtype_(dtype) {}

Buffer::Buffer(const Buffer& other) noexcept
    : storage_(other.storage_),
      offset_(other.offset_),
      bytes_(other.bytes_),
      id_(other.id_),
      shape_(other.shape_),
      dtype_(other.dtype_) {
  if (storage_ != nullptr) storage_->retain();
}

Buffer::Buffer(Buffer&& other) noexcept
    : storage_(std::exchange(other.storage_, nullptr)),
      offset_(std::exchange(other.offset_, 0)),
      bytes_(std::exchange(other.bytes_, 0)),
      id_(std::exchange(other.id_, 0)),
      shape_(std::exchange(other.shape_, Shape())),
      dtype_(std::exchange(other.dtype_, DType::kU8)) {}

Buffer& Buffer::operator=(const Buffer& other) noexcept {
  if (this != &other) *this = Buffer(other);
  return *this;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  // `taken` ends up with the old storage and drops it here; swapping with `other` would keep it alive there.
  Buffer taken(std::move(other));
  std::swap(storage_, taken.storage_);
  std::swap(offset_, taken.offset_);
  std::swap(bytes_, taken.bytes_);
  std::swap(id_, taken.id_);
  std::swap(shape_, taken.shape_);
  std::swap(dtype_, taken.dtype_);
  return *this;
}

Buffer::~Buffer() {
  if (storage_ != nullptr) storage_->drop();
}

Result<Buffer> Buffer::make(AllocatorPtr allocator, DType dtype, const Shape& shape, const BufferOptions& options,
                            std::source_location site) {
  BERTH_TRY_ASSIGN(const std::size_t bytes, bytes_of(dtype, shape));
  BERTH_TRY(check_alignment(options.alignment, Layer::kBuffer));
  if (allocator == nullptr) return Error(Code::kInvalidArgument, Layer::kBuffer, "a buffer needs an allocator");
  const BlockSpec spec{.bytes = bytes,
                       .alignment = options.alignment,
                       .usage = options.usage,
                       .host = options.host,
                       .tag = options.tag,
                       .zero = options.zero,
                       .on = options.on,
                       .label = options.label};
  return Buffer(Storage::make_lazy(std::move(allocator), spec, site), 0, bytes, dtype, shape);
}

Result<Buffer> Buffer::lazy(AllocatorPtr allocator, DType dtype, const Shape& shape, const BufferOptions& options,
                            std::source_location site) {
  return make(std::move(allocator), dtype, shape, options, site);
}

Result<Buffer> Buffer::allocate(AllocatorPtr allocator, DType dtype, const Shape& shape, const BufferOptions& options,
                                std::source_location site) {
  auto buffer = make(std::move(allocator), dtype, shape, options, site);
  if (buffer) BERTH_TRY(buffer->ensure_allocated());
  return buffer;
}

Result<Buffer> Buffer::import(DevicePtr device, ForeignMemory memory, DType dtype, const Shape& shape,
                              const BufferOptions& options) {
  // The import owns the memory from the start: every failure releases it too, and so does an exception.
  struct ReleaseOnFailure {
    std::function<void()>& release;
    ~ReleaseOnFailure() {
      if (release) release();
    }
  } const release_on_failure{memory.release};
  if (device == nullptr) return Error(Code::kInvalidArgument, Layer::kBuffer, "an import needs a device");
  BERTH_TRY_ASSIGN(const std::size_t bytes, bytes_of(dtype, shape));
  if (bytes > memory.bytes)
    return Error(Code::kSizeMismatch, Layer::kBuffer, "the shape needs {} bytes and the foreign memory has {}", bytes,
                 memory.bytes);
  const auto owner = std::make_shared<ImportAllocator>(device);
  BERTH_TRY_ASSIGN(Block block, device->import_block(memory));
  block.label = options.label;
  device->count_foreign(block.bytes, 1);
  owner->take_over(memory.release);
  Storage* storage = nullptr;
  try {
    storage = Storage::make_ready(owner, block, std::source_location::current());
  } catch (...) {  // no memory for the storage
    owner->release(block, {});
    throw;
  }
  return Buffer(storage, 0, bytes, dtype, shape);
}

Result<Buffer> Buffer::import_shared(const DevicePtr& device, const SharedMemory& memory, DType dtype,
                                     const Shape& shape, SharedAccess access, const BufferOptions& options) {
  if (device == nullptr) return Error(Code::kInvalidArgument, Layer::kBuffer, "an import needs a device");
  BERTH_TRY_ASSIGN(const std::size_t bytes, bytes_of(dtype, shape));
  // Unmaps the memory when the last handle, or a failure here, lets go of it.
  struct Mapped {
    DevicePtr device;
    std::unique_ptr<AddressSpace> space;  // does not outlive the device
    SharedMapping mapping{};
    ~Mapped() {
      if (mapping.bytes > 0) space->unmap_shared(mapping.address, mapping.bytes);
    }
  };
  auto mapped = std::make_shared<Mapped>(device);
  BERTH_TRY_ASSIGN(mapped->space, device->make_address_space());
  BERTH_TRY_ASSIGN(mapped->mapping, mapped->space->map_shared(memory.descriptor.get(), memory.memory_bytes, access));
  const std::size_t after = mapped->mapping.bytes - std::min(mapped->mapping.bytes, memory.offset);
  if (bytes > after)
    return Error(Code::kSizeMismatch, Layer::kBuffer,
                 "the shape needs {} bytes and the shared memory has {} after its first {}", bytes, after,
                 memory.offset);
  const std::uint64_t address = mapped->mapping.address + memory.offset;
  return import(device,
                {.address = address,
                 .bytes = bytes,
                 .read_only = access == SharedAccess::kRead,
                 .release = [mapped = std::move(mapped)]() mutable { mapped.reset(); }},
                dtype, shape, options);
}

Result<SharedMemory> Buffer::share(SharedAccess access) const {
  BERTH_TRY(ensure_allocated());
  if (storage_->bytes() == 0)
    return Error(Code::kNotAllocated, Layer::kBuffer, "a buffer of zero bytes has no memory to share");
  if (access == SharedAccess::kReadWrite && is_read_only())
    return Error(Code::kReadOnly, Layer::kBuffer, "{} bytes of read-only memory cannot be shared for writing", bytes_);
  BERTH_TRY_ASSIGN(const Window held, window());
  BERTH_TRY_ASSIGN(SharedMemory shared, storage_->allocator()->share(held.block, access));
  shared.offset += offset_;
  return shared;
}

Result<void> Buffer::ensure_allocated() const {
  if (storage_ == nullptr)
    return Error(Code::kNotAllocated, Layer::kBuffer, "an empty handle has no storage to allocate");
  return storage_->ensure_allocated();
}

bool Buffer::is_allocated() const noexcept {
  return storage_ != nullptr && storage_->is_ready();
}

std::uint64_t Buffer::storage_id() const noexcept {
  return storage_ == nullptr ? 0 : storage_->id();
}
bool Buffer::is_unique() const noexcept {
  return storage_ != nullptr && storage_->is_unique();
}
std::size_t Buffer::total_size() const noexcept {
  return storage_ == nullptr ? 0 : storage_->bytes();
}
Name Buffer::label() const noexcept {
  return storage_ == nullptr ? Name() : storage_->label();
}

std::size_t Buffer::element_count() const noexcept {
  const DTypeInfo& type = info(dtype_);
  return bytes_ / type.block_bytes * type.block_elements;
}

const AllocatorPtr& Buffer::allocator() const noexcept {
  static const AllocatorPtr none;
  return storage_ == nullptr ? none : storage_->allocator();
}

Device& Buffer::device() const noexcept {
  return storage_ == nullptr ? no_device() : storage_->allocator()->device();
}

bool Buffer::is_read_only() const noexcept {
  return storage_ != nullptr && has(storage_->flags(), BlockFlags::kReadOnly);
}
bool Buffer::cpu_accessible() const noexcept {
  return storage_ != nullptr && (bytes_ == 0 || has(storage_->flags(), BlockFlags::kHostPointer));
}
bool Buffer::is_foreign() const noexcept {
  return is_allocated() && storage_->block().has(BlockFlags::kForeign);
}

Result<Buffer> Buffer::view(std::size_t offset, std::size_t bytes) const {
  // Written such that no sum can overflow.
  if (storage_ == nullptr || bytes > bytes_ || offset > bytes_ - bytes)
    return Error(Code::kInvalidView, Layer::kBuffer, "view at {} of {} bytes is outside the buffer's {} bytes", offset,
                 bytes, bytes_);
  const DTypeInfo& type = info(dtype_);
  const bool whole = bytes % type.block_bytes == 0;
  storage_->retain();
  return Buffer(storage_, offset_ + offset, bytes, whole ? dtype_ : DType::kU8,
                Shape{whole ? bytes / type.block_bytes * type.block_elements : bytes});
}

Result<Buffer> Buffer::view(std::size_t offset, DType dtype, const Shape& shape) const {
  BERTH_TRY_ASSIGN(const std::size_t bytes, bytes_of(dtype, shape));
  BERTH_TRY_ASSIGN(Buffer window, view(offset, bytes));
  window.dtype_ = dtype;
  window.shape_ = shape;
  return window;
}

Result<Buffer> Buffer::slice_view(std::size_t offset, std::size_t elements) const {
  if (elements > element_count())
    return Error(Code::kInvalidView, Layer::kBuffer, "a slice of {} elements is outside the buffer's {}", elements,
                 element_count());
  return view(offset, dtype_, Shape{elements});
}

Result<Buffer> Buffer::with_shape(const Shape& shape) const {
  BERTH_TRY_ASSIGN(const std::size_t elements, shape.element_count());
  if (elements != element_count())
    return Error(Code::kSizeMismatch, Layer::kBuffer, "a shape of {} elements for a buffer of {}", elements,
                 element_count());
  return view(0, dtype_, shape);
}

// Allocates a lazy buffer for host access, unless the access is bound to be refused: refusing must not cost memory.
Result<void> Buffer::allocate_to_write(DType wanted, std::size_t alignment) const {
  if (is_allocated()) return {};
  if (storage_ != nullptr) {
    BERTH_TRY(check_flags(storage_->flags(), true));
    // Memory starts at a multiple of the requested alignment, and of more only by chance.
    BERTH_TRY(check_type(wanted, offset_, std::min(alignment, storage_->spec().alignment)));
  }
  return ensure_allocated();
}

Result<void> Buffer::check_flags(BlockFlags flags, bool writes) const {
  if (writes && has(flags, BlockFlags::kReadOnly))
    return Error(Code::kReadOnly, Layer::kBuffer,
                 "{} bytes of read-only memory cannot be written: copy them into a buffer of their own", bytes_);
  if (bytes_ > 0 && !has(flags, BlockFlags::kHostPointer))
    return Error(Code::kNotCpuAccessible, Layer::kBuffer,
                 "the host cannot access these {} bytes of device memory: use copyout or copyin", bytes_);
  return {};
}

Result<void> Buffer::check_host(bool writes) const {
  if (!is_allocated())
    return Error(Code::kNotAllocated, Layer::kBuffer,
                 "a buffer of {} bytes has no memory yet: write to it or call ensure_allocated() first", bytes_);
  BERTH_TRY(check_flags(storage_->flags(), writes));
  if (bytes_ == 0) return {};
  if (!storage_->may_move()) return device().check_host_access(storage_->block(), offset_, bytes_);
  BERTH_TRY_ASSIGN(const Window held, window());
  return device().check_host_access(held.block, held.offset, bytes_);
}

Result<void> Buffer::check_type(DType wanted, std::size_t alignment) const {
  // A block that moves starts at a multiple of every element type's alignment wherever it goes.
  if (storage_->may_move()) return check_type(wanted, offset_, alignment);
  return check_type(wanted, reinterpret_cast<std::uintptr_t>(storage_->block().host) + offset_, alignment);
}

Result<void> Buffer::check_type(DType wanted, std::uintptr_t address, std::size_t alignment) const {
  if (wanted != dtype_)
    return Error::with_text(Code::kTypeMismatch, Layer::kBuffer,
                            "the buffer holds " + std::string(to_string(dtype_)) + " and " +
                                std::string(to_string(wanted)) +
                                " was requested: use view(0, dtype, shape) to reinterpret it");
  if (bytes_ > 0 && address % alignment != 0)
    return Error(Code::kMisaligned, Layer::kBuffer,
                 "the window starts {} bytes past a multiple of {}, which the element type needs: copy it out",
                 address % alignment, alignment);
  return {};
}

Result<std::span<const std::byte>> Buffer::as_host_bytes() const {
  BERTH_TRY(check_host(false));
  if (bytes_ == 0) return std::span<const std::byte>();
  BERTH_TRY_ASSIGN(const std::byte* const address, give_address());
  return std::span(address, bytes_);
}

Result<std::span<std::byte>> Buffer::as_host_bytes_mut() const {
  BERTH_TRY(allocate_to_write(dtype_, 1));
  BERTH_TRY(check_host(true));
  if (bytes_ == 0) return std::span<std::byte>();
  BERTH_TRY_ASSIGN(std::byte* const address, give_address());
  return std::span(address, bytes_);
}

Result<std::byte*> Buffer::give_address() const {
  if (storage_->may_move()) {
    if (!has(storage_->flags(), BlockFlags::kHostPointer)) return nullptr;
    BERTH_TRY(storage_->give_address());
  }
  std::byte* const host = storage_->block().host;
  return host == nullptr ? nullptr : host + storage_->start() + offset_;
}

Result<void> Buffer::read_item(DType wanted, std::size_t alignment, std::span<std::byte> target) const {
  BERTH_TRY(check_host(false));
  BERTH_TRY(check_type(wanted, alignment));
  if (bytes_ != target.size())
    return Error(Code::kSizeMismatch, Layer::kBuffer, "item() needs exactly one element and there are {}",
                 bytes_ / target.size());
  BERTH_TRY_ASSIGN(const Window held, window());
  std::memcpy(target.data(), held.host_bytes().data(), target.size());
  return {};
}

Result<Window> Buffer::window() const {
  BERTH_TRY(ensure_allocated());
  if (!storage_->may_move()) [[likely]]
    return Window{
        .block = storage_->block(), .offset = offset_, .bytes = bytes_, .owner = storage_, .device = &device()};
  BERTH_TRY(storage_->hold());
  Window held{.block = storage_->block(),
              .offset = storage_->start() + offset_,
              .bytes = bytes_,
              .owner = storage_,
              .device = &device(),
              .hold = AddressHold(*storage_)};
  held.block.bytes += storage_->start();  // other buffers may follow in the same object
  return held;
}

// The checks of a copy that can be made before a lazy target is allocated. The queue makes them again.
Result<void> Buffer::check_target() const {
  if (storage_ == nullptr || is_allocated()) return {};
  const BlockFlags flags = storage_->flags();
  if (has(flags, BlockFlags::kReadOnly))
    return Error(Code::kReadOnly, Layer::kBuffer, "{} bytes of read-only memory cannot be the target of a copy",
                 bytes_);
  if (bytes_ > 0 && !has(flags, BlockFlags::kHostTransfer) && !allows(storage_->spec().usage, Usage::kCopyTarget))
    return Error(Code::kInvalidUsage, Layer::kBuffer,
                 "{} bytes without Usage::kCopyTarget cannot be the target of a copy: ask for it in "
                 "BufferOptions::usage",
                 bytes_);
  return {};
}

Result<void> Buffer::check_source() const {
  BERTH_TRY_ASSIGN(const Window held, window());
  const Block& block = held.block;
  if (bytes_ == 0 || block.has(BlockFlags::kHostTransfer)) return {};
  if (!allows(block.usage, Usage::kCopySource))
    return Error(Code::kInvalidUsage, Layer::kBuffer,
                 "{} bytes without Usage::kCopySource cannot be the source of a copy: ask for it in "
                 "BufferOptions::usage",
                 bytes_);
  return block.has(BlockFlags::kHostPointer) ? device().check_host_access(block, held.offset, bytes_) : Result<void>();
}

Result<void> Buffer::copyin(std::span<const std::byte> source) const {
  if (source.size() != bytes_)
    return Error(Code::kSizeMismatch, Layer::kBuffer, "{} bytes to copy into a buffer of {}", source.size(), bytes_);
  BERTH_TRY(check_target());
  BERTH_TRY_ASSIGN(const Window target, window());
  if (target.block.has(BlockFlags::kHostTransfer) && !target.block.has(BlockFlags::kReadOnly)) {
    BERTH_TRY(internal::wait_for_uses(*storage_));
    copy_host(target.host_bytes().data(), source.data(), source.size());
    return {};
  }
  BERTH_TRY_ASSIGN(Queue* const queue, device().default_queue());
  BERTH_TRY(internal::wait_for_uses(*queue, *storage_));
  BERTH_TRY(queue->write(target, source));
  return queue->finish();
}

Result<void> Buffer::copyout(std::span<std::byte> target) const {
  if (target.size() != bytes_)
    return Error(Code::kSizeMismatch, Layer::kBuffer, "a buffer of {} bytes to copy out to {}", bytes_, target.size());
  if (!is_allocated())
    return Error(Code::kNotAllocated, Layer::kBuffer, "a buffer of {} bytes has no contents yet: write to it first",
                 bytes_);
  BERTH_TRY_ASSIGN(const Window source, window());
  if (source.block.has(BlockFlags::kHostTransfer)) {
    BERTH_TRY(internal::wait_for_uses(*storage_));
    copy_host(target.data(), source.host_bytes().data(), target.size());
    return {};
  }
  BERTH_TRY_ASSIGN(Queue* const queue, device().default_queue());
  BERTH_TRY(internal::wait_for_uses(*queue, *storage_));
  BERTH_TRY(queue->read(source, target));
  return queue->finish();
}

Result<void> Buffer::copy_from(const Buffer& source) const {
  if (source.bytes_ != bytes_)
    return Error(Code::kSizeMismatch, Layer::kBuffer, "a buffer of {} bytes to copy into one of {}", source.bytes_,
                 bytes_);
  if (!source.is_allocated())
    return Error(Code::kNotAllocated, Layer::kBuffer, "the source of {} bytes has no contents yet: write to it first",
                 source.bytes_);
  if (!is_allocated()) {
    BERTH_TRY(check_target());
    BERTH_TRY(source.check_source());
  }
  BERTH_TRY_ASSIGN(const Window to, window());
  if (to.block.has(BlockFlags::kReadOnly))
    return Error(Code::kReadOnly, Layer::kBuffer, "{} bytes of read-only memory cannot be the target of a copy",
                 bytes_);
  if (bytes_ == 0) return {};
  // If the host can memcpy one side, one transfer of the other side suffices, without staging.
  if (to.block.has(BlockFlags::kHostTransfer)) {
    BERTH_TRY(internal::wait_for_uses(*storage_));
    return source.copyout(to.host_bytes());
  }
  BERTH_TRY_ASSIGN(const Window from, source.window());
  if (from.block.has(BlockFlags::kHostTransfer)) {
    BERTH_TRY(internal::wait_for_uses(*source.storage_));
    return copyin(from.host_bytes());
  }
  BERTH_TRY_ASSIGN(Queue* const queue, device().default_queue());
  if (device().reaches(source.device())) {
    BERTH_TRY(internal::wait_for_uses(*queue, *storage_));
    BERTH_TRY(internal::wait_for_uses(*queue, *source.storage_));
    BERTH_TRY(queue->copy(from, to));
    return queue->finish();
  }
  BERTH_TRY_ASSIGN(const DevicePtr host, berth::device("CPU"));
  BERTH_TRY_ASSIGN(const Buffer staging, Buffer::allocate(host, DType::kU8, {std::min(bytes_, kBounceBytes)},
                                                          {.label = "copy between devices"}));
  for (std::size_t at = 0; at < bytes_; at += staging.size()) {
    const std::size_t count = std::min(staging.size(), bytes_ - at);
    BERTH_TRY_ASSIGN(const std::span<std::byte> bytes, staging.as_host_bytes_mut());
    BERTH_TRY_ASSIGN(const Buffer piece, source.view(at, count));
    BERTH_TRY(piece.copyout(bytes.first(count)));
    BERTH_TRY_ASSIGN(const Buffer target, view(at, count));
    BERTH_TRY(target.copyin(bytes.first(count)));
  }
  return {};
}

Result<void> Buffer::synchronize() const {
  if (storage_ == nullptr) return {};
  return device().synchronize();
}

void* Buffer::as_raw_ptr() const noexcept {
  if (!is_allocated()) {
    std::fprintf(stderr, "berth: as_raw_ptr() on a buffer that is not allocated (id %llu, %zu bytes)\n",
                 static_cast<unsigned long long>(id_), bytes_);
    std::abort();
  }
  const auto address = give_address();
  return address ? *address : nullptr;
}

std::uint64_t Buffer::native_handle() const noexcept {
  if (!is_allocated() || (storage_->may_move() && !storage_->give_address())) return 0;
  return storage_->block().has(kPart) ? 0 : storage_->block().handle;
}

Result<Buffer> map_file(std::string_view path, std::size_t offset, std::size_t bytes) {
  BERTH_TRY_ASSIGN(const Buffer whole, map_file(path));
  return whole.view(offset, bytes);
}

Result<Buffer> map_file(std::string_view path) {
  BERTH_TRY_ASSIGN(const DevicePtr disk, device("DISK:" + std::string(path)));
  return Buffer::allocate(disk, DType::kU8, {disk->limits().total_bytes});
}

}  // namespace berth
