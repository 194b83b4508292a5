#include "berth/memory/label_counters.h"

#include <algorithm>
#include <map>
#include <new>
#include <string>

namespace berth {
namespace {

struct SplitLabel {
  std::string stem;
  std::string number;  // trailing digits, or empty
};

SplitLabel split(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0 && text[end - 1] >= '0' && text[end - 1] <= '9') --end;
  return {std::string(text.substr(0, end)), std::string(text.substr(end))};
}

bool numerically_less(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

struct Group {
  std::size_t bytes = 0, count = 0, labels = 0;
  std::string first, last;
};

}  // namespace

LabelCounters::~LabelCounters() {
  for (auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
}

LabelCounters::Counter* LabelCounters::find(std::uint16_t label) noexcept {
  std::atomic<Chunk*>& slot = chunks_[label / kChunk];
  Chunk* chunk = slot.load(std::memory_order_acquire);
  if (chunk == nullptr) {
    Chunk* fresh = new (std::nothrow) Chunk;
    if (fresh == nullptr) return nullptr;  // counting is best effort; the allocation succeeds without it
    if (slot.compare_exchange_strong(chunk, fresh, std::memory_order_acq_rel))
      chunk = fresh;
    else
      delete fresh;
  }
  return &(*chunk)[label % kChunk];
}

void LabelCounters::add(Name label, std::size_t bytes) noexcept {
  if (Counter* counter = find(label.id())) {
    counter->bytes.fetch_add(bytes, std::memory_order_relaxed);
    counter->count.fetch_add(1, std::memory_order_relaxed);
  }
}

void LabelCounters::remove(Name label, std::size_t bytes) noexcept {
  if (Counter* counter = find(label.id())) {
    counter->bytes.fetch_sub(bytes, std::memory_order_relaxed);
    counter->count.fetch_sub(1, std::memory_order_relaxed);
  }
}

std::vector<OutOfMemory::Holder> LabelCounters::holders() const {
  std::map<std::string, Group> groups;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const Chunk* chunk = chunks_[c].load(std::memory_order_acquire);
    if (chunk == nullptr) continue;
    for (std::size_t i = 0; i < kChunk; ++i) {
      const std::size_t bytes = (*chunk)[i].bytes.load(std::memory_order_relaxed);
      const std::size_t count = (*chunk)[i].count.load(std::memory_order_relaxed);
      if (count == 0) continue;
      const std::string_view text = Name::from_id(static_cast<std::uint16_t>(c * kChunk + i)).text();
      const SplitLabel label = split(text.empty() ? "(no label)" : text);
      Group& group = groups[label.stem];
      group.bytes += bytes;
      group.count += count;
      if (group.labels++ == 0 || numerically_less(label.number, group.first)) group.first = label.number;
      if (numerically_less(group.last, label.number)) group.last = label.number;
    }
  }
  std::vector<OutOfMemory::Holder> result;
  for (const auto& [stem, group] : groups) {
    const bool range = group.labels > 1 && group.first != group.last;
    result.push_back({stem + (range ? group.first + ".." + group.last : group.first), group.bytes, group.count});
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace berth
