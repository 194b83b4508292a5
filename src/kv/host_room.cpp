#include "kv/host_room.h"

#include "berth/memory/free_memory.h"

namespace berth::internal::kv_cache {
namespace {
constexpr std::size_t kSmall = std::size_t{64} << 20;
}  // namespace

Result<void> check_host_room(std::size_t bytes, std::uint64_t blocks) {
  if (bytes < kSmall) return {};
  const auto free = free_host_memory();
  if (!free || bytes <= free->bytes) return {};
  return Error(Code::kOutOfMemory, Layer::kAllocator,
               "{} blocks need {b} of tables on the host, and {b} are free: use larger blocks or a smaller budget",
               blocks, bytes, free->bytes);
}

}  // namespace berth::internal::kv_cache
