// Collectives stay with the engine of the program: here Berth loads the weights of a network that is split over the
// ranks of an MPI job, and MPI adds up the results in Berth's buffers.
//
//   mpirun -n 3 ./example_mpi_all_reduce
//
// The network is two layers, y = down * relu(up * x). `up` is split by row and `down` by column, so each rank computes
// its part of the hidden values and a share of every output; the sum over all ranks is the result. docs/scale_out.md
// has the same in Python.
#include <algorithm>

#include "shared_checkpoint.h"

namespace {

constexpr std::size_t kInputs = 64, kHidden = 120, kOutputs = 32;

// y += weight * x, for a matrix of rows.size() / x.size() rows.
void multiply(std::span<const float> weight, std::span<const float> x, std::span<float> y) {
  for (std::size_t row = 0; row < y.size(); ++row)
    for (std::size_t i = 0; i < x.size(); ++i) y[row] += weight[row * x.size() + i] * x[i];
}

// What a rank computes with its rows of `up` and its columns of `down`.
void run_layers(const berth::Buffer& up, const berth::Buffer& down, std::span<const float> x, std::span<float> y) {
  std::vector<float> hidden(up.shape()[0]);
  multiply(up.as_slice<float>().value(), x, hidden);
  for (float& each : hidden) each = std::max(each, 0.0f);
  multiply(down.as_slice<float>().value(), hidden, y);
}

bool run(int rank) {
  const std::array<example::SharedCheckpoint::Tensor, 2> tensors{
      {{"up.weight", {kHidden, kInputs}}, {"down.weight", {kOutputs, kHidden}}}};
  const example::SharedCheckpoint checkpoint(rank, tensors);

  // Under mpirun the ranks of the cluster are those of MPI: both ask PMIx.
  const auto cluster = example::join_or_exit();
  const auto cpu = berth::device("CPU").value();
  const auto file = berth::open_weights(checkpoint.path()).value();
  const auto rules = berth::parse_shard_rules("up.weight row\ndown.weight column\n").value();
  const auto loaded = berth::load_sharded(*cluster, file, rules, cpu).value();

  // Shards are in the order of the file.
  const auto shard = [&](const std::string& name) {
    std::size_t i = 0;
    while (loaded.plan.tensors()[i].name != name) ++i;
    return loaded.buffers[i];
  };
  const berth::Buffer up = shard("up.weight"), down = shard("down.weight");

  std::vector<float> x(kInputs);
  for (std::size_t i = 0; i < kInputs; ++i) x[i] = static_cast<float>(i % 5) - 2;
  const auto y = berth::Buffer::allocate(cpu, berth::f32, {kOutputs}, {.zero = true}).value();
  const auto sums = y.as_slice_mut<float>().value();
  run_layers(up, down, x, sums);

  // The buffer is ordinary memory to MPI. With a CUDA-aware MPI, or with NCCL, pass as_raw_ptr() of a CUDA buffer.
  MPI_Allreduce(MPI_IN_PLACE, sums.data(), static_cast<int>(sums.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);

  std::vector<float> expected(kOutputs);
  run_layers(file.tensor("up.weight").value(), file.tensor("down.weight").value(), x, expected);
  const bool right = std::equal(sums.begin(), sums.end(), expected.begin());
  std::printf("rank %d of %u: up %s, down %s, sum over all ranks: %s\n", rank, cluster->ranks(),
              up.shape().to_string().c_str(), down.shape().to_string().c_str(), right ? "right" : "wrong");
  return right && cluster->rank() == static_cast<std::uint32_t>(rank);
}

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const bool right = run(rank);  // which leaves the cluster
  MPI_Finalize();
  return right ? 0 : 1;
}
