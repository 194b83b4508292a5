// What the examples with MPI share: a small checkpoint that rank 0 writes, and the end of a job in which UCX is
// missing.
#pragma once

#include <berth/berth.h>
#include <berth/remote/load_sharded.h>
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace example {

// A checkpoint with these tensors, f32, filled with small whole numbers, so that sums are exact in any order. Rank 0
// writes it and removes it at the end; all ranks know its path. In earnest it lies where all machines see it.
class SharedCheckpoint {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::size_t> shape;
  };
  SharedCheckpoint(int rank, std::span<const Tensor> tensors) : rank_(rank) {
    if (rank == 0) {
      const auto path =
          std::filesystem::temp_directory_path() / ("berth_mpi_" + std::to_string(getpid()) + ".safetensors");
      std::snprintf(path_.data(), path_.size(), "%s", path.c_str());
      const auto cpu = berth::device("CPU").value();
      std::vector<berth::NamedBuffer> named;
      std::size_t number = 0;
      for (const Tensor& tensor : tensors) {
        const auto shape = berth::Shape::make(tensor.shape).value();
        named.push_back({tensor.name, berth::Buffer::allocate(cpu, berth::f32, shape).value()});
        for (float& each : named.back().buffer.as_slice_mut<float>().value())
          each = static_cast<float>(number++ % 7) - 3;
      }
      berth::save_safetensors(path, named).value();
    }
    MPI_Bcast(path_.data(), static_cast<int>(path_.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  }
  ~SharedCheckpoint() {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 0) std::filesystem::remove(path_.data());
  }
  SharedCheckpoint(const SharedCheckpoint&) = delete;
  SharedCheckpoint& operator=(const SharedCheckpoint&) = delete;

  std::string path() const { return path_.data(); }

 private:
  int rank_;
  std::array<char, 512> path_{};
};

// The cluster, or the end of the process: 77 without UCX, which tests skip.
inline berth::ClusterPtr join_or_exit(berth::ClusterOptions options = {}) {
  auto joined = berth::Cluster::join(std::move(options));
  if (joined) return *std::move(joined);
  std::fprintf(stderr, "%s\n", joined.error().message().c_str());
  const int code = joined.error().code() == berth::Code::kDeviceUnavailable ? 77 : 1;
  MPI_Abort(MPI_COMM_WORLD, code);
  std::exit(code);
}

}  // namespace example
