#include "berth/alloc/linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alloc/caching_pool/biased_lock.h"
#include "base/round_up.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/device.h"
#include "berth/memory/out_of_memory.h"
#include "memory/check_alignment.h"
#include "memory/movable.h"
#include "memory/zero_block.h"

namespace berth {
using namespace internal;
namespace {

// A number per thread that is never used again, unlike the address of a thread-local variable.
[[gnu::tls_model("initial-exec")]] constinit thread_local std::uint64_t thread_number = 0;

std::uint64_t number_of_thread() noexcept {
  static std::atomic<std::uint64_t> last{0};
  if (thread_number == 0) thread_number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return thread_number;
}

// Positions are multiples of this, so that blocks follow each other without gaps and a release in order is seen as one.
constexpr std::uint64_t kGranule = 64;

// Parts of an object begin at multiples of this, which kernels can bind.
constexpr std::size_t kPartGranule = 256;
// Slabs that are objects are so far apart in the numbers that serve as addresses.
constexpr unsigned kObjectBits = 42;

// 0 for sizes that no memory has.
constexpr std::uint64_t in_granules(std::uint64_t bytes) noexcept {
  return (bytes + kGranule - 1) & ~(kGranule - 1);
}

// The latest timepoint of each timeline.
class Uses {
 public:
  void add(Timepoint use) {
    for (Timepoint& each : latest_)
      if (each.timeline() == use.timeline()) {
        each = std::max(each, use, [](Timepoint a, Timepoint b) { return a.value() < b.value(); });
        return;
      }
    latest_.push_back(use);
  }
  void add(const Uses& other) {
    for (const Timepoint use : other.latest_) add(use);
  }
  bool are_over() noexcept {
    std::erase_if(latest_, [](Timepoint use) { return is_reached(use); });
    return latest_.empty();
  }
  // Leaves one at most, which the layer below can wait for itself.
  Timepoint wait_for_all_but_one() noexcept {
    static_cast<void>(are_over());
    if (latest_.empty()) return {};
    for (std::size_t i = 1; i < latest_.size(); ++i) static_cast<void>(wait(latest_[i]));
    return latest_.front();
  }

 private:
  std::vector<Timepoint> latest_;
};

struct Slab {
  Block block;
  std::uint64_t base;  // of the addresses in it: its handle, or a number of its own where a handle is an object
  Uses uses{};         // only of slabs that are set aside
};

struct Position {
  std::size_t slabs = 0;  // in use; the last of them is the current one
  std::uint64_t at = 0;
};

// The slabs for one kind of host access. On CUDA, each kind is other memory.
struct Lane {
  std::uint64_t at = 0, base = 0, end = 0;  // the rest of the current slab is [at, end)
  std::uint64_t to_host = 0;                // host address minus handle
  BlockFlags flags = BlockFlags::kNone;
  std::uint64_t host_mask = 0;  // all bits, or none where the host has no pointer
  std::uint64_t tail = 0;       // the last 8 bytes of a block, without its label and usage
  std::size_t in_use = 0;
  std::vector<Slab> slabs;  // the first `in_use` are in use, the others are empty

  void move_to(Position position) noexcept {
    in_use = position.slabs;
    if (in_use == 0) {
      at = base = end = 0;
      return;
    }
    const Block& block = slabs[in_use - 1].block;
    base = slabs[in_use - 1].base;
    end = base + (block.bytes & ~(kGranule - 1));
    at = std::min(position.at, end);  // the end of a slab may lie behind its last whole granule
    host_mask = block.host != nullptr ? ~std::uint64_t{0} : 0;
    to_host = reinterpret_cast<std::uint64_t>(block.host) - base;
    flags = block.flags;
  }
};

constexpr std::size_t kLanes = 3;
constexpr unsigned kLaneBits = 2;
constexpr std::uint32_t kMostLevels = std::uint32_t{1} << (32 - kLaneBits);

// What was allocated between one mark and the next.
struct Level {
  std::uint64_t serial = 0;
  std::size_t live = 0;
  std::size_t waiting_bytes = 0;
  std::size_t waiting_count = 0;
  std::array<Position, kLanes> start{};
  Uses uses{};  // of released blocks
};

// Where blocks are objects, a buffer can be a part of one, because its window says where it begins. Blocks without a
// buffer are objects of their own there. Nothing ever moves: of a Mover, this is only the way to hand out parts.
class Linear final : public LinearMemory, private Mover {
 public:
  Linear(AllocatorPtr inner, LinearOptions options)
      : LinearMemory(std::move(inner)),
        slab_bytes_(std::max<std::size_t>(kGranule, options.slab_bytes)),
        label_(options.label),
        is_object_(device().dlpack_place({}).is_object),
        part_granule_(std::max<std::size_t>(kPartGranule, device().limits().binding_alignment)),
        divides_(!is_object_) {
    top_ = &levels_.emplace_back();
  }

  ~Linear() override {
    // Nothing is live, but released blocks of any level may still be in use.
    Uses uses;
    for (Level& level : levels_) uses.add(level.uses);
    const Timepoint last = uses.wait_for_all_but_one();
    for (Lane& lane : lanes_)
      for (const Slab& slab : lane.slabs) this->inner()->release(slab.block, last);
    for (auto& slabs : set_aside_)
      for (Slab& slab : slabs) this->inner()->release(slab.block, slab.uses.wait_for_all_but_one());
  }

  Result<Block> allocate(const BlockSpec& spec) override {
    if (enter()) [[likely]] {
      Lane& lane = lanes_[static_cast<std::size_t>(spec.host)];
      // Positions are multiples of the usual alignment.
      if (spec.alignment == kGranule && in_granules(spec.bytes) - 1 < lane.end - lane.at && !spec.zero) [[likely]] {
        auto block = bump(lane, spec, 0);
        lock_.leave();
        return block;
      }
      lock_.leave();
    }
    return allocate_slowly(spec);
  }

  void release(const Block& block, Timepoint last_use) noexcept override {
    if (last_use.bits == 0 && block.bytes != 0 && enter()) [[likely]] {
      const bool is_over = block.key >> kLaneBits == top_index_ && give_up(block, true);
      lock_.leave();
      if (is_over) [[likely]]
        return;
    }
    release_slowly(block, last_use);
  }

  Mover* mover() noexcept override { return is_object_ ? this : nullptr; }

  Mark mark() override {
    const MutexLock lock(mutex_);
    take_over();
    if (top_->live == 0 && top_->uses.are_over()) {
      rewind();
      return {top_index_, top_->serial};
    }
    if (levels_.size() < kMostLevels) {
      Level level{.serial = ++last_serial_};
      for (std::size_t i = 0; i < kLanes; ++i) level.start[i] = {lanes_[i].in_use, lanes_[i].at};
      top_ = &levels_.emplace_back(std::move(level));
      top_index_ = static_cast<std::uint32_t>(levels_.size() - 1);
      set_tails();
    }
    return {top_index_, top_->serial};
  }

  Result<void> reset(Mark mark) override {
    const MutexLock lock(mutex_);
    take_over();
    if (mark.level >= levels_.size() || levels_[mark.level].serial != mark.serial)
      return Error(Code::kInvalidUsage, Layer::kAllocator,
                   "the mark is no longer valid: a reset to an earlier mark has passed it, or it is of another "
                   "allocator");
    std::size_t live = 0;
    for (std::size_t i = mark.level; i < levels_.size(); ++i) live += levels_[i].live;
    if (live > 0)
      return Error(Code::kInvalidUsage, Layer::kAllocator,
                   "{} blocks that were allocated after the mark are still live; release them before the reset", live);
    Level& target = levels_[mark.level];
    for (std::size_t i = mark.level + 1; i < levels_.size(); ++i) {
      target.uses.add(levels_[i].uses);
      target.waiting_bytes += levels_[i].waiting_bytes;
      target.waiting_count += levels_[i].waiting_count;
    }
    levels_.resize(mark.level + 1);
    top_ = &levels_.back();
    top_index_ = mark.level;
    if (top_->uses.are_over())
      rewind();
    else
      set_aside();
    return {};
  }

  LinearCounters counters() const override {
    const MutexLock lock(mutex_);
    take_over();
    LinearCounters result{
        .live_bytes = live_bytes_, .peak_bytes = std::max(peak_bytes_, live_bytes_), .out_of_order = out_of_order_};
    for (const Level& level : levels_) {
      result.live_count += level.live;
      result.waiting_bytes += level.waiting_bytes;
      result.waiting_count += level.waiting_count;
    }
    const auto count = [&](const std::vector<Slab>& slabs, std::size_t& bytes) {
      for (const Slab& slab : slabs) bytes += slab.block.bytes;
      result.slabs += slabs.size();
    };
    for (const auto& slabs : set_aside_) count(slabs, result.set_aside_bytes);
    result.held_bytes = result.set_aside_bytes;
    for (const Lane& lane : lanes_) count(lane.slabs, result.held_bytes);
    return result;
  }

  std::size_t trim(std::size_t keep_bytes) noexcept override {
    std::size_t given = 0;
    {
      const MutexLock lock(mutex_);
      take_over();
      std::size_t live = 0;
      bool are_over = true;
      for (Level& level : levels_) {
        live += level.live;
        are_over = level.uses.are_over() && are_over;
      }
      if (live == 0 && are_over) {
        // Every mark is the beginning now.
        for (Level& level : levels_) {
          level.waiting_bytes = level.waiting_count = 0;
          level.start = {};
        }
        rewind();
      }
      std::size_t cached = 0;
      for (const Lane& lane : lanes_)
        for (std::size_t i = lane.in_use; i < lane.slabs.size(); ++i) cached += lane.slabs[i].block.bytes;
      const auto give = [&](const Slab& slab) {
        this->inner()->release(slab.block);
        given += slab.block.bytes;
      };
      for (Lane& lane : lanes_)
        while (cached > keep_bytes && lane.slabs.size() > lane.in_use) {
          cached -= lane.slabs.back().block.bytes;
          give(lane.slabs.back());
          lane.slabs.pop_back();
        }
      for (auto& slabs : set_aside_)
        std::erase_if(slabs, [&](Slab& slab) {
          const bool is_over = slab.uses.are_over();
          if (is_over) give(slab);
          return is_over;
        });
    }
    return given + this->inner()->trim(keep_bytes);
  }

  void explain(OutOfMemory& report) const override {
    const LinearCounters now = counters();
    if (now.held_bytes > 0) {
      report.cached_bytes += now.held_bytes - std::min(now.held_bytes, now.live_bytes);
      if (report.live_count == 0) {
        report.live_bytes = now.live_bytes;
        report.live_count = now.live_count;
        report.peak_bytes = now.peak_bytes;
      }
    }
    this->inner()->explain(report);
  }

 private:
  // True if this thread owns the allocator; it must then call lock_.leave(). Never true where blocks are not divided.
  bool enter() noexcept { return owner_.load(std::memory_order_relaxed) == thread_number && lock_.enter(this); }

  // Makes this call the only one. The first thread that comes here owns the allocator from then on; when another comes,
  // the ownership ends.
  void take_over() const noexcept BERTH_REQUIRES(mutex_) {
    if (is_shared_) return;
    const std::uint64_t me = number_of_thread();
    const std::uint64_t owner = owner_.load(std::memory_order_relaxed);
    if (owner == me) return;
    if (owner == 0 && divides_ && BiasedLock::is_usable()) {
      owner_.store(me, std::memory_order_relaxed);
      lock_.open(this);
      return;
    }
    is_shared_ = true;
    if (owner == 0) return;
    lock_.close();
    BiasedLock::barrier();
    lock_.await_owner();
  }

  // The block is written in two halves of 16 bytes. A caller that copies it reads such halves, and a processor is slow
  // to read a half that was written in pieces. Requires: the lane has room.
  Result<Block> bump(Lane& lane, const BlockSpec& spec, std::uint64_t padding) noexcept {
    using Half = std::uint64_t __attribute__((vector_size(16)));
    static_assert(2 * sizeof(Half) == sizeof(Block) && offsetof(Block, host) == 8 && offsetof(Block, bytes) == 16 &&
                  offsetof(Block, label) == 24 && offsetof(Block, flags) == 26 && offsetof(Block, usage) == 27 &&
                  offsetof(Block, key) == 28 && std::endian::native == std::endian::little);
    const std::uint64_t start = lane.at + padding;
    lane.at = start + in_granules(spec.bytes);
    ++top_->live;
    live_bytes_ += spec.bytes;
    const std::uint64_t tail = lane.tail | static_cast<std::uint64_t>(spec.usage) << 24 | spec.label.id();
    const Half first{start, (start + lane.to_host) & lane.host_mask};
    const Half second{spec.bytes, tail};
    Result<Block> result = Block{};
    auto* const bytes = reinterpret_cast<std::byte*>(&*result);
    std::memcpy(bytes, &first, sizeof(Half));
    std::memcpy(bytes + sizeof(Half), &second, sizeof(Half));
    return result;
  }

  // Called when the newest level or the current slab of a lane has changed.
  void set_tails() noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t key = std::uint64_t{top_index_} << kLaneBits | i;
      lanes_[i].tail = key << 32 | static_cast<std::uint64_t>(lanes_[i].flags) << 16;
    }
  }

  // Ends the life of a block of the newest level. False, and nothing was done, if it is the last live block of the
  // level and bytes wait for that, and `quick` is set.
  bool give_up(const Block& block, bool quick) noexcept {
    Lane& lane = lanes_[block.key & ((1u << kLaneBits) - 1)];
    const bool is_newest = block.handle + in_granules(block.bytes) == lane.at && block.handle >= lane.base;
    if (top_->live == 1 && quick && (top_->waiting_count != 0 || !is_newest)) return false;
    --top_->live;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    live_bytes_ -= block.bytes;
    if (is_newest)
      lane.at = block.handle;
    else
      note_waiting(*top_, block);
    return true;
  }

  void note_waiting(Level& level, const Block& block) noexcept {
    level.waiting_bytes += block.bytes;
    ++level.waiting_count;
    ++out_of_order_;
  }

  // Not part of the quick path, which saves no registers as long as it makes no calls but this one.
  [[gnu::noinline]] Result<Block> allocate_slowly(const BlockSpec& spec) {
    BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
    if (spec.bytes == 0) return Block{.label = spec.label, .usage = spec.usage};
    Block block;
    {
      const MutexLock lock(mutex_);
      take_over();
      if (divides_) {
        Lane& lane = lanes_[static_cast<std::size_t>(spec.host)];
        std::uint64_t padding = (0 - lane.at) & (spec.alignment - 1);
        const std::uint64_t room = lane.end - lane.at, size = in_granules(spec.bytes);
        if (size - 1 >= room || padding > room - size) {
          BERTH_TRY(next_slab(lane, spec));
          padding = (0 - lane.at) & (spec.alignment - 1);
        }
        if (divides_) block = *bump(lane, spec, padding);
      }
      if (!divides_) return allocate_whole(spec);
    }
    if (!spec.zero) return block;
    if (block.has(BlockFlags::kHostTransfer)) {
      std::memset(block.host, 0, block.bytes);
      return block;
    }
    if (auto zeroed = zero_block(device(), block, block.bytes); !zeroed) {
      release(block, {});
      return zeroed.error();
    }
    return block;
  }

  // --- Mover: parts of objects ---

  Result<Block> allocate_movable(const BlockSpec& spec, std::uint64_t& start) override {
    start = 0;
    BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
    const BlockSpec place{.bytes = round_up(spec.bytes, part_granule_), .alignment = part_granule_, .host = spec.host};
    if (spec.bytes == 0 || spec.alignment > part_granule_ || place.bytes < spec.bytes) return allocate(spec);
    Block block{.bytes = spec.bytes, .label = spec.label, .usage = spec.usage};
    {
      const MutexLock lock(mutex_);
      take_over();
      if (free_parts_.empty()) {
        // A release must find room for its number.
        if (free_parts_.capacity() <= parts_.size()) free_parts_.reserve(2 * parts_.size() + 1);
        parts_.emplace_back();
        free_parts_.push_back(static_cast<std::uint32_t>(parts_.size() - 1));
      }
      Lane& lane = lanes_[static_cast<std::size_t>(spec.host)];
      if (place.bytes > lane.end - lane.at) BERTH_TRY(next_slab(lane, place));
      const Block taken = *bump(lane, place, 0);
      block.key = free_parts_.back();
      free_parts_.pop_back();
      parts_[block.key] = taken;
      const Block& slab = lane.slabs[lane.in_use - 1].block;
      block.handle = slab.handle;
      block.host = slab.host;
      block.flags = slab.flags | kPart;
      start = taken.handle - lane.base;
    }
    if (!spec.zero) return block;
    if (auto zeroed = zero_block(device(), block, spec.bytes, start); !zeroed) {
      release(block, {});
      return zeroed.error();
    }
    return block;
  }
  bool enlist(const Block& block, std::size_t, MovableOwner&) noexcept override { return block.has(kPart); }
  Result<void> complete(MovableOwner&) override { return {}; }

  static bool fits(const Slab& slab, const BlockSpec& spec) noexcept {
    const std::uint64_t padding = (0 - slab.base) & (spec.alignment - 1);
    const std::uint64_t room = slab.block.bytes & ~(kGranule - 1), size = in_granules(spec.bytes);
    return size - 1 < room && padding <= room - size;
  }

  // Makes a slab in which the request fits the current one: an empty one, one that was set aside, or a new one.
  Result<void> next_slab(Lane& lane, const BlockSpec& spec) BERTH_REQUIRES(mutex_) {
    if (lane.in_use == lane.slabs.size() || !fits(lane.slabs[lane.in_use], spec)) {
      lane.slabs.reserve(lane.slabs.size() + 1);
      const auto place = lane.slabs.begin() + static_cast<std::ptrdiff_t>(lane.in_use);
      auto& aside = set_aside_[static_cast<std::size_t>(spec.host)];
      const auto ready = std::find_if(aside.begin(), aside.end(),
                                      [&](Slab& slab) { return fits(slab, spec) && slab.uses.are_over(); });
      if (ready != aside.end()) {
        lane.slabs.insert(place, std::move(*ready));
        aside.erase(ready);
      } else {
        BERTH_TRY_ASSIGN(const Block block, new_slab(spec));
        const DlpackPlace at = device().dlpack_place(block);
        if (!is_object_ && (at.is_object || at.data != block.handle || block.handle == 0)) {
          this->inner()->release(block);
          divides_ = false;
          return {};
        }
        lane.slabs.insert(place, Slab{block, is_object_ ? ++objects_ << kObjectBits : block.handle});
      }
    }
    lane.move_to({lane.in_use + 1, lane.slabs[lane.in_use].base});
    set_tails();
    return {};
  }

  Result<Block> new_slab(const BlockSpec& spec) {
    const std::size_t least = std::max<std::size_t>(spec.bytes, in_granules(spec.bytes));
    BlockSpec slab{.bytes = std::max(slab_bytes_, least),
                   .alignment = std::max<std::size_t>(kGranule, spec.alignment),
                   .usage = Usage::kAll,
                   .host = spec.host,
                   .label = label_};
    auto block = this->inner()->allocate(slab);
    if (!block && block.error().code() == Code::kOutOfMemory && slab.bytes > least) {
      // Memory is short: the request alone may still fit.
      slab.bytes = least;
      if (auto exact = this->inner()->allocate(slab)) return exact;
    }
    return block;
  }

  // For devices whose blocks are objects.
  Result<Block> allocate_whole(const BlockSpec& spec) BERTH_REQUIRES(mutex_) {
    is_shared_ = true;
    lock_.close();
    auto block = this->inner()->allocate(spec);
    if (!block) return block;
    whole_.emplace(block->handle, top_index_);
    ++top_->live;
    live_bytes_ += block->bytes;
    return block;
  }

  [[gnu::noinline]] void release_slowly(const Block& block, Timepoint last_use) noexcept {
    if (block.bytes == 0) return;
    const bool in_use = !is_reached(last_use);
    bool is_whole = false;
    {
      const MutexLock lock(mutex_);
      take_over();
      if (block.has(kPart)) {
        release_divided(parts_[block.key], last_use, in_use);
        free_parts_.push_back(block.key);
        return;
      }
      is_whole = !divides_;
      if (is_whole) {
        const auto at = whole_.find(block.handle);
        if (at == whole_.end()) return;
        --levels_[at->second].live;
        whole_.erase(at);
        peak_bytes_ = std::max(peak_bytes_, live_bytes_);
        live_bytes_ -= block.bytes;
      } else {
        release_divided(block, last_use, in_use);
      }
    }
    if (is_whole) this->inner()->release(block, last_use);
  }

  void release_divided(const Block& block, Timepoint last_use, bool in_use) noexcept BERTH_REQUIRES(mutex_) {
    const std::uint32_t index = block.key >> kLaneBits;
    Level& level = levels_[index];
    if (in_use) {
      try {
        level.uses.add(last_use);
      } catch (...) {
        // No memory to store the use. Waiting is slow, but always correct.
        static_cast<void>(wait(last_use));
      }
    }
    if (index == top_index_ && !in_use) {
      static_cast<void>(give_up(block, false));
    } else {
      --level.live;
      peak_bytes_ = std::max(peak_bytes_, live_bytes_);
      live_bytes_ -= block.bytes;
      note_waiting(level, block);
    }
    if (top_->live == 0 && top_->waiting_count > 0 && top_->uses.are_over()) rewind();
  }

  // Back to the newest mark. Requires: nothing after it is live or in use.
  void rewind() noexcept {
    for (std::size_t i = 0; i < kLanes; ++i) lanes_[i].move_to(top_->start[i]);
    set_tails();
    top_->waiting_bytes = top_->waiting_count = 0;
  }

  // Back to the newest mark, without the memory that submitted work uses: whole slabs are put aside, and the slab of
  // the mark goes on behind them until a later reset.
  void set_aside() {
    for (std::size_t i = 0; i < kLanes; ++i) {
      Lane& lane = lanes_[i];
      const std::size_t stays = top_->start[i].slabs;
      if (lane.in_use <= stays) continue;
      for (std::size_t s = stays; s < lane.in_use; ++s) {
        lane.slabs[s].uses = top_->uses;
        set_aside_[i].push_back(std::move(lane.slabs[s]));
      }
      lane.slabs.erase(lane.slabs.begin() + static_cast<std::ptrdiff_t>(stays),
                       lane.slabs.begin() + static_cast<std::ptrdiff_t>(lane.in_use));
      lane.move_to({stays, stays == 0 ? 0 : lane.slabs[stays - 1].base + lane.slabs[stays - 1].block.bytes});
    }
    set_tails();
  }

  // What the owner uses without the mutex. Others change it only after take_over().
  mutable std::atomic<std::uint64_t> owner_{0};
  mutable BiasedLock lock_;
  std::array<Lane, kLanes> lanes_{};
  Level* top_ = nullptr;
  std::uint32_t top_index_ = 0;
  std::size_t live_bytes_ = 0, peak_bytes_ = 0;
  std::uint64_t out_of_order_ = 0;

  const std::size_t slab_bytes_;
  const Name label_;
  const bool is_object_;  // blocks of the device are objects
  const std::size_t part_granule_;
  mutable Mutex mutex_;  // held by everything but the owner's quick paths
  mutable bool is_shared_ BERTH_GUARDED_BY(mutex_) = false;
  bool divides_;  // constant after the first slab
  std::deque<Level> levels_;
  std::uint64_t last_serial_ = 0;
  std::array<std::vector<Slab>, kLanes> set_aside_{};
  std::unordered_map<std::uint64_t, std::uint32_t> whole_{};  // level by handle
  std::uint64_t objects_ = 0;                                 // slabs that are objects, so far
  std::vector<Block> parts_{};                                // of objects, by key: as where blocks are addresses
  std::vector<std::uint32_t> free_parts_{};                   // has room for every key
};

}  // namespace

std::shared_ptr<LinearMemory> make_linear(AllocatorPtr inner, LinearOptions options) {
  return std::make_shared<Linear>(std::move(inner), options);
}

}  // namespace berth
