#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "explain/models.h"

namespace berth::cli {
namespace {

constexpr std::uint64_t kMinBlock = 512;
constexpr std::uint64_t kSmallRequest = std::uint64_t{1} << 20;
constexpr std::uint64_t kSmallSegment = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargeSegment = std::uint64_t{20} << 20;
constexpr std::uint64_t kOwnSegment = std::uint64_t{10} << 20;  // requests from here on get a segment of their own
constexpr std::uint64_t kOwnRounding = std::uint64_t{2} << 20;
// The addresses that an expandable segment reserves. PyTorch takes a little more than the memory of the device.
constexpr std::uint64_t kReserved = std::uint64_t{1} << 46;
constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

std::uint64_t round_to(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// With N parts, what lies between two powers of two is rounded up to one of N sizes there.
std::uint64_t round_request(std::uint64_t bytes, const PowerOfTwoParts& all) {
  // 0 below 2 MiB, 1 below 4 MiB and so on.
  const auto interval = static_cast<std::size_t>(std::bit_width(std::max<std::uint64_t>(bytes / kSmallRequest, 1))) - 1;
  const std::uint64_t parts = all[std::min(interval, all.size() - 1)];
  if (parts <= 1 || bytes <= kMinBlock * parts) return round_to(bytes, kMinBlock);
  return round_to(bytes, std::bit_floor(bytes) / std::bit_floor(parts));
}

class TorchModel final : public AllocatorModel {
 public:
  TorchModel(const RequestTrace& trace, const TorchSettings& settings)
      : settings_(settings),
        max_split_(settings.max_split_bytes == 0 ? std::numeric_limits<std::uint64_t>::max()
                                                 : settings.max_split_bytes),
        follows_(settings.made != nullptr),
        block_of_(trace.requests.size(), kNobody) {}

  void allocate(std::uint32_t number, const Request& request) override {
    if (request.bytes == 0) return;
    const std::uint64_t size = round_request(request.bytes, settings_.parts);
    const bool small = size <= kSmallRequest;
    std::uint32_t id = find_free(small, request.stream, size);
    if (id == kNobody)
      id = settings_.expandable ? expand(small, request.stream, size) : make_segment(small, request.stream, size);
    split(id, size);
    Block& block = blocks_[id];
    block.in_use = true;
    use(block, 1);
    block_of_[number] = id;
    now_.requested += request.bytes;
    now_.rounded += block.size;
  }

  void release(std::uint32_t number, const Request& request) override {
    const std::uint32_t id = std::exchange(block_of_[number], kNobody);
    if (id == kNobody) return;
    now_.requested -= request.bytes;
    now_.rounded -= blocks_[id].size;
    blocks_[id].in_use = false;
    use(blocks_[id], -1);
    insert_free(merge(id));
  }

  void empty_cache() override {
    if (follows_) return;  // it is known which segments go
    for (const bool small : {false, true}) {
      std::vector<std::uint32_t> free;
      for (const FreeKey& key : free_[small]) free.push_back(std::get<3>(key));
      for (const std::uint32_t id : free) {
        if (settings_.expandable)
          unmap(id);
        else if (blocks_[id].before == kNobody && blocks_[id].after == kNobody)
          drop_segment(id);
      }
    }
  }

  // Out of memory, PyTorch gives back some segments or all, and a threshold for garbage collection gives back old ones.
  void give_segment_back(std::uint32_t number) override {
    if (!follows_ || number >= segments_.size()) return;
    const Segment& segment = segments_[number];
    const auto at = free_[segment.small].lower_bound(FreeKey{segment.stream, segment.mapped, segment.base, 0});
    if (at == free_[segment.small].end()) return;
    const std::uint32_t id = std::get<3>(*at);
    if (blocks_[id].segment == number && blocks_[id].size == segment.mapped) drop_segment(id);
  }

  Usage usage() const override { return now_; }

  std::optional<Place> place_of(std::uint32_t number) const override {
    if (block_of_[number] == kNobody) return std::nullopt;
    const Block& block = blocks_[block_of_[number]];
    return Place{block.segment, block.at - segments_[block.segment].base};
  }

  std::vector<RecordedSegment> segments() const override {
    std::vector<RecordedSegment> result;
    for (const Segment& segment : segments_)
      if (segment.mapped > 0) result.push_back({segment.base, segment.mapped, segment.small, settings_.expandable});
    return result;
  }

 private:
  struct Block {
    std::uint64_t at = 0, size = 0;
    std::uint32_t before = kNobody, after = kNobody;  // neighbours in the segment
    std::uint32_t segment = 0;
    bool in_use = false;
    bool mapped = true;
  };
  struct Segment {
    std::uint64_t base = 0, mapped = 0;
    std::uint32_t stream = 0;
    bool small = false;
    std::uint64_t live = 0;  // blocks in use
  };
  using FreeKey = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t>;  // stream, size, at, block
  using UnmappedKey = std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>;             // stream, at, block

  FreeKey free_key(std::uint32_t id) const {
    return {segments_[blocks_[id].segment].stream, blocks_[id].size, blocks_[id].at, id};
  }
  std::set<FreeKey>& free_of(std::uint32_t id) { return free_[segments_[blocks_[id].segment].small]; }
  void insert_free(std::uint32_t id) { free_of(id).insert(free_key(id)); }
  void erase_free(std::uint32_t id) { free_of(id).erase(free_key(id)); }

  std::set<UnmappedKey>& unmapped_of(std::uint32_t id) { return unmapped_[segments_[blocks_[id].segment].small]; }
  UnmappedKey unmapped_key(std::uint32_t id) const {
    return {segments_[blocks_[id].segment].stream, blocks_[id].at, id};
  }

  // Segments without a live block are idle. An expandable segment is never idle as a whole: its free pages at the end
  // count as fragmentation as long as anything in it lives, as in a segment of fixed size.
  void use(const Block& block, int change) {
    Segment& segment = segments_[block.segment];
    if (change > 0 && segment.live++ == 0) now_.idle -= segment.mapped;
    if (change < 0 && --segment.live == 0) now_.idle += segment.mapped;
  }
  void resize_segment(std::uint32_t number, std::uint64_t mapped) {
    Segment& segment = segments_[number];
    now_.held += mapped - segment.mapped;  // modulo 2^64
    if (segment.live == 0) now_.idle += mapped - segment.mapped;
    segment.mapped = mapped;
  }

  std::uint32_t new_block(const Block& block) {
    if (!spare_.empty()) {
      const std::uint32_t id = spare_.back();
      spare_.pop_back();
      blocks_[id] = block;
      return id;
    }
    blocks_.push_back(block);
    return static_cast<std::uint32_t>(blocks_.size() - 1);
  }

  std::uint64_t expandable_size(std::uint32_t id) const {
    const Block& block = blocks_[id];
    const bool grows = block.after != kNobody && !blocks_[block.after].mapped;
    return block.size + (grows ? blocks_[block.after].size : 0);
  }

  // Takes the free block that fits best, or nobody.
  std::uint32_t find_free(bool small, std::uint32_t stream, std::uint64_t size) {
    std::set<FreeKey>& free = free_[small];
    auto at = free.lower_bound(FreeKey{stream, size, 0, 0});
    if (at == free.end() || std::get<0>(*at) != stream) return kNobody;
    if (settings_.expandable) {
      // A block that can grow counts as large as it can become.
      for (auto next = std::next(at); next != free.end() && std::get<0>(*next) == stream &&
                                      expandable_size(std::get<3>(*next)) < expandable_size(std::get<3>(*at));
           ++next)
        at = next;
    }
    const std::uint64_t found = std::get<1>(*at);
    if (size < max_split_ && found >= max_split_) return kNobody;
    if (size >= max_split_ && found >= size + kLargeSegment) return kNobody;
    const std::uint32_t id = std::get<3>(*at);
    free.erase(at);
    return id;
  }

  std::uint64_t next_address(std::uint64_t bytes) {
    const std::size_t at = segments_.size();
    follows_ = follows_ && at < settings_.made->size() && (*settings_.made)[at].bytes == bytes;
    if (follows_ && !settings_.oldest_first) return (*settings_.made)[at].address;
    const std::uint64_t address = invented_;
    invented_ += round_to(bytes, kSmallSegment) + kSmallSegment;
    return address;
  }

  std::uint32_t make_segment(bool small, std::uint32_t stream, std::uint64_t size) {
    const std::uint64_t bytes = small                ? kSmallSegment
                                : size < kOwnSegment ? kLargeSegment
                                                     : round_to(size, kOwnRounding);
    segments_.push_back({.base = next_address(bytes), .stream = stream, .small = small});
    const auto number = static_cast<std::uint32_t>(segments_.size() - 1);
    resize_segment(number, bytes);
    return new_block({.at = segments_[number].base, .size = bytes, .segment = number});
  }

  // Requires: the block is in no set.
  void split(std::uint32_t id, std::uint64_t size) {
    const bool small = segments_[blocks_[id].segment].small;
    const std::uint64_t rest = blocks_[id].size - size;
    const bool splits = small || settings_.expandable ? rest >= kMinBlock : size < max_split_ && rest > kSmallRequest;
    if (!splits) return;
    const Block block = blocks_[id];
    const std::uint32_t tail =
        new_block({.at = block.at + size, .size = rest, .before = id, .after = block.after, .segment = block.segment});
    if (block.after != kNobody) blocks_[block.after].before = tail;
    blocks_[id].after = tail;
    blocks_[id].size = size;
    insert_free(tail);
  }

  // Merges a block that is in no set with its free neighbours.
  std::uint32_t merge(std::uint32_t id) {
    for (const bool forward : {false, true}) {
      const std::uint32_t other = forward ? blocks_[id].after : blocks_[id].before;
      if (other == kNobody || blocks_[other].in_use || blocks_[other].mapped != blocks_[id].mapped) continue;
      if (blocks_[other].mapped)
        erase_free(other);
      else
        unmapped_of(other).erase(unmapped_key(other));
      const Block gone = blocks_[other];
      Block& block = blocks_[id];
      block.size += gone.size;
      if (forward) {
        block.after = gone.after;
        if (gone.after != kNobody) blocks_[gone.after].before = id;
      } else {
        block.at = gone.at;
        block.before = gone.before;
        if (gone.before != kNobody) blocks_[gone.before].after = id;
      }
      spare_.push_back(other);
    }
    return id;
  }

  void drop_segment(std::uint32_t id) {
    erase_free(id);
    resize_segment(blocks_[id].segment, 0);
    spare_.push_back(id);
  }

  // --- Expandable segments ---

  std::uint64_t page_of(std::uint32_t id) const {
    return segments_[blocks_[id].segment].small ? kSmallSegment : kLargeSegment;
  }

  bool has_room(std::uint32_t id, std::uint64_t size) const {
    std::uint64_t room = 0;
    while (room < size && id != kNobody && !blocks_[id].in_use) {
      room += blocks_[id].size;
      id = blocks_[id].after;
    }
    return room >= size;
  }

  // The first block of a run of free and unmapped blocks of at least `size` bytes. A new segment if there is none.
  std::uint32_t find_expandable(bool small, std::uint32_t stream, std::uint64_t size) {
    const std::set<UnmappedKey>& unmapped = unmapped_[small];
    for (auto at = unmapped.lower_bound(UnmappedKey{stream, 0, 0}); at != unmapped.end() && std::get<0>(*at) == stream;
         ++at) {
      std::uint32_t id = std::get<2>(*at);
      if (const std::uint32_t before = blocks_[id].before; before != kNobody && !blocks_[before].in_use) id = before;
      if (has_room(id, size)) return id;
    }
    segments_.push_back({.base = invented_, .stream = stream, .small = small});
    invented_ += kReserved;
    const auto number = static_cast<std::uint32_t>(segments_.size() - 1);
    const std::uint32_t id =
        new_block({.at = segments_[number].base, .size = kReserved, .segment = number, .mapped = false});
    unmapped_of(id).insert(unmapped_key(id));
    return id;
  }

  // Maps the pages of the first `size` bytes of an unmapped block. Returns the free block that they are part of then.
  std::uint32_t map(std::uint32_t id, std::uint64_t size) {
    unmapped_of(id).erase(unmapped_key(id));
    const std::uint64_t bytes = std::min(round_to(size, page_of(id)), blocks_[id].size);
    const Block block = blocks_[id];
    if (bytes < block.size) {
      const std::uint32_t rest = new_block({.at = block.at + bytes,
                                            .size = block.size - bytes,
                                            .before = id,
                                            .after = block.after,
                                            .segment = block.segment,
                                            .mapped = false});
      if (block.after != kNobody) blocks_[block.after].before = rest;
      blocks_[id].after = rest;
      blocks_[id].size = bytes;
      unmapped_of(rest).insert(unmapped_key(rest));
    }
    blocks_[id].mapped = true;
    resize_segment(block.segment, segments_[block.segment].mapped + bytes);
    merge(id);
    insert_free(id);
    return id;
  }

  std::uint32_t expand(bool small, std::uint32_t stream, std::uint64_t size) {
    std::uint32_t id = find_expandable(small, stream, size);
    if (!blocks_[id].mapped) id = map(id, std::min(blocks_[id].size, size));
    while (blocks_[id].size < size) {
      const std::uint32_t next = blocks_[id].after;
      id = map(next, std::min(size - blocks_[id].size, blocks_[next].size));
    }
    erase_free(id);
    return id;
  }

  // Gives the whole pages of a free block back.
  void unmap(std::uint32_t id) {
    const Block block = blocks_[id];
    const std::uint64_t base = segments_[block.segment].base, page = page_of(id);
    const std::uint64_t begin = base + round_to(block.at - base, page);
    const std::uint64_t end = base + (block.at + block.size - base) / page * page;
    if (begin >= end) return;
    erase_free(id);
    const auto cut = [&](std::uint64_t at, std::uint64_t size, std::uint32_t before, std::uint32_t after) {
      const std::uint32_t piece =
          new_block({.at = at, .size = size, .before = before, .after = after, .segment = block.segment});
      if (before != kNobody) blocks_[before].after = piece;
      if (after != kNobody) blocks_[after].before = piece;
      insert_free(piece);
    };
    blocks_[id].at = begin;
    blocks_[id].size = end - begin;
    blocks_[id].mapped = false;
    if (block.at < begin) cut(block.at, begin - block.at, block.before, id);
    if (end < block.at + block.size) cut(end, block.at + block.size - end, id, block.after);
    resize_segment(block.segment, segments_[block.segment].mapped - (end - begin));
    merge(id);
    unmapped_of(id).insert(unmapped_key(id));
  }

  const TorchSettings settings_;
  const std::uint64_t max_split_;
  bool follows_;                         // has made the segments that the recorded program made, so far
  std::vector<std::uint32_t> block_of_;  // by request
  std::vector<Block> blocks_{};
  std::vector<std::uint32_t> spare_{};
  std::vector<Segment> segments_{};
  std::set<FreeKey> free_[2];          // large, small
  std::set<UnmappedKey> unmapped_[2];  // large, small
  std::uint64_t invented_ = std::uint64_t{1} << 40;
  Usage now_{};
};

}  // namespace

std::unique_ptr<AllocatorModel> make_torch_model(const RequestTrace& trace, const TorchSettings& settings) {
  return std::make_unique<TorchModel>(trace, settings);
}

}  // namespace berth::cli
