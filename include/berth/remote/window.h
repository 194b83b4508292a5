// A RemoteWindow names memory of one rank that other ranks may access. It is a small value: it can be sent anywhere, by
// any means, and printed. It holds no key and no address, so knowing one gives no access: Cluster::import asks the
// owner, who refuses a window that was closed, even if its memory or its number is in use again (the generation
// differs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "berth/memory/kernel.h"
#include "berth/tensor/dtype.h"
#include "berth/tensor/shape.h"

namespace berth {

struct RemoteWindow {
  std::uint32_t rank = 0;  // the owner
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;
  DType dtype = DType::kU8;
  Shape shape{};
  Access access = Access::kReadWrite;  // what other ranks may do

  // For sending it: about 100 bytes.
  std::vector<std::byte> to_bytes() const;
  // kInvalidData for bytes that to_bytes() did not make.
  static Result<RemoteWindow> from_bytes(std::span<const std::byte> bytes);

  friend bool operator==(const RemoteWindow&, const RemoteWindow&) = default;
};

// "window 3 of rank 1: f32[1024, 64], 256.0 KiB, read-write".
std::string to_string(const RemoteWindow& window);

}  // namespace berth
