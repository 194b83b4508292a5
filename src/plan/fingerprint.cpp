// A hash of a whole problem, so that a stored plan cannot be used for another problem.
#include "berth/plan/plan.h"

namespace berth {
namespace {

class Hash {
 public:
  void add(std::uint64_t value) noexcept {
    state_ = (state_ ^ value) * 0x9fb21c651e98df25u;
    state_ ^= state_ >> 32;
  }
  template <class T>
  void add(const std::optional<T>& value) noexcept {
    add(std::uint64_t{value.has_value()});
    if (value) add(static_cast<std::uint64_t>(*value));
  }
  std::uint64_t value() const noexcept { return state_; }

 private:
  std::uint64_t state_ = 0x6265727468706c61u;
};

}  // namespace

std::uint64_t fingerprint(const PlanProblem& problem) noexcept {
  Hash hash;
  hash.add(problem.lifetimes.size());
  for (const Lifetime& it : problem.lifetimes) {
    hash.add(it.bytes);
    hash.add(static_cast<std::uint64_t>(it.first));
    hash.add(static_cast<std::uint64_t>(it.last));
    hash.add(it.alignment);
    hash.add(it.offset);
    hash.add(std::uint64_t{it.pinned} << 32 | it.lane);
    hash.add(std::uint64_t{it.alias.has_value()});
    if (it.alias) {
      hash.add(it.alias->node);
      hash.add(it.alias->offset);
    }
    hash.add(it.reuse_in_place);
    hash.add(it.gaps.size());
    for (const LevelRange& gap : it.gaps) {
      hash.add(static_cast<std::uint64_t>(gap.first));
      hash.add(static_cast<std::uint64_t>(gap.last));
    }
    hash.add(it.hint);
    hash.add(it.bank);
  }
  hash.add(problem.capacity);
  hash.add(problem.alignment);
  hash.add(problem.banks.size());
  for (const Bank& bank : problem.banks) hash.add(bank.capacity);
  hash.add(problem.max_block_bytes);
  return hash.value();
}

}  // namespace berth
