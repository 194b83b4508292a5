// A job of remote_bench: this process is rank 0, and the other ranks are the same program, started again. They serve
// their memory, and load checkpoints together with rank 0 when they are told to. Everything is killed with the object.
// Not thread-safe.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "berth/berth.h"
#include "berth/remote/load_sharded.h"

extern char** environ;

namespace berth::bench {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLarge = 256 * kMiB;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline std::string own_path() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

// The number after a name in a file of /proc.
inline double number_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;)
    if (word == name) {
      double number = 0;
      file >> number;
      return number;
    }
  return 0;
}

// Bytes that this process has asked the kernel to read.
inline double bytes_read() {
  return number_in("/proc/self/io", "rchar:");
}

inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline double open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<double>(std::distance(begin(all), end(all)));
}

// --- A checkpoint ---

inline std::vector<ShardRule> checkpoint_rules() {
  return parse_shard_rules("row.* row\ncolumn.* column\n* replicated\n").value();
}

// Two thirds split by row, one third by column, and a small replicated tensor. Rows are of 8 KiB.
inline void write_checkpoint(const std::string& path, std::size_t bytes) {
  const auto cpu = device("CPU").value();
  const std::size_t rows = bytes / 6 / 8192;
  std::vector<NamedBuffer> tensors;
  for (const char* name : {"row.0", "column.0", "row.1", "row.2", "column.1", "row.3"}) {
    const auto tensor = Buffer::allocate(cpu, f32, {rows, 2048}).value();
    std::uint32_t next = static_cast<std::uint32_t>(tensors.size());
    for (float& each : tensor.as_slice_mut<float>().value())
      each = static_cast<float>((next = next * 1664525 + 1013904223) >> 8);
    tensors.push_back({name, tensor});
  }
  tensors.push_back({"small", Buffer::allocate(cpu, f32, {2048}, {.zero = true}).value()});
  save_safetensors(path, tensors).value();
}

// Whether each shard is what the file has.
inline bool is_right(const ShardedTensors& loaded, const WeightFile& file, std::uint32_t rank) {
  const auto cpu = device("CPU").value();
  for (std::size_t i = 0; i < loaded.buffers.size(); ++i) {
    const Shard shard = loaded.plan.shard(i, rank);
    if (shard.bytes == 0) continue;
    const auto expected = file.load_slice(loaded.plan.tensors()[i].name, shard.slice, cpu).value();
    const auto a = expected.as_host_bytes().value(), b = loaded.buffers[i].as_host_bytes().value();
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end())) return false;
  }
  return true;
}

// --- The other ranks ---

// FOLDER RANK RANKS LENDS GIVE_UP_MS INTERFACE TRANSPORTS WINDOW_BYTES. Says its process and the address of its window,
// and serves until its input ends. A line of input is the path of a checkpoint to load; the answer is "ok" with the
// bytes that were read, or an error.
inline int serve(char** arguments) {
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  const std::string interface = arguments[5];
  const auto exchange = make_folder_exchange({.folder = arguments[0],
                                              .rank = static_cast<std::uint32_t>(number(1)),
                                              .ranks = static_cast<std::uint32_t>(number(2)),
                                              .token = arguments[0]})
                            .value();
  ClusterOptions options{.exchange = exchange,
                         .transports = arguments[6],
                         .give_up_after = std::chrono::milliseconds(number(4)),
                         .lends = number(3)};
  if (interface != "lo") options.interfaces = {interface};
  const auto joined = Cluster::join(options);
  if (!joined || !(*joined)->barrier()) return 1;  // rank 0 says why
  const ClusterPtr& cluster = *joined;
  void* address = nullptr;
  Buffer buffer;
  if (number(7) > 0) {
    buffer = Buffer::allocate(device("CPU").value(), u8, {number(7)}, {.zero = true}).value();
    std::memset(buffer.as_raw_ptr(), 1, number(7));
    exchange->publish("window", cluster->open(buffer).value().to_bytes()).value();
    address = buffer.as_raw_ptr();
  }
  std::cout << getpid() << " " << reinterpret_cast<std::uintptr_t>(address) << std::endl;
  std::string path;
  while (std::getline(std::cin, path)) {
    const auto file = open_weights(path).value();
    const double before = bytes_read();
    const auto loaded = load_sharded(*cluster, file, checkpoint_rules(), device("CPU").value());
    const double read = bytes_read() - before;
    if (loaded)
      std::cout << (is_right(*loaded, file, cluster->rank()) ? "ok " : "wrong ") << read << std::endl;
    else
      std::cout << "error " << loaded.error().message() << std::endl;
  }
  return 0;
}

struct JobOptions {
  std::uint32_t ranks = 2;
  std::size_t lends = 2 * kLarge;
  std::chrono::milliseconds give_up_after{30'000};
  std::string interface = "lo";
  std::string transports{};
  std::size_t window = 0;
  std::vector<std::string> before{};  // what runs the other ranks
};

// A new folder in which the ranks of a job find each other. mkdtemp() puts a name of its own in the place of the Xs.
inline std::string make_job_folder() {
  std::string folder = (std::filesystem::temp_directory_path() / "berth_bench_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  return folder;
}

class Job {
 public:
  explicit Job(JobOptions options) : options_(std::move(options)) {
    folder_ = make_job_folder();
    for (std::uint32_t rank = 1; rank < options_.ranks; ++rank) start(rank);
    exchange_ = make_folder_exchange({.folder = folder_, .rank = 0, .ranks = options_.ranks, .token = folder_}).value();
    ClusterOptions join{
        .exchange = exchange_, .transports = options_.transports, .give_up_after = options_.give_up_after};
    if (options_.interface != "lo") join.interfaces = {options_.interface};
    // What is measured is this rank's own part: the others have published what they say.
    for (std::uint32_t rank = 1; rank < options_.ranks; ++rank)
      exchange_->fetch(rank, "berth.cluster", Clock::now() + 60s).value();
    before_join_ = {open_descriptors(), processor_seconds()};
    const auto begun = Clock::now();
    cluster_ = Cluster::join(join).value();
    join_seconds_ = seconds_since(begun);
  }
  ~Job() {
    cluster_.reset();
    for (Child& child : children_) {
      kill(child.started, SIGKILL);
      waitpid(child.started, nullptr, 0);
      close(child.to);
      close(child.from);
    }
    std::filesystem::remove_all(folder_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Connects this rank to all others, which then serve.
  Job& connect() {
    cluster_->barrier().value();
    for (Child& child : children_) std::istringstream(answer_of(child)) >> child.pid >> child.address;
    return *this;
  }

  Cluster& cluster() { return *cluster_; }
  double join_seconds() const { return join_seconds_; }
  struct Used {
    double descriptors = 0, seconds = 0;  // of the processor
  };
  const Used& before_join() const { return before_join_; }
  // The bytes of one rank's entry in the exchange.
  std::size_t card_bytes() { return exchange_->fetch(1, "berth.cluster", Clock::now()).value().size(); }
  pid_t pid() const { return children_[0].pid; }
  void* address() const { return reinterpret_cast<void*>(children_[0].address); }
  void kill_rank_1() { kill(children_[0].pid, SIGKILL); }
  DevicePtr neighbour(std::uint32_t rank = 1) { return cluster_->device(rank).value(); }
  Buffer window() {
    const auto packed = exchange_->fetch(1, "window", Clock::now() + 10s).value();
    return cluster_->import(RemoteWindow::from_bytes(packed).value()).value();
  }

  // What each of the other ranks is told, and what they answer; an empty answer from a rank that has ended.
  void tell_all(const std::string& line) {
    // A rank that has been killed should not end this one by a signal; and a signal that UCX raises should be seen.
    for (const Child& child : children_)
      static_cast<void>(send(child.to, (line + "\n").data(), line.size() + 1, MSG_NOSIGNAL));
  }
  std::vector<std::string> answers() {
    std::vector<std::string> all;
    for (Child& child : children_) all.push_back(answer_of(child));
    return all;
  }

 private:
  struct Child {
    pid_t started = 0, pid = 0;
    std::uintptr_t address = 0;
    int to = -1, from = -1;
  };
  static std::string answer_of(Child& child) {
    std::string line;
    char letter = 0;
    while (read(child.from, &letter, 1) == 1 && letter != '\n') line += letter;
    return line;
  }
  void start(std::uint32_t rank) {
    std::vector<std::string> words = options_.before;
    words.insert(words.end(), {own_path(), "--serve", folder_, std::to_string(rank), std::to_string(options_.ranks),
                               std::to_string(options_.lends), std::to_string(options_.give_up_after.count()),
                               options_.interface, options_.transports, std::to_string(options_.window)});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int in[2], out[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    Child child;
    if (posix_spawnp(&child.started, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    child.to = in[1];
    child.from = out[0];
    children_.push_back(child);
  }

  const JobOptions options_;
  std::string folder_;
  std::vector<Child> children_;
  ExchangePtr exchange_;
  ClusterPtr cluster_;
  Used before_join_{};
  double join_seconds_ = 0;
};

}  // namespace berth::bench
