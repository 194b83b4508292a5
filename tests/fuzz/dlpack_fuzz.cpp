// Tensors from another library. Every field is from the input, except that memory which must be readable is: a tensor
// whose bytes leave the memory of this program breaks the contract of import_tensor, and is imported only if it must be
// refused or is not read. What is accepted is compared with a definition in wide arithmetic; the deleter runs once.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "berth/interop/dlpack.h"

namespace {

using namespace berth;
__extension__ typedef __int128 Wide;

constexpr Wide kMostAddress = (Wide{1} << 64) - 1;
constexpr Wide kMostOffset = (Wide{1} << 63) - 1;
constexpr std::size_t kDimensions = 16;      // that the input describes; a tensor may claim more
constexpr Wide kMostCopied = Wide{1} << 20;  // bytes: a broadcast tensor can be larger than any memory

alignas(64) std::array<std::byte, 4096> memory;

void require(bool holds) {
  if (!holds) std::abort();
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  template <class T>
  T next() {
    T value{};
    const std::size_t bytes = rest_.size() < sizeof value ? rest_.size() : sizeof value;
    if (bytes > 0) std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

struct Case {
  dlpack::Tensor tensor{};
  std::uint64_t flags = 0;
  std::uint32_t major = 1;
  bool versioned = false;
  dlpack::Copy copy = dlpack::Copy::kIfNeeded;
  std::array<std::int64_t, kDimensions> shape{};
  std::array<std::int64_t, kDimensions> strides{};
};

void read_case(Input& input, Case& made) {
  const auto form = input.next<std::uint8_t>();
  made.versioned = (form & 1) != 0;
  made.copy = (form & 4) != 0 ? dlpack::Copy::kNever : dlpack::Copy::kIfNeeded;
  dlpack::Tensor& tensor = made.tensor;
  tensor.dtype.code = input.next<std::uint8_t>();
  tensor.dtype.bits = input.next<std::uint8_t>();
  tensor.dtype.lanes = input.next<std::uint16_t>();
  tensor.device.type = input.next<std::int32_t>();
  tensor.device.id = input.next<std::int32_t>();
  tensor.ndim = input.next<std::int32_t>();
  made.major = input.next<std::uint32_t>();
  made.flags = input.next<std::uint64_t>();
  tensor.byte_offset = input.next<std::uint64_t>();
  const auto data = input.next<std::uint64_t>();
  // Null, any address at all, or a place in the memory.
  if ((form & 8) == 0)
    tensor.data = (form & 16) != 0 ? reinterpret_cast<void*>(data) : memory.data() + data % memory.size();
  for (std::int64_t& extent : made.shape) extent = input.next<std::int64_t>();
  for (std::int64_t& stride : made.strides) stride = input.next<std::int64_t>();
  tensor.shape = (form & 32) != 0 ? nullptr : made.shape.data();
  tensor.strides = (form & 2) != 0 ? made.strides.data() : nullptr;
}

std::optional<DType> dtype_of_type(const dlpack::Type& type) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto known = dlpack::type_of(static_cast<DType>(i));
    if (known && known->code == type.code && known->bits == type.bits && known->lanes == type.lanes)
      return static_cast<DType>(i);
  }
  return std::nullopt;
}

// What the import must do.
struct Expected {
  bool accepted = false;
  bool undefined = false;  // would read memory that is not the program's, or copy too much for a fuzzer
  bool copied = false;
  Wide first = 0;  // address of element 0
  Wide elements = 0;
  DType dtype = DType::kU8;
};

Expected expect(const Case& made) {
  Expected result;
  const dlpack::Tensor& tensor = made.tensor;
  if (made.versioned && made.major > 1) return result;
  if (tensor.ndim < 0 || tensor.ndim > 8 || (tensor.ndim > 0 && tensor.shape == nullptr)) return result;
  if (tensor.device.type != dlpack::kCpu) return result;
  const auto dtype = dtype_of_type(tensor.dtype);
  if (!dtype) return result;
  if (made.versioned && (made.flags & dlpack::kSubbytePadded) != 0 && tensor.dtype.bits < 8) return result;
  result.dtype = *dtype;
  const std::span<const std::int64_t> shape(made.shape.data(), static_cast<std::size_t>(tensor.ndim));
  bool none = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return result;
    none |= extent == 0;
  }
  result.elements = none ? 0 : 1;
  for (const std::int64_t extent : shape)
    if (!none && (result.elements *= extent) > kMostAddress) return result;
  const DTypeInfo& type = info(*dtype);
  if (result.elements % type.block_elements != 0) return result;
  const Wide bytes = result.elements / type.block_elements * type.block_bytes;
  if (bytes > kMostOffset) return result;
  result.accepted = true;
  if (none) return result;

  bool dense = true;
  Wide stride = 1;
  for (std::size_t axis = shape.size(); tensor.strides != nullptr && axis-- > 0; stride *= shape[axis])
    dense &= shape[axis] == 1 || tensor.strides[axis] == stride;
  Wide below = 0;
  Wide above = dense ? bytes : Wide{type.block_bytes};
  if (!dense)
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const Wide reach = Wide{tensor.strides[axis]} * (shape[axis] - 1);  // fits 126 bits
      if (reach > kMostOffset || reach < -kMostOffset) return {};
      (reach < 0 ? below : above) += (reach < 0 ? -reach : reach) * type.block_bytes;
    }
  const Wide data = reinterpret_cast<std::uintptr_t>(tensor.data);
  result.first = data + tensor.byte_offset;
  if (data == 0 || result.first > kMostAddress || below > result.first || result.first + above > kMostAddress)
    return {};
  if (dense) return result;
  if (below > kMostOffset || above > kMostOffset) return {};
  if (made.copy == dlpack::Copy::kNever || tensor.dtype.bits < 8) return {};
  result.copied = true;
  const Wide start = reinterpret_cast<std::uintptr_t>(memory.data());
  result.undefined =
      result.first - below < start || result.first + above > start + Wide{memory.size()} || bytes > kMostCopied;
  return result;
}

// The bytes of a copied tensor, element by element from the last to the first.
void check_copy(const Case& made, const Expected& expected, const Buffer& buffer) {
  const std::size_t element = info(expected.dtype).block_bytes;
  const auto bytes = buffer.as_host_bytes().value();
  const auto rank = static_cast<std::size_t>(made.tensor.ndim);
  for (auto number = static_cast<std::size_t>(expected.elements); number-- > 0;) {
    Wide address = expected.first;
    std::size_t left = number;
    for (std::size_t axis = rank; axis-- > 0;) {
      const auto extent = static_cast<std::size_t>(made.shape[axis]);
      address += Wide{made.tensor.strides[axis]} * static_cast<Wide>(left % extent) * static_cast<Wide>(element);
      left /= extent;
    }
    require(std::memcmp(bytes.data() + number * element,
                        reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address)), element) == 0);
  }
}

void check_buffer(const Case& made, const Expected& expected, const Buffer& buffer, const int& deleted) {
  require(buffer.dtype() == expected.dtype && buffer.shape().rank() == static_cast<std::size_t>(made.tensor.ndim));
  for (std::size_t axis = 0; axis < buffer.shape().rank(); ++axis)
    require(buffer.shape()[axis] == static_cast<std::size_t>(made.shape[axis]));
  require(Wide{buffer.element_count()} == expected.elements);
  require(deleted == (expected.copied ? 1 : 0));
  require(buffer.is_foreign() != expected.copied);
  if (expected.copied) check_copy(made, expected, buffer);
  if (!expected.copied && expected.elements != 0)
    require(reinterpret_cast<std::uintptr_t>(buffer.as_raw_ptr()) == static_cast<std::uintptr_t>(expected.first));
  require(buffer.is_read_only() == (!expected.copied && made.versioned && (made.flags & dlpack::kReadOnly) != 0));
  // There and back again.
  dlpack::ManagedTensorVersioned* const exported = dlpack::export_buffer(buffer).value();
  const Buffer again = dlpack::import_tensor(exported, dlpack::Copy::kNever).value();
  require(again.shape() == buffer.shape() && again.dtype() == buffer.dtype());
  require(again.size() == 0 || again.as_raw_ptr() == buffer.as_raw_ptr());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7 + i / 251);
  Case made;
  Input input(data, size);
  read_case(input, made);
  // Types that another device answers for need a driver, and are not what is tested.
  for (const std::int32_t driver :
       {dlpack::kCuda, dlpack::kCudaHost, dlpack::kMetal, dlpack::kCudaManaged, dlpack::kWebGpu})
    if (made.tensor.device.type == driver) return 0;
  const Expected expected = expect(made);
  if (expected.undefined) return 0;

  int deleted = 0;
  const auto check = [&](const Result<Buffer>& imported) {
    require(imported.has_value() == expected.accepted);
    if (imported)
      check_buffer(made, expected, *imported, deleted);
    else
      require(!imported.error().message().empty());
  };
  if (made.versioned) {
    dlpack::ManagedTensorVersioned managed{
        {made.major, 0},
        &deleted,
        [](dlpack::ManagedTensorVersioned* self) { ++*static_cast<int*>(self->context); },
        made.flags,
        made.tensor};
    check(dlpack::import_tensor(&managed, made.copy));
  } else {
    dlpack::ManagedTensor managed{made.tensor, &deleted,
                                  [](dlpack::ManagedTensor* self) { ++*static_cast<int*>(self->context); }};
    check(dlpack::import_tensor(&managed, made.copy));
  }
  require(deleted == 1);
  return 0;
}
