#include "berth/kv/eviction.h"

namespace berth::kv {
namespace {

class LruEviction final : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "least recently used"; }

  void visited(const Visit& visit, Blocks& blocks) noexcept override {
    for (const Node node : visit.path) blocks.notes(node).last = visit.closed;
  }

  // A block whose last child was evicted was used no earlier than the child, which was the oldest. If both were used by
  // the same sequence, it is the oldest now.
  Place place(Node node, Node evicted, Blocks& blocks) noexcept override {
    const bool oldest = evicted != kNoNode && blocks.notes(node).last == blocks.notes(evicted).last;
    return {0, oldest ? blocks.oldest(0) : kNoNode};
  }

  Node victim(Blocks& blocks) noexcept override { return blocks.oldest(0); }
};

}  // namespace

EvictionPolicyPtr make_lru_eviction() {
  return std::make_unique<LruEviction>();
}

}  // namespace berth::kv
