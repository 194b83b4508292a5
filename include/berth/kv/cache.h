// A paged key-value cache for many sequences on one device. A sequence is a list of blocks of `block_tokens` tokens;
// each block has a page in every group of layers that keeps its tokens. Full blocks form a tree of prefixes: a sequence
// that starts with the tokens of another one uses the same pages. Blocks that no sequence uses stay cached until their
// memory is needed. Any thread may call; calls are serialised. The cache only decides where tokens go: kernels read and
// write the pages, in work that is recorded on queue() or ordered after it.
//
//   open(tokens) -> kernels write the tokens that were not cached -> append(token) -> kernels ... -> close
//
//   sequence A   [ system prompt ][ question ][ answ          a full block can be shared;
//   sequence B   [ system prompt ][ other question ][ a       the last, half-written one is private
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "berth/base/name.h"
#include "berth/base/result.h"
#include "berth/kv/eviction.h"
#include "berth/kv/page_pool.h"
#include "berth/memory/queue.h"
#include "berth/tensor/buffer.h"

namespace berth {
struct MapPanel;
}

namespace berth::kv {

using Token = std::int32_t;

enum class GroupKind : std::uint8_t {
  kFull,    // attention to every token, or one latent for each token (MLA): a page for each block
  kWindow,  // attention to the last `window` tokens: pages behind the window are freed
  kState,   // a state of constant size (SSM, linear attention): one page for each sequence
};

// Layers whose memory is kept in the same way.
struct Group {
  Name name{};
  GroupKind kind = GroupKind::kFull;
  std::size_t bytes_per_token = 0;  // of all layers of the group; not used by kState
  std::size_t state_bytes = 0;      // kState: bytes for each sequence
  std::uint32_t window = 0;         // kWindow: tokens
};

// Slower memory for blocks that are evicted. open() brings back what it finds there. Give an allocator (of the host, or
// of any device that the cache's device reaches), or a folder, in which an unnamed file is created.
struct Tier {
  AllocatorPtr allocator{};
  std::string folder{};    // used if there is no allocator
  std::size_t budget = 0;  // bytes
  Name label{};
};

struct CacheOptions {
  std::vector<Group> groups{};
  std::uint32_t block_tokens = 16;  // 1 to 4,096
  std::size_t budget = 0;           // bytes of pages
  std::size_t alignment = 64;       // of pages
  bool reserve_first_page = false;  // page 0 of each group is never used, so that tables can be padded with it
  EvictionPolicyPtr eviction{};     // null: make_return_eviction()
  // Fastest first. A block that leaves one goes to the next; the last drops it. Not for groups of kind kState.
  std::vector<Tier> tiers{};
  // The contiguous way: not 0 gives each sequence, besides its pages, one range of addresses for this many tokens in
  // each group, behind which its pages are mapped as it grows, so that kernels need no block table: contiguous(). A
  // block must fill whole pages of the device's virtual memory, and `allocator` must be the device itself. CPU and
  // CUDA.
  std::uint64_t contiguous_tokens = 0;
  // When each page was in use is kept for timeline(), for this many uses; 0: it is not.
  std::size_t timeline_uses = 0;
  std::string record_to{};  // the calls are written to this file (kv/recording.h); empty: they are not
  QueuePtr queue{};         // for copies of pages; null: a new queue of the device
  Name label{};
};

// Identifies an open sequence. Never reused while the cache lives.
struct SequenceId {
  std::uint64_t bits = 0;
  friend constexpr bool operator==(SequenceId, SequenceId) = default;
};

struct OpenOptions {
  std::uint64_t salt = 0;  // sequences share blocks only with sequences of the same salt
  // Pages for this many further tokens are set aside, so that appending them cannot be refused. Not included: copies of
  // pages that a fork shares, and pages that leave this sequence's window while others have them in theirs.
  std::uint64_t max_new_tokens = 0;
  // The last token is never taken from the cache, since a model must compute it to continue.
  bool compute_last = true;
  // Milliseconds of any clock that does not go back, for the eviction policy. Absent: the steady clock.
  std::optional<std::uint64_t> now{};
};

struct Opened {
  SequenceId id{};
  std::uint64_t cached_tokens = 0;  // from the front; a multiple of block_tokens. Kernels compute the others.
};

// Whether a sequence can be admitted, and why not.
struct Admission {
  bool fits = false;
  std::uint64_t cached_tokens = 0;
  std::uint64_t bytes_needed = 0;        // pages that it would take, without those it would share with open sequences
  std::uint64_t bytes_free = 0;          // pages that no open sequence uses and none has set aside
  std::uint32_t short_group = 0;         // if it does not fit: the first group that lacks pages
  std::uint64_t sequences_to_close = 0;  // the smallest number of open sequences whose closing would let it in
  SequenceId close_first{};              // one of them: the one that would free most
};

struct CacheCounters {
  struct OfGroup {
    std::uint64_t pages_in_use = 0;     // by open sequences
    std::uint64_t pages_cached = 0;     // by blocks that no open sequence uses
    std::uint64_t pages_set_aside = 0;  // for max_new_tokens
    std::uint64_t capacity = 0;         // if this group had the whole budget
    std::size_t page_bytes = 0;
  };
  std::uint64_t sequences = 0;
  std::uint64_t opened = 0, refused = 0;
  std::uint64_t prompt_tokens = 0;  // of all calls of open()
  std::uint64_t cached_tokens = 0;  // of these, found in the cache
  std::uint64_t tier_tokens = 0;    // of these, brought back from a tier
  std::uint64_t blocks_evicted = 0;
  std::uint64_t pages_copied = 0;     // on a write to a shared page, for states, and to make room
  std::uint64_t tokens_in_use = 0;    // of open sequences, each counted by itself
  std::size_t bookkeeping_bytes = 0;  // on the host, without the tokens
  std::vector<OfGroup> groups{};
  struct OfTier {
    Name label{};
    std::uint64_t blocks = 0;    // that are there now
    std::uint64_t capacity = 0;  // blocks
    std::size_t block_bytes = 0;
    std::uint64_t stored = 0, loaded = 0;  // blocks that came from above, and that were brought back
    std::uint64_t dropped = 0;             // for want of room
    std::uint64_t failed = 0;              // lost by an error of the device or the file
  };
  std::vector<OfTier> tiers{};
};

// The tokens of a sequence in one group, one after the other.
struct ContiguousTokens {
  Buffer tokens{};          // u8, {tokens, bytes_per_token}; {1, state_bytes} for a state
  std::uint64_t first = 0;  // the position of the first of them: that of the window's first block, otherwise 0
};

class Cache {
 public:
  // kInvalidArgument: no group or more than 16; a group without bytes; a window of 0; block_tokens out of range; sizes
  // that overflow; a tier without a place; contiguous_tokens with a block that does not fill whole pages of the device
  // (the message says which block_tokens do). kOutOfMemory: the budget is less than a page of each group, a tier's is
  // less than a block, or an allocator refuses. kUnsupported: tiers with a group of kind kState; contiguous_tokens on a
  // device that cannot map one page at two addresses, or with an allocator that is not the device itself. kIo: a file
  // of a tier or a recording cannot be created. Errors of the device. Requires: allocator is not null.
  static Result<std::unique_ptr<Cache>> make(AllocatorPtr allocator, CacheOptions options);

  // Waits for the queue.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Opens a sequence with the longest cached prefix of `tokens`, and pages for the other tokens. Evicts cached blocks
  // as needed. Copies of blocks from and to tiers are recorded on queue(); a file, and memory that only a queue of its
  // own device reaches, is read and written by this thread. What a tier cannot return counts as not cached.
  // kOutOfMemory if the pages do not fit beside those of open sequences: the message says how many sequences would have
  // to be closed. kInvalidArgument if tokens and max_new_tokens overflow, or are more than contiguous_tokens; in the
  // contiguous way also the errors of mapping. O(tokens). A refused call changes nothing, except that blocks may have
  // been evicted if a driver failed.
  Result<Opened> open(std::span<const Token> tokens, const OpenOptions& options = {});

  // Adds one token to each sequence and writes where its keys and values go: slots[g * sequences + i] is
  // page * block_tokens + offset in group g for sequence i; -1 for groups of kind kState. All of a sequence's earlier
  // tokens count as written. kNotFound: a sequence is not open. kInvalidArgument: a sequence twice. kSizeMismatch:
  // spans of the wrong length. kOutOfMemory as open(); a refused call adds no token. kInvalidArgument also for a
  // sequence of contiguous_tokens tokens. O(sequences); allocates nothing, unless a sequence grows longer than any of
  // its kind was before.
  Result<void> append(std::span<const SequenceId> sequences, std::span<const Token> tokens,
                      std::span<std::int64_t> slots);

  // Adds several tokens to one sequence: a chunk of a prompt, or tokens to be verified. slots[g * tokens + i].
  Result<void> extend(SequenceId sequence, std::span<const Token> tokens, std::span<std::int64_t> slots);

  // Says that kernels that write all tokens of the sequence have been recorded. Full blocks become visible to others,
  // and pages behind windows are freed. append() and extend() do this for the tokens before them. kNotFound.
  Result<void> commit(SequenceId sequence);

  // A second sequence with the same tokens and the same pages. The first write to a shared page copies it. States are
  // copied at once. kNotFound; kOutOfMemory if there is no page for a state. O(blocks).
  Result<SequenceId> fork(SequenceId sequence);

  // Keeps the first `tokens` tokens. kNotFound. kInvalidArgument if there are fewer, or if the pages of a window that
  // ends there have been freed. kUnsupported if the cache has a state and tokens are dropped: a state cannot go back.
  Result<void> truncate(SequenceId sequence, std::uint64_t tokens);

  // Keeps a copy of the states of a sequence with its last block, so that others can continue from there. Only useful
  // with groups of kind kState, where a prefix is found only up to such a place. kInvalidArgument unless the sequence
  // has a whole number of blocks, all committed, or if a fork shares blocks of it that others have cached before.
  // kOutOfMemory.
  Result<void> keep_state(SequenceId sequence);

  // Ends a sequence. Its committed full blocks stay cached. kNotFound, also if it was closed before. O(blocks).
  Result<void> close(SequenceId sequence, std::optional<std::uint64_t> now = {});

  // Whether open(tokens, options) followed by options.max_new_tokens appends would succeed now, if nothing else is
  // opened or appended meanwhile. Exact. Changes nothing. O(tokens).
  Admission can_admit(std::span<const Token> tokens, const OpenOptions& options = {}) const;

  // Drops every block that no open sequence uses, and all blocks of tiers.
  void drop_cached() noexcept;

  // --- Tables for kernels: written into memory of the caller; nothing is allocated ---
  // These fail with kNotFound for a sequence that is not open, kSizeMismatch for spans that are too short, and
  // kInvalidArgument for a group that does not exist.
  // Row i has the pages of sequences[i] in `group`, then `padding` up to `row_pages`. Pages behind a window are
  // `padding` too. A group of kind kState has one page a row.
  Result<void> write_block_table(std::uint32_t group, std::span<const SequenceId> sequences, std::size_t row_pages,
                                 std::span<std::int32_t> table, std::int32_t padding = 0) const;
  // Pages of sequences[i] are indices[indptr[i]] ... indices[indptr[i + 1] - 1], and the last of them has
  // last_page_len[i] tokens (0 if there are none). Returns the number of indices written.
  Result<std::size_t> write_csr(std::uint32_t group, std::span<const SequenceId> sequences,
                                std::span<std::int32_t> indptr, std::span<std::int32_t> indices,
                                std::span<std::int32_t> last_page_len, std::int32_t padding = 0) const;
  // Slots of the tokens [first, first + slots.size()) of a sequence. kInvalidArgument if it has fewer.
  Result<void> write_slots(std::uint32_t group, SequenceId sequence, std::uint64_t first,
                           std::span<std::int64_t> slots) const;
  Result<void> write_seq_lens(std::span<const SequenceId> sequences, std::span<std::int32_t> lengths) const;

  // --- Contiguous addresses: kUnsupported unless CacheOptions::contiguous_tokens is set ---
  // Both map what could not be mapped before, and fail with the error of the device if it cannot be mapped now. Call
  // one of them before the kernels of a step, as you would write a block table. The address of a sequence stays the
  // same until it is closed; then it may become that of another one.

  // The tokens of a sequence. Only these have memory, so ask again when it has grown. kNotFound; kInvalidArgument for a
  // group that does not exist.
  Result<ContiguousTokens> contiguous(std::uint32_t group, SequenceId sequence) const;
  // The address of the first token of each sequence; token t is at t * bytes_per_token. Tokens behind a window have no
  // memory. Errors as those of the tables. O(sequences).
  Result<void> write_addresses(std::uint32_t group, std::span<const SequenceId> sequences,
                               std::span<std::uint64_t> addresses) const;

  // --- Memory ---
  // The memory of all pages. Page p of a group is at p * page_bytes(group).
  const Buffer& buffer() const noexcept;
  // The pages of a group as a buffer of shape {pages, page_bytes}.
  Result<Buffer> pages(std::uint32_t group) const;
  std::size_t page_bytes(std::uint32_t group) const noexcept;
  std::uint32_t block_tokens() const noexcept;
  Queue& queue() const noexcept;

  Result<std::uint64_t> length(SequenceId sequence) const;
  CacheCounters counters() const;
  // When each page was in use, and which sequence took it, for the memory map (plan/memory_map.h); time is the number
  // of calls. Sequences are numbered as they were opened, from 0. Without CacheOptions::timeline_uses it is empty.
  // O(uses).
  MapPanel timeline() const;
  // Writes what is recorded so far to the file of CacheOptions::record_to. kIo if a write failed, now or earlier;
  // recording ends then, and the cache continues to work.
  Result<void> flush_recording();
  // Compares all of the structure with itself: references, lists, index, pages and counts. kInvalidData names the first
  // contradiction. O(blocks + sequences' blocks).
  Result<void> check() const;

 private:
  class State;
  explicit Cache(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace berth::kv
