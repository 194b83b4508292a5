// Banks and blocks as one address space.
#include <algorithm>

#include "plan/placement/model.h"

namespace berth::internal::planner {

Space::Space(const PlanProblem& problem, std::span<const std::uint64_t> used, std::uint64_t alignment) {
  const std::uint64_t bank_bytes = std::uint64_t{1} << kBankShift;
  const std::size_t banks = std::max<std::size_t>(1, problem.banks.size());
  for (std::size_t bank = 0; bank < banks; ++bank) {
    const std::uint64_t limit = bank < problem.banks.size() ? problem.banks[bank].capacity : 0;
    const std::uint64_t taken = bank < used.size() ? used[bank] : 0;
    capacity_.push_back(limit == 0 ? bank_bytes : limit > taken ? std::min(limit - taken, bank_bytes) : 0);
  }
  block_bytes_ = problem.max_block_bytes == 0 ? bank_bytes : std::min(problem.max_block_bytes, bank_bytes);
  stride_ = (block_bytes_ + alignment - 1) / alignment * alignment;
  plain_ = banks == 1 && block_bytes_ == bank_bytes && capacity_[0] == bank_bytes;
}

Space::Address Space::address(std::uint64_t offset) const noexcept {
  if (plain_) return {0, 0, offset};
  const std::uint64_t in_bank = offset & ((std::uint64_t{1} << kBankShift) - 1);
  return {static_cast<std::uint32_t>(offset >> kBankShift), in_bank / stride_, in_bank % stride_};
}

std::uint64_t Space::place_in_block(std::uint64_t offset, std::uint64_t height) const noexcept {
  if (height > block_bytes_) return kNowhere;
  for (auto bank = static_cast<std::uint32_t>(offset >> kBankShift); bank < capacity_.size(); ++bank) {
    const std::uint64_t in_bank = offset > base(bank) ? offset - base(bank) : 0;
    std::uint64_t block = in_bank / stride_, at = in_bank % stride_;
    if (at + height > block_bytes_) ++block, at = 0;
    // Earlier blocks count in full; only the last of a bank may be shorter.
    const std::uint64_t before = block * block_bytes_;
    if (before <= capacity_[bank] && at + height <= capacity_[bank] - before) return base(bank) + block * stride_ + at;
  }
  return kNowhere;
}

}  // namespace berth::internal::planner
