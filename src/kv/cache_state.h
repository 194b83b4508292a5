// What a cache consists of. The functions are grouped by file: cache_open.cpp (finding prefixes, admission, opening and
// closing), cache_write.cpp (appending, publishing, forks), cache_memory.cpp (pages, eviction, copies),
// cache_tiers.cpp, cache_ranges.cpp (contiguous addresses), cache_tables.cpp and cache_check.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/kv/cache.h"
#include "kv/block_tree.h"
#include "kv/call_log.h"
#include "kv/page_frames.h"
#include "kv/tiers.h"
#include "kv/timeline.h"

namespace berth::internal::kv_cache {

constexpr std::uint32_t kMostGroups = 16;
constexpr std::uint64_t kMostTokens = 0x7fff'ffff;  // lengths are written as int32
using PerGroup = std::array<std::uint64_t, kMostGroups>;
// The owner of a state's page: this bit and the sequence.
constexpr std::uint32_t kSequenceOwner = 0x8000'0000;
constexpr std::uint32_t kNoRange = 0xffff'ffff;

}  // namespace berth::internal::kv_cache

namespace berth::kv {

class Cache::State {
 public:
  using PerGroup = internal::kv_cache::PerGroup;
  static constexpr std::uint32_t kMostGroups = internal::kv_cache::kMostGroups;

  struct alignas(64) Sequence {
    // What append() reads comes first, to share a cache line.
    std::uint32_t generation = 1;
    std::uint32_t length = 0;  // tokens
    Node tail = kNoNode;       // the last block
    std::uint32_t batch = 0;   // the append() that saw this sequence last
    bool open = false;
    bool plain = false;           // the tail is not full, not published, and of this sequence alone
    std::uint32_t published = 0;  // blocks in the tree
    std::uint64_t prompt = 0;
    std::uint64_t limit = 0;  // tokens for which pages are set aside
    std::uint32_t opened = 0;
    Node root = internal::kv_cache::kRootBit;
    std::uint64_t number = 0;                            // of all sequences, in the order in which they were opened
    std::uint32_t range = internal::kv_cache::kNoRange;  // contiguous addresses
    std::uint32_t shown = 0;                             // blocks whose pages are mapped there
    std::vector<Node> blocks{};
    std::array<Page, kMostGroups> states{};
    std::array<std::uint32_t, kMostGroups> first{};      // kWindow: the first block in the window
    std::array<std::uint32_t, kMostGroups> set_aside{};  // pages
    std::array<std::uint32_t, kMostGroups> hidden{};     // kWindow: blocks before this one are not mapped any more
  };
  // Addresses of a sequence.
  struct Range {
    Buffer buffer{};
    std::uint64_t address = 0;
    std::size_t most = 0;  // blocks from here on have nothing mapped
  };

  // What opening a sequence takes.
  struct Opening {
    std::uint64_t blocks = 0;  // of the prompt
    std::uint64_t hits = 0;    // of these, cached; in hits
    std::uint64_t below = 0;   // blocks after them that a tier has; in places
    PerGroup extra{};          // pages that become in use or set aside
    PerGroup fresh{};          // of these, pages to be taken
    PerGroup set_aside{};
  };

  State(AllocatorPtr allocator, CacheOptions&& options);
  // `space` is null in the paged way.
  Result<void> prepare(std::unique_ptr<AddressSpace> space);

  // --- cache_open.cpp ---
  Result<Opened> open(std::span<const Token> tokens, const OpenOptions& options) BERTH_REQUIRES(mutex);
  Opening prepare_opening(std::span<const Token> tokens, const OpenOptions& options) BERTH_REQUIRES(mutex);
  Admission can_admit(std::span<const Token> tokens, const OpenOptions& options) BERTH_REQUIRES(mutex);
  void close(Sequence& sequence) noexcept BERTH_REQUIRES(mutex);
  void release_blocks(Sequence& sequence, std::size_t keep) noexcept BERTH_REQUIRES(mutex);
  Result<Sequence*> find(SequenceId id) BERTH_REQUIRES(mutex);
  SequenceId add_sequence() BERTH_REQUIRES(mutex);
  Error refusal(const PerGroup& extra) const BERTH_REQUIRES(mutex);
  void explain(Admission& admission, const PerGroup& extra) const BERTH_REQUIRES(mutex);

  // --- cache_write.cpp ---
  Result<void> append(std::span<const SequenceId> ids, std::span<const Token> tokens, std::span<std::int64_t> slots)
      BERTH_REQUIRES(mutex);
  Result<void> extend(Sequence& sequence, std::span<const Token> tokens, std::span<std::int64_t> slots)
      BERTH_REQUIRES(mutex);
  void commit(Sequence& sequence) BERTH_REQUIRES(mutex);
  Result<SequenceId> fork(SequenceId id) BERTH_REQUIRES(mutex);
  Result<void> truncate(Sequence& sequence, std::uint64_t tokens) BERTH_REQUIRES(mutex);
  Result<void> keep_state(Sequence& sequence) BERTH_REQUIRES(mutex);
  // The part of append() for the sequences of `crossing`: publishes their blocks and opens new ones.
  Result<void> cross_blocks() BERTH_REQUIRES(mutex);
  void publish(Sequence& sequence) BERTH_REQUIRES(mutex);
  void prefetch_publish(const Sequence& sequence) const noexcept BERTH_REQUIRES(mutex);
  void advance_windows(Sequence& sequence) noexcept BERTH_REQUIRES(mutex);
  // What adding tokens takes: new blocks, and a copy of a shared tail.
  struct Growth {
    std::uint64_t blocks = 0;
    PerGroup pages{};
    PerGroup extra{};  // of these, pages that were not set aside
  };
  Growth growth(const Sequence& sequence, std::uint64_t tokens) const noexcept BERTH_REQUIRES(mutex);
  // Makes the tail of the sequence its own, with room for a token.
  Result<void> open_tail(Sequence& sequence) BERTH_REQUIRES(mutex);

  // --- cache_tiers.cpp ---
  internal::kv_cache::Before before(Node node) const noexcept BERTH_REQUIRES(mutex);
  // Blocks of the prompt that follow the hits and are in a tier. Fills `places`.
  void find_below(std::span<const Token> tokens, std::uint64_t salt, std::size_t most) BERTH_REQUIRES(mutex);
  void put_below(Node node) noexcept BERTH_REQUIRES(mutex);
  // A block of the sequence that is in a tier becomes one of the tree. `cached` are the tokens of all that are cached.
  // Requires: the node is new, and the next.
  Result<void> bring_back(Sequence& sequence, Node node, internal::kv_cache::Tiers::Place place,
                          std::span<const Token> tokens, std::uint64_t cached) BERTH_REQUIRES(mutex);
  // After insertion: takes over the name of the same block in a tier, or a new one.
  void name_block(Node node) noexcept BERTH_REQUIRES(mutex);
  Result<void> check_tiers() const BERTH_REQUIRES(mutex);

  // --- cache_ranges.cpp: these do nothing in the paged way ---
  Result<void> prepare_ranges(std::unique_ptr<AddressSpace> space) BERTH_REQUIRES(mutex);
  // Gives an open sequence its addresses, with its blocks mapped. If that fails, close() takes them back.
  Result<void> give_range(Sequence& sequence) BERTH_REQUIRES(mutex);
  void take_range(Sequence& sequence) noexcept BERTH_REQUIRES(mutex);
  // Maps the blocks that are not shown. A failed call has mapped some of them.
  Result<void> show_range(Sequence& sequence) BERTH_REQUIRES(mutex);
  // After pages were moved: maps them at their new places in all sequences.
  void show_moved() noexcept BERTH_REQUIRES(mutex);
  Result<void> show(const Range& range, std::uint32_t group, std::size_t block, Page page) BERTH_REQUIRES(mutex);
  Result<void> hide(const Range& range, std::uint32_t group, std::size_t first, std::size_t end) BERTH_REQUIRES(mutex);
  Result<void> check_ranges() const BERTH_REQUIRES(mutex);

  // --- cache_memory.cpp ---
  // The memory of a page.
  Window page_window(std::uint32_t group, Page page) const noexcept BERTH_REQUIRES(mutex);
  std::uint64_t in_use(std::uint32_t group) const noexcept BERTH_REQUIRES(mutex);
  // True if the pages fit beside those that are in use and set aside.
  bool feasible(const PerGroup& extra) const noexcept BERTH_REQUIRES(mutex);
  // Evicts until the pool has room for `pages` and there are `blocks` free nodes. False if that is impossible.
  bool evict_for(const PerGroup& pages, std::uint64_t blocks) noexcept BERTH_REQUIRES(mutex);
  // `keep`: in a tier, if there is one.
  bool evict_block(bool keep = true) noexcept BERTH_REQUIRES(mutex);
  // Evicts one page that can go without its block.
  bool evict_loose(GroupKind kind) noexcept BERTH_REQUIRES(mutex);
  // Takes a page, and moves others for it if needed. Requires: evict_for() made room.
  Result<Page> take_page(std::uint32_t group, Node owner) BERTH_REQUIRES(mutex);
  void give_page(std::uint32_t group, Page page) noexcept BERTH_REQUIRES(mutex);
  Result<Node> take_block() BERTH_REQUIRES(mutex);
  void free_block(Node node) noexcept BERTH_REQUIRES(mutex);
  Result<void> copy_page(std::uint32_t group, Page from, Page to) BERTH_REQUIRES(mutex);
  void use_set_aside(Sequence& sequence, std::uint32_t group) noexcept BERTH_REQUIRES(mutex);
  void drop_set_aside(Sequence& sequence) noexcept BERTH_REQUIRES(mutex);
  void pin_window(std::uint32_t group, Node node) noexcept BERTH_REQUIRES(mutex);
  // Returns true if no sequence has the block in its window any more.
  bool unpin_window(std::uint32_t group, Node node) noexcept BERTH_REQUIRES(mutex);
  void leave_behind(std::uint32_t group, Node node) noexcept BERTH_REQUIRES(mutex);
  // The page of a block that no window needs: stays cached until it is evicted, or goes at once if nobody can find it.
  void drop_behind(std::uint32_t group, Node node) noexcept BERTH_REQUIRES(mutex);
  void take_from_behind(std::uint32_t group, Node node) noexcept BERTH_REQUIRES(mutex);
  Page page_of(Node node, std::uint32_t group) const noexcept BERTH_REQUIRES(mutex) {
    return identity ? static_cast<Page>(node) : pages[std::size_t{node} * group_count + group];
  }
  Page& page_ref(Node node, std::uint32_t group) noexcept BERTH_REQUIRES(mutex) {
    return pages[std::size_t{node} * group_count + group];
  }
  std::size_t bookkeeping_bytes() const noexcept BERTH_REQUIRES(mutex);
  void set_now(std::optional<std::uint64_t> now) noexcept BERTH_REQUIRES(mutex);
  // One call begins, on the timeline.
  void tick() noexcept BERTH_REQUIRES(mutex) {
    if (timeline) timeline->tick();
  }

  // The first block that the token at position `next` attends to.
  std::uint32_t window_start(std::uint32_t group, std::uint64_t next) const noexcept {
    const std::uint64_t window = groups[group].window;
    return next + 1 > window ? static_cast<std::uint32_t>((next + 1 - window) / block_tokens) : 0;
  }
  // The place of a token in its block. A division for each token would be most of the time of append().
  std::uint32_t offset_of(std::uint32_t token) const noexcept {
    return block_mask != 0 ? token & block_mask : token % block_tokens;
  }
  // The most blocks that a window touches.
  std::uint64_t window_blocks(std::uint32_t group) const noexcept {
    return (std::uint64_t{groups[group].window} + block_tokens - 2) / block_tokens + 1;
  }
  std::uint64_t blocks_of(std::uint64_t tokens) const noexcept { return (tokens + block_tokens - 1) / block_tokens; }
  bool has(GroupKind kind) const noexcept {
    for (const Group& group : groups)
      if (group.kind == kind) return true;
    return false;
  }

  Result<void> check() const BERTH_REQUIRES(mutex);
  Result<void> check_group(std::uint32_t group) const;

  // --- Set once ---
  const AllocatorPtr allocator;
  const std::vector<Group> groups;
  const std::uint32_t group_count;
  const std::uint32_t block_tokens;
  const std::uint32_t block_mask;  // block_tokens - 1 if that is a power of two, otherwise 0
  // One group of kind kFull: node n has page n, which saves a table.
  const bool identity;
  const std::uint64_t most_tokens;  // of a sequence
  const CacheOptions options;       // without the groups, the policy and the queue
  EvictionPolicyPtr policy;
  QueuePtr queue;
  Buffer buffer;
  Window memory{};  // of the whole buffer

  // --- Guarded ---
  mutable Mutex mutex;
  PagePool pool BERTH_GUARDED_BY(mutex);
  internal::kv_cache::BlockTree tree BERTH_GUARDED_BY(mutex);
  internal::kv_cache::Tiers tiers BERTH_GUARDED_BY(mutex);
  std::unique_ptr<internal::kv_cache::CallLog> log BERTH_GUARDED_BY(mutex);        // null: calls are not recorded
  std::unique_ptr<internal::kv_cache::Timeline> timeline BERTH_GUARDED_BY(mutex);  // null: not kept
  std::shared_ptr<internal::kv_cache::PageFrames> frames BERTH_GUARDED_BY(mutex);  // null in the paged way
  struct {
    std::vector<Range> all{};
    std::vector<std::uint32_t> free{};
    std::array<std::size_t, kMostGroups> at{};          // byte of a range at which the group begins
    std::array<std::size_t, kMostGroups> page_bytes{};  // of a page that are mapped
    std::size_t bytes = 0;                              // of a range
  } ranges BERTH_GUARDED_BY(mutex);
  bool moved BERTH_GUARDED_BY(mutex) = false;                  // pages have moved that ranges show at their old places
  std::uint64_t numbered BERTH_GUARDED_BY(mutex) = 0;          // sequences so far
  std::uint64_t taking_for BERTH_GUARDED_BY(mutex) = 0;        // the number of the sequence that takes pages
  std::vector<std::uint64_t> serials BERTH_GUARDED_BY(mutex);  // [node], of cached blocks; empty without tiers
  std::vector<Sequence> sequences BERTH_GUARDED_BY(mutex);
  std::vector<std::uint32_t> closed BERTH_GUARDED_BY(mutex);
  std::uint32_t batch BERTH_GUARDED_BY(mutex) = 0;
  std::uint32_t now BERTH_GUARDED_BY(mutex) = 0;

  std::vector<Page> pages BERTH_GUARDED_BY(mutex);                         // [node][group]; empty if identity
  std::vector<Node> free_nodes BERTH_GUARDED_BY(mutex);                    // empty if identity
  std::vector<std::vector<std::uint32_t>> owners BERTH_GUARDED_BY(mutex);  // [group][page], to move pages
  struct WindowPages {
    std::vector<std::uint32_t> pins{};  // [node]: sequences that have it in their window
    // Cached pages behind every window, and states that are kept, oldest first. They can be evicted without their
    // block. newer[node] == node: not in the list.
    std::vector<Node> older{}, newer{};
    Node oldest = kNoNode, newest = kNoNode;
    std::uint64_t in_use = 0;
  };
  std::vector<WindowPages> windows BERTH_GUARDED_BY(mutex);  // [group]
  PerGroup set_aside BERTH_GUARDED_BY(mutex){};
  std::uint64_t open_count BERTH_GUARDED_BY(mutex) = 0;
  CacheCounters count BERTH_GUARDED_BY(mutex);

  // Scratch of one call, kept so that its memory is.
  std::vector<std::uint32_t> hashes BERTH_GUARDED_BY(mutex);
  std::vector<Node> hits BERTH_GUARDED_BY(mutex);
  std::vector<internal::kv_cache::Tiers::Place> places BERTH_GUARDED_BY(mutex);
  std::vector<std::uint32_t> crossing BERTH_GUARDED_BY(mutex);  // of an append(): sequences that need more than a slot
};

}  // namespace berth::kv
