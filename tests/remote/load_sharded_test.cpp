// The algorithm of load_sharded() with all ranks in this process: threads whose transport is memcpy. Real processes
// over UCX are in sharded_load_test.py.
#include "berth/remote/load_sharded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <random>
#include <thread>

#include "berth/memory/registry.h"
#include "berth/weights/save.h"
#include "doubles/opaque_device.h"
#include "remote/shard_load.h"
#include "support/seed.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;
using test::TemporaryFolder;
using ::testing::HasSubstr;

// What the ranks of one load share.
struct Meeting {
  explicit Meeting(std::uint32_t count) : ranks(count), all(count), memory(count), prints(count), errors(count) {}
  const std::uint32_t ranks;
  std::barrier<> all;
  std::vector<Window> memory;
  std::vector<std::uint64_t> prints;
  std::vector<std::optional<Error>> errors;
  std::uint32_t failing_rank = UINT32_MAX;
  std::uint64_t failing_put = 0;  // counted from 1
  std::atomic<std::uint64_t> network{0};
};

class ThreadTransport final : public internal::ShardTransport {
 public:
  ThreadTransport(Meeting& meeting, std::uint32_t rank) : meeting_(meeting), rank_(rank) {}
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t ranks() const noexcept override { return meeting_.ranks; }

  Result<void> begin(const Result<void>& own, const Buffer& memory, std::uint64_t fingerprint) override {
    if (own) meeting_.memory[rank_] = memory.window().value();
    meeting_.prints[rank_] = fingerprint;
    if (auto agreed = agree(own); !agreed) return agreed;
    for (const std::uint64_t print : meeting_.prints)
      if (print != fingerprint) return Error(Code::kInvalidArgument, Layer::kDevice, "plans differ");
    return {};
  }
  Result<void> put(std::uint32_t target, std::uint64_t offset, const Window& source) override {
    EXPECT_NE(target, rank_);
    if (meeting_.failing_rank == rank_ && ++puts_ == meeting_.failing_put)
      return Error(Code::kDriver, Layer::kDevice, "the cable is cut");
    // The bytes are taken at the mark, as late as the contract allows.
    pending_.push_back({target, offset, source});
    meeting_.network += source.bytes;
    return {};
  }
  Result<std::uint64_t> mark() override {
    marks_.push_back(std::exchange(pending_, {}));
    return marks_.size() - 1;
  }
  Result<void> wait(std::uint64_t mark) override {
    for (const Pending& each : std::exchange(marks_[mark], {}))
      std::memcpy(meeting_.memory[each.target].host_bytes().data() + each.offset, each.source.host_bytes().data(),
                  each.source.bytes);
    return {};
  }
  Result<void> finish(Result<void> own) override { return agree(own); }

 private:
  struct Pending {
    std::uint32_t target;
    std::uint64_t offset;
    Window source;
  };
  Result<void> agree(const Result<void>& own) {
    meeting_.errors[rank_] = own ? std::nullopt : std::optional(own.error());
    meeting_.all.arrive_and_wait();
    Result<void> result = own;
    for (std::uint32_t other = 0; result && other < ranks(); ++other)
      if (meeting_.errors[other])
        result = Error::with_text(meeting_.errors[other]->code(), Layer::kDevice,
                                  "rank " + std::to_string(other) + " failed: " + meeting_.errors[other]->message());
    meeting_.all.arrive_and_wait();
    return result;
  }
  Meeting& meeting_;
  const std::uint32_t rank_;
  std::uint64_t puts_ = 0;
  std::vector<Pending> pending_;
  std::vector<std::vector<Pending>> marks_;
};

// A checkpoint with one tensor of each kind.
std::string write_checkpoint(const TemporaryFolder& folder, bool gguf) {
  std::mt19937 random(test::seed());
  const DevicePtr cpu = device("CPU").value();
  std::vector<NamedBuffer> tensors;
  const auto add = [&](std::string_view name, DType dtype, const Shape& shape) {
    Buffer buffer = Buffer::allocate(cpu, dtype, shape).value();
    for (std::byte& byte : buffer.as_host_bytes_mut().value()) byte = static_cast<std::byte>(random());
    tensors.push_back({name, std::move(buffer)});
  };
  add("a.q_proj.weight", DType::kF16, {96, 200});
  add("a.o_proj.weight", DType::kF16, {200, 96});
  add("a.norm.weight", DType::kF32, {200});
  add("a.experts.0.w", DType::kF32, {50, 30});
  add("a.experts.1.w", DType::kF32, {50, 30});
  add("a.experts.2.w", DType::kF32, {50, 30});
  add("a.stacked", DType::kF32, {6, 10, 12});
  if (gguf) add("a.gate", DType::kQ4_0, {24, 64});
  const std::string path = (folder.path() / (gguf ? "model.gguf" : "model.safetensors")).string();
  (gguf ? save_gguf(path, tensors) : save_safetensors(path, tensors)).value();
  return path;
}

const std::vector<ShardRule> kRules{{"*.q_proj.*", ShardKind::kRow, 2},
                                    {"*.o_proj.*", ShardKind::kColumn},
                                    {"*.experts.#.*", ShardKind::kExpert},
                                    {"*.stacked", ShardKind::kExpert},
                                    {"*.gate", ShardKind::kRow}};

std::vector<std::byte> bytes_of(const Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  if (!bytes.empty()) buffer.copyout(bytes).value();
  return bytes;
}

// Compares what a rank has with slices that are read from the file.
void expect_shards(const ShardedTensors& loaded, const WeightFile& file, std::uint32_t rank) {
  ASSERT_EQ(loaded.buffers.size(), file.tensors().size());
  for (std::size_t i = 0; i < loaded.buffers.size(); ++i) {
    const auto& tensor = loaded.plan.tensors()[i];
    const Shard shard = loaded.plan.shard(i, rank);
    if (shard.bytes == 0) {
      EXPECT_EQ(loaded.buffers[i].size(), 0U);
      continue;
    }
    const Buffer expected = file.load_slice(tensor.name, shard.slice, device("CPU").value()).value();
    EXPECT_EQ(loaded.buffers[i].shape(), expected.shape()) << tensor.name;
    EXPECT_EQ(loaded.buffers[i].dtype(), expected.dtype()) << tensor.name;
    EXPECT_EQ(bytes_of(loaded.buffers[i]), bytes_of(expected)) << tensor.name << " of rank " << rank;
  }
}

template <class Work>
void on_ranks(Meeting& meeting, Work work) {
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < meeting.ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadTransport transport(meeting, rank);
      work(transport, rank);
    });
}

TEST(LoadSharded, GivesEachRankItsShards) {
  const TemporaryFolder folder;
  for (const bool gguf : {false, true}) {
    const WeightFile file = open_weights(write_checkpoint(folder, gguf)).value();
    for (const auto& [ranks, parts] : {std::pair{1U, 1U}, {2U, 2U}, {3U, 3U}, {5U, 5U}, {4U, 2U}, {6U, 1U}}) {
      Meeting meeting(ranks);
      on_ranks(meeting, [&](ThreadTransport& transport, std::uint32_t rank) {
        const auto loaded = internal::load_sharded(transport, file, kRules, device("CPU").value(),
                                                   {.parts = parts, .piece_bytes = 4096});
        expect_shards(loaded.value(), file, rank);
        EXPECT_EQ(loaded->plan.cost().network_bytes, meeting.network);
      });
    }
  }
}

TEST(LoadSharded, LoadsOnlyTheTensorsThatAreNamed) {
  const TemporaryFolder folder;
  const WeightFile file = open_weights(write_checkpoint(folder, false)).value();
  const std::vector<std::string> names{"a.o_proj.weight", "a.norm.weight"};
  Meeting meeting(2);
  on_ranks(meeting, [&](ThreadTransport& transport, std::uint32_t rank) {
    const auto loaded =
        internal::load_sharded(transport, file, kRules, device("CPU").value(), {.tensors = names, .piece_bytes = 4096})
            .value();
    ASSERT_EQ(loaded.buffers.size(), names.size());
    loaded.plan.check().value();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto& tensor = loaded.plan.tensors()[i];
      EXPECT_TRUE(std::ranges::count(names, tensor.name) == 1) << tensor.name;
      const Buffer expected =
          file.load_slice(tensor.name, loaded.plan.shard(i, rank).slice, device("CPU").value()).value();
      EXPECT_EQ(bytes_of(loaded.buffers[i]), bytes_of(expected)) << tensor.name << " of rank " << rank;
    }
  });
  Meeting again(2);
  on_ranks(again, [&](ThreadTransport& transport, std::uint32_t) {
    const ShardedLoadOptions options{.tensors = {"a.norm.weight", "b.norm.weight"}, .piece_bytes = 4096};
    const auto loaded = internal::load_sharded(transport, file, kRules, device("CPU").value(), options);
    EXPECT_TRUE(fails_with(loaded, Code::kNotFound));
    EXPECT_NE(loaded.error().message().find("b.norm.weight"), std::string::npos) << loaded.error().message();
  });
}

TEST(LoadSharded, FillsMemoryThatTheHostCannotReach) {
  const TemporaryFolder folder;
  const WeightFile file = open_weights(write_checkpoint(folder, true)).value();
  Meeting meeting(3);
  on_ranks(meeting, [&](ThreadTransport& transport, std::uint32_t rank) {
    const auto opaque = std::make_shared<OpaqueDevice>();
    const auto loaded = internal::load_sharded(transport, file, kRules, opaque, {.piece_bytes = 4096});
    expect_shards(loaded.value(), file, rank);
    EXPECT_FALSE(loaded->buffers[0].cpu_accessible());
  });
}

TEST(LoadSharded, MovesToAnotherPlan) {
  const TemporaryFolder folder;
  const WeightFile file = open_weights(write_checkpoint(folder, true)).value();
  Meeting meeting(4);
  on_ranks(meeting, [&](ThreadTransport& transport, std::uint32_t rank) {
    const auto cpu = device("CPU").value();
    const auto loaded = internal::load_sharded(transport, file, kRules, cpu, {.piece_bytes = 4096}).value();
    for (const std::uint32_t parts : {2U, 1U, 4U}) {
      const ShardPlan to = make_shard_plan(file.tensors(), kRules, {.ranks = 4, .parts = parts}).value();
      expect_shards(internal::reshard(transport, loaded, to, cpu, {}).value(), file, rank);
    }
    const std::vector<ShardRule> other{{"*.q_proj.*", ShardKind::kColumn}, {"*.o_proj.*", ShardKind::kRow}};
    const ShardPlan to = make_shard_plan(file.tensors(), other, {.ranks = 4}).value();
    expect_shards(internal::reshard(transport, loaded, to, cpu, {}).value(), file, rank);
    // Plans that cannot be: for other ranks, of other tensors.
    EXPECT_TRUE(fails_with(
        internal::reshard(transport, loaded, make_shard_plan(file.tensors(), other, {.ranks = 3}).value(), cpu, {}),
        Code::kInvalidArgument));
    EXPECT_TRUE(
        fails_with(internal::reshard(transport, loaded, make_shard_plan({}, other, {.ranks = 4}).value(), cpu, {}),
                   Code::kInvalidArgument));
  });
}

TEST(LoadSharded, IsAllOrNothingWhenARankFails) {
  const TemporaryFolder folder;
  const WeightFile file = open_weights(write_checkpoint(folder, false)).value();
  const auto cpu = device("CPU").value();
  const std::size_t before = cpu->counters().live_bytes;
  for (std::uint64_t put = 1; put < 40; put += 3) {
    Meeting meeting(3);
    meeting.failing_rank = 1;
    meeting.failing_put = put;
    std::atomic<int> succeeded{0};
    on_ranks(meeting, [&](ThreadTransport& transport, std::uint32_t rank) {
      const auto loaded = internal::load_sharded(transport, file, kRules, cpu, {.piece_bytes = 4096});
      if (loaded) {
        ++succeeded;
        return;
      }
      EXPECT_TRUE(fails_with(loaded, Code::kDriver));
      if (rank != 1) {
        EXPECT_THAT(loaded.error().message(), HasSubstr("rank 1 failed: the cable is cut"));
      }
    });
    EXPECT_TRUE(succeeded == 0 || succeeded == 3) << succeeded;
  }
  EXPECT_EQ(cpu->counters().live_bytes, before);
}

TEST(LoadSharded, TellsTheOthersWhatARankFailedOf) {
  const TemporaryFolder folder;
  const WeightFile file = open_weights(write_checkpoint(folder, false)).value();
  const auto cpu = device("CPU").value();
  const auto all_fail = [&](auto options_of, const AllocatorPtr& of_rank_1, Code code) {
    Meeting meeting(2);
    on_ranks(meeting, [&](ThreadTransport& transport, std::uint32_t rank) {
      const auto loaded =
          internal::load_sharded(transport, file, kRules, rank == 1 ? of_rank_1 : cpu, options_of(rank));
      EXPECT_TRUE(fails_with(loaded, code));
    });
  };
  const auto plain = [](std::uint32_t) { return ShardedLoadOptions{.piece_bytes = 4096}; };
  all_fail(plain, nullptr, Code::kInvalidArgument);
  all_fail([](std::uint32_t rank) { return ShardedLoadOptions{.parts = rank == 1 ? 7U : 0U, .piece_bytes = 4096}; },
           cpu, Code::kInvalidArgument);
  all_fail([](std::uint32_t rank) { return ShardedLoadOptions{.piece_bytes = rank == 1 ? 8192U : 4096U}; }, cpu,
           Code::kInvalidArgument);
  std::stop_source stopped;
  stopped.request_stop();
  all_fail(
      [&](std::uint32_t rank) {
        ShardedLoadOptions options{.piece_bytes = 4096};
        if (rank == 1) options.cancel = stopped.get_token();
        return options;
      },
      cpu, Code::kCancelled);
  all_fail(
      [&](std::uint32_t rank) {
        ShardedLoadOptions options{.piece_bytes = 4096};
        if (rank == 1) options.progress = [](const LoadProgress& progress) { return progress.bytes_done < 8192; };
        return options;
      },
      cpu, Code::kCancelled);
  // The file shrinks after it was opened.
  std::filesystem::resize_file(file.files()[0], 5000);
  all_fail(plain, cpu, Code::kIo);
}

TEST(WeightFileRead, ReadsBytesOfOneFile) {
  const TemporaryFolder folder;
  const WeightFile file = open_weights(write_checkpoint(folder, true)).value();
  std::vector<std::byte> magic(4);
  file.read(0, 0, magic).value();
  EXPECT_EQ(std::memcmp(magic.data(), "GGUF", 4), 0);
  EXPECT_TRUE(fails_with(file.read(1, 0, magic), Code::kNotFound));
  EXPECT_FALSE(file.read(0, std::uint64_t{1} << 40, magic));
  EXPECT_TRUE(fails_with(WeightFile().read(0, 0, magic), Code::kNotFound));
}

}  // namespace
}  // namespace berth
