// A checkpoint for many replicas of a model, in two stages: each replica loads a share of the tensors, split among its
// own ranks, and MPI gathers the shares of all replicas. All ranks together read each byte of the file once, and a rank
// talks to the ranks of its own replica only, however many replicas there are.
//
//   mpirun -n 4 ./example_mpi_two_stage_load 2      two replicas of two ranks each
//
// docs/scale_out.md has what this costs at 10,000 ranks.
#include <algorithm>
#include <numeric>

#include "shared_checkpoint.h"

namespace {

// The exchange of some ranks of a job: theirs is the job's, with other numbers.
berth::ExchangePtr make_group_exchange(const berth::ExchangePtr& job, std::uint32_t first, std::uint32_t ranks) {
  return berth::make_function_exchange(
             {.rank = job->rank() - first,
              .ranks = ranks,
              .publish = [job](const std::string& key,
                               std::span<const std::byte> bytes) { return job->publish("replica." + key, bytes); },
              .fetch = [job, first](
                           std::uint32_t rank, const std::string& key,
                           berth::Deadline deadline) { return job->fetch(first + rank, "replica." + key, deadline); }})
      .value();
}

// Consecutive tensors for each replica, with about as many bytes.
std::vector<std::vector<berth::TensorInfo>> shares_of(const berth::WeightFile& file, std::size_t replicas) {
  std::vector<std::vector<berth::TensorInfo>> shares(replicas);
  std::uint64_t before = 0;
  for (const berth::TensorInfo& tensor : file.tensors()) {
    shares[std::min<std::size_t>((before + tensor.bytes / 2) * replicas / file.total_bytes(), replicas - 1)].push_back(
        tensor);
    before += tensor.bytes;
  }
  return shares;
}

bool run(int rank, std::uint32_t parts) {
  std::vector<example::SharedCheckpoint::Tensor> tensors;
  for (const char* layer : {"0", "1", "2"}) {
    tensors.push_back({std::string(layer) + ".up", {48, 40}});
    tensors.push_back({std::string(layer) + ".down", {40, 48}});
    tensors.push_back({std::string(layer) + ".norm", {40}});
  }
  const example::SharedCheckpoint checkpoint(rank, tensors);
  const auto job = berth::make_job_exchange().value();
  const std::uint32_t replicas = job->ranks() / parts;
  const std::uint32_t replica = job->rank() / parts, part = job->rank() % parts;
  const auto cluster = example::join_or_exit({.exchange = make_group_exchange(job, replica * parts, parts)});

  // Where each share lies in the memory of this rank: plans are made from the header alone.
  const auto cpu = berth::device("CPU").value();
  const auto file = berth::open_weights(checkpoint.path()).value();
  const auto rules = berth::parse_shard_rules("*.up row\n*.down column\n* replicated\n").value();
  const auto shares = shares_of(file, replicas);
  std::vector<berth::ShardPlan> plans;
  std::vector<int> offsets, sizes;  // in bytes; MPI 4 has calls for more than 2 GiB
  int total = 0;
  for (const auto& share : shares) {
    plans.push_back(berth::make_shard_plan(share, rules, {.ranks = parts}).value());
    offsets.push_back(total);
    sizes.push_back(static_cast<int>((plans.back().memory_bytes(part) + 255) / 256 * 256));
    total += sizes.back();
  }
  const auto memory =
      berth::Buffer::allocate(cpu, berth::u8, {static_cast<std::size_t>(total)}, {.alignment = 256}).value();
  const auto place = [&](std::size_t share, std::size_t tensor) {
    const berth::Shard shard = plans[share].shard(tensor, part);
    return memory
        .view(static_cast<std::size_t>(offsets[share]) + shard.offset, plans[share].tensors()[tensor].dtype,
              berth::Shape::make(shard.shape).value())
        .value();
  };

  // First stage: the share of this replica, by puts between its ranks.
  std::vector<std::string> names;
  for (const berth::TensorInfo& tensor : shares[replica]) names.emplace_back(tensor.name);
  if (!names.empty()) {  // fewer tensors than replicas
    const auto loaded = berth::load_sharded(*cluster, file, rules, cpu, {.tensors = names}).value();
    for (std::size_t i = 0; i < loaded.buffers.size(); ++i) place(replica, i).copy_from(loaded.buffers[i]).value();
  }

  // Second stage: the ranks that have the same part in all replicas. Each gives what its replica loaded.
  MPI_Comm same_part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, static_cast<int>(part), static_cast<int>(replica), &same_part);
  MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, memory.as_raw_ptr(), sizes.data(), offsets.data(), MPI_BYTE,
                 same_part);
  MPI_Comm_free(&same_part);

  std::size_t right = 0;
  for (std::size_t share = 0; share < shares.size(); ++share)
    for (std::size_t i = 0; i < shares[share].size(); ++i) {
      const auto expected = file.load_slice(shares[share][i].name, plans[share].shard(i, part).slice, cpu).value();
      const auto a = expected.as_slice<float>().value();
      const auto tensor = place(share, i);
      const auto b = tensor.as_slice<float>().value();
      right += std::equal(a.begin(), a.end(), b.begin(), b.end()) ? 1 : 0;
    }
  std::printf("rank %d: part %u of replica %u, which loaded %zu of %zu tensors; right after the gather: %zu\n", rank,
              part, replica, names.size(), file.tensors().size(), right);
  return right == file.tensors().size();
}

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int parts = count > 1 ? std::atoi(arguments[1]) : 2;
  if (parts < 1 || ranks % parts != 0) {
    if (rank == 0) std::fprintf(stderr, "%d ranks are no replicas of %d ranks each\n", ranks, parts);
    MPI_Finalize();
    return 2;
  }
  const bool right = run(rank, static_cast<std::uint32_t>(parts));
  MPI_Finalize();
  return right ? 0 : 1;
}
