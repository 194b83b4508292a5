#include "remote/shard_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/try.h"
#include "base/utf8.h"
#include "berth/memory/registry.h"

namespace berth::internal {
namespace {

// Pieces that are read or sent at one time.
constexpr std::size_t kSlots = 3;

Error cancelled() {
  return Error(Code::kCancelled, Layer::kFormat, "loading was cancelled; nothing was kept");
}

// Ranks whose plans differ would write over each other.
std::uint64_t fingerprint(const ShardPlan& plan) {
  Checksum sum;
  const auto add = [&sum](std::uint64_t number) { sum.add(std::as_bytes(std::span(&number, 1))); };
  add(plan.ranks());
  add(plan.parts());
  add(plan.options().piece_bytes);
  add(plan.options().alignment);
  for (const ShardPlan::Tensor& tensor : plan.tensors()) {
    add(tensor.name.size());
    sum.add(tensor.name);
    for (const std::uint64_t number :
         {tensor.file_offset, tensor.bytes, tensor.outer, tensor.units, tensor.unit_bytes, tensor.target_offset,
          std::uint64_t{tensor.axis}, std::uint64_t{tensor.file}, std::uint64_t{tensor.owner},
          static_cast<std::uint64_t>(tensor.dtype), std::uint64_t{tensor.split}})
      add(number);
  }
  return sum.value();
}

// The memory of this rank that others write to, and the buffers of the caller.
struct Target {
  Buffer memory;        // on the host, that of the caller if it is host memory
  bool staged = false;  // the buffers are elsewhere, and get a copy
};

Result<Target> make_target(const ShardPlan& plan, std::uint32_t rank, const AllocatorPtr& allocator) {
  if (allocator == nullptr) return Error(Code::kInvalidArgument, Layer::kFormat, "load needs a device or an allocator");
  const std::size_t bytes = std::max<std::uint64_t>(plan.memory_bytes(rank), 1);
  const BufferOptions options{.label = "sharded weights", .alignment = plan.options().alignment};
  if (has(allocator->expected_flags({.bytes = bytes}), BlockFlags::kHostTransfer)) {
    BERTH_TRY_ASSIGN(Buffer memory, Buffer::allocate(allocator, DType::kU8, {bytes}, options));
    return Target{.memory = std::move(memory)};
  }
  BERTH_TRY_ASSIGN(const DevicePtr host, berth::device("CPU"));
  BERTH_TRY_ASSIGN(Buffer memory, Buffer::allocate(host, DType::kU8, {bytes}, options));
  return Target{.memory = std::move(memory), .staged = true};
}

// The caller's buffers, when the memory is complete.
Result<ShardedTensors> finished(const ShardPlan& plan, std::uint32_t rank, const Target& target,
                                const AllocatorPtr& allocator) {
  ShardedTensors made{.plan = plan};
  made.buffers.resize(plan.tensors().size());
  for (std::size_t index = 0; index < plan.tensors().size(); ++index) {
    const Shard shard = plan.shard(index, rank);
    const ShardPlan::Tensor& tensor = plan.tensors()[index];
    if (tensor.owner != ShardPlan::kAll && tensor.owner != rank % plan.parts()) continue;
    BERTH_TRY_ASSIGN(const Shape shape, Shape::make(shard.shape));
    BERTH_TRY_ASSIGN(Buffer view, target.memory.view(shard.offset, tensor.dtype, shape));
    if (!target.staged) {
      made.buffers[index] = std::move(view);
      continue;
    }
    BERTH_TRY_ASSIGN(made.buffers[index],
                     Buffer::allocate(allocator, tensor.dtype, shape, {.label = "sharded weights"}));
    if (shard.bytes > 0) BERTH_TRY(made.buffers[index].copy_from(view));
  }
  return made;
}

// The tensors of these names, in the order of the file; all if there are none.
Result<std::vector<TensorInfo>> chosen(const WeightFile& file, std::span<const std::string> names) {
  std::vector<TensorInfo> tensors(file.tensors().begin(), file.tensors().end());
  if (names.empty()) return tensors;
  const std::set<std::string_view> wanted(names.begin(), names.end());
  for (const std::string_view name : wanted)
    if (file.find(name) == nullptr)
      return Error::with_text(Code::kNotFound, Layer::kFormat,
                              fmt::format("the file has no tensor {} to load", quoted(name)));
  std::erase_if(tensors, [&](const TensorInfo& tensor) { return !wanted.contains(tensor.name); });
  return tensors;
}

Window part_of(const Window& whole, std::uint64_t offset, std::uint64_t bytes) {
  Window part = whole;
  part.offset += offset;
  part.bytes = bytes;
  return part;
}

class Loader {
 public:
  Loader(ShardTransport& transport, const ShardPlan& plan, const ShardedLoadOptions& options)
      : transport_(transport), plan_(plan), options_(options) {}

  // Staging memory for reads; not needed to reshard.
  Result<void> prepare() {
    BERTH_TRY_ASSIGN(const DevicePtr host, berth::device("CPU"));
    const auto [begin, end] = plan_.reads(transport_.rank());
    const std::size_t slots = std::min<std::uint64_t>(kSlots, end - begin);
    for (std::size_t i = 0; i < slots; ++i) {
      Slot& slot = slots_[i];
      for (Window* window : {&slot.read, &slot.packed}) {
        BERTH_TRY_ASSIGN(const Buffer staging, Buffer::allocate(host, DType::kU8, {plan_.options().piece_bytes},
                                                                {.label = "sharded staging"}));
        BERTH_TRY_ASSIGN(*window, staging.window());
        staging_.push_back(staging);
      }
    }
    return {};
  }

  Result<void> load(const WeightFile& file, const Window& own) {
    const auto [begin, end] = plan_.reads(transport_.rank());
    LoadProgress progress;
    std::set<std::uint32_t> targets;
    for (std::uint64_t number = begin; number < end; ++number) {
      progress.bytes_total += plan_.piece(number).bytes;
      plan_.for_each_put(number, [&](const ShardPut& put) { targets.insert(put.target); });
    }
    // Before anything is sent: later, each question waits behind the bytes on the link.
    targets.erase(transport_.rank());
    for (const std::uint32_t target : targets) BERTH_TRY(transport_.reach(target));
    for (std::uint64_t number = begin; number < end; ++number) {
      if (options_.cancel.stop_requested()) return cancelled();
      Slot& slot = slots_[(number - begin) % kSlots];
      if (slot.mark) BERTH_TRY(transport_.wait(*slot.mark));
      slot.mark.reset();
      const ShardPiece piece = plan_.piece(number);
      BERTH_TRY(file.read(piece.file, piece.offset, slot.read.host_bytes().first(piece.bytes)));
      BERTH_TRY(send(number, piece, slot, own));
      BERTH_TRY_ASSIGN(slot.mark, transport_.mark());
      progress.bytes_done += piece.bytes;
      if (options_.progress && !options_.progress(progress)) return cancelled();
    }
    return drain();
  }

  Result<void> drain() {
    for (Slot& slot : slots_)
      if (slot.mark) BERTH_TRY(transport_.wait(*std::exchange(slot.mark, std::nullopt)));
    return {};
  }

 private:
  struct Slot {
    Window read, packed;
    std::optional<std::uint64_t> mark;
  };

  Result<void> send(std::uint64_t number, const ShardPiece& piece, Slot& slot, const Window& own) {
    Result<void> sent;
    std::uint64_t packed_bytes = 0;
    ShardPut packed{};  // what was packed last, and where: replicas get the same bytes
    Window source;
    plan_.for_each_put(number, [&](const ShardPut& put) {
      if (!sent) return;
      if (put.target == transport_.rank()) {
        std::byte* to = own.host_bytes().data() + put.offset;
        put.for_each_run([&](std::uint64_t offset, std::uint64_t bytes) {
          std::memcpy(to, slot.read.host_bytes().data() + (offset - piece.offset), bytes);
          to += bytes;
        });
        return;
      }
      if (put.first_bytes == put.bytes) {
        sent = transport_.put(put.target, put.offset, part_of(slot.read, put.first - piece.offset, put.bytes));
        return;
      }
      if (packed.tensor != put.tensor || packed.first != put.first || packed.bytes != put.bytes) {
        std::byte* to = slot.packed.host_bytes().data() + packed_bytes;
        put.for_each_run([&](std::uint64_t offset, std::uint64_t bytes) {
          std::memcpy(to, slot.read.host_bytes().data() + (offset - piece.offset), bytes);
          to += bytes;
        });
        packed = put;
        source = part_of(slot.packed, packed_bytes, put.bytes);
        packed_bytes += put.bytes;
      }
      sent = transport_.put(put.target, put.offset, source);
    });
    return sent;
  }

  ShardTransport& transport_;
  const ShardPlan& plan_;
  const ShardedLoadOptions& options_;
  std::vector<Buffer> staging_;
  std::array<Slot, kSlots> slots_{};
};

// The shards of one rank in one buffer, at the offsets of the plan.
Result<Window> gathered(const ShardedTensors& tensors, std::uint32_t rank, Buffer& memory) {
  BERTH_TRY_ASSIGN(const DevicePtr host, berth::device("CPU"));
  const std::size_t bytes = std::max<std::uint64_t>(tensors.plan.memory_bytes(rank), 1);
  BERTH_TRY_ASSIGN(memory, Buffer::allocate(host, DType::kU8, {bytes}, {.label = "sharded staging"}));
  for (std::size_t index = 0; index < tensors.buffers.size(); ++index) {
    const Shard shard = tensors.plan.shard(index, rank);
    if (shard.bytes == 0) continue;
    const Buffer& buffer = tensors.buffers[index];
    BERTH_TRY_ASSIGN(const Buffer place, memory.view(shard.offset, buffer.dtype(), buffer.shape()));
    BERTH_TRY(place.copy_from(buffer));
  }
  return memory.window();
}

Result<void> check_reshard(const ShardTransport& transport, const ShardedTensors& from, const ShardPlan& to) {
  if (to.ranks() != transport.ranks() || from.plan.ranks() != transport.ranks())
    return Error(Code::kInvalidArgument, Layer::kFormat,
                 "plans for {} and {} ranks cannot be used by a cluster of {}; make them for all its ranks, with fewer "
                 "parts if fewer should hold the tensors",
                 from.plan.ranks(), to.ranks(), transport.ranks());
  if (from.buffers.size() != from.plan.tensors().size())
    return Error(Code::kInvalidArgument, Layer::kFormat, "there are {} buffers for a plan of {} tensors",
                 from.buffers.size(), from.plan.tensors().size());
  for (std::size_t index = 0; index < from.buffers.size(); ++index)
    if (const Shard shard = from.plan.shard(index, transport.rank());
        shard.bytes > 0 && from.buffers[index].size() != shard.bytes)
      return Error(Code::kInvalidArgument, Layer::kFormat, "the buffer of tensor {} has {} bytes, its shard has {}",
                   index, from.buffers[index].size(), shard.bytes);
  return {};
}

}  // namespace

Result<ShardedTensors> load_sharded(ShardTransport& transport, const WeightFile& file, std::span<const ShardRule> rules,
                                    const AllocatorPtr& allocator, const ShardedLoadOptions& options) {
  // Every failure on the way is told to the others: they would wait for this rank.
  ShardPlan plan;
  Target target;
  std::optional<Loader> loader;
  const auto prepare = [&]() -> Result<void> {
    if (options.cancel.stop_requested()) return cancelled();
    BERTH_TRY_ASSIGN(const std::vector<TensorInfo> tensors, chosen(file, options.tensors));
    BERTH_TRY_ASSIGN(
        plan,
        make_shard_plan(tensors, rules,
                        {.ranks = transport.ranks(), .parts = options.parts, .piece_bytes = options.piece_bytes}));
    BERTH_TRY_ASSIGN(target, make_target(plan, transport.rank(), allocator));
    return loader.emplace(transport, plan, options).prepare();
  };
  const Result<void> prepared = prepare();
  BERTH_TRY(transport.begin(prepared, target.memory, prepared ? fingerprint(plan) : 0));
  const auto load = [&]() -> Result<void> {
    BERTH_TRY_ASSIGN(const Window own, target.memory.window());
    return loader->load(file, own);
  };
  BERTH_TRY(transport.finish(load()));
  return finished(plan, transport.rank(), target, allocator);
}

Result<ShardedTensors> reshard(ShardTransport& transport, const ShardedTensors& from, const ShardPlan& to,
                               const AllocatorPtr& allocator, const ShardedLoadOptions& options) {
  Target target;
  Buffer memory;
  Window source;
  const auto prepare = [&]() -> Result<void> {
    if (options.cancel.stop_requested()) return cancelled();
    BERTH_TRY(check_reshard(transport, from, to));
    BERTH_TRY(berth::reshard(from.plan, to, [](const ReshardMove&) {}));
    BERTH_TRY_ASSIGN(target, make_target(to, transport.rank(), allocator));
    BERTH_TRY_ASSIGN(source, gathered(from, transport.rank(), memory));
    return {};
  };
  const Result<void> prepared = prepare();
  BERTH_TRY(transport.begin(prepared, target.memory, prepared ? fingerprint(from.plan) ^ (fingerprint(to) << 1) : 0));
  const auto move_all = [&]() -> Result<void> {
    BERTH_TRY_ASSIGN(const Window own, target.memory.window());
    Result<void> moved;
    const std::uint32_t rank = transport.rank();
    BERTH_TRY(berth::reshard(from.plan, to, [&](const ReshardMove& move) {
      if (!moved || move.from != rank) return;
      for (std::uint64_t row = 0; moved && row < move.rows; ++row) {
        const std::uint64_t at = move.from_offset + row * move.from_pitch;
        const std::uint64_t there = move.to_offset + row * move.to_pitch;
        if (move.to == rank)
          std::memcpy(own.host_bytes().data() + there, source.host_bytes().data() + at, move.bytes);
        else
          moved = transport.put(move.to, there, part_of(source, at, move.bytes));
      }
      if (options.cancel.stop_requested()) moved = cancelled();
    }));
    BERTH_TRY(moved);
    BERTH_TRY_ASSIGN(const std::uint64_t mark, transport.mark());
    return transport.wait(mark);
  };
  BERTH_TRY(transport.finish(move_all()));
  return finished(to, transport.rank(), target, allocator);
}

}  // namespace berth::internal
