// Runs of remote_bench in which a rank is killed at a random moment while all join. Every rank is a process of its own,
// so that those that crash or hang are counted. Not thread-safe.
#pragma once

#include <array>
#include <random>
#include <thread>

#include "remote_job.h"

namespace berth::bench {

constexpr std::uint32_t kJoiningRanks = 4;

struct JoinCounts {
  int runs = 0, survivors = 0, joined = 0, crashed = 0, hung = 0;
};

// Joins, meets the others once and leaves.
inline pid_t start_joining(const std::string& folder, std::uint32_t rank, const std::string& transports) {
  std::vector<std::string> words{own_path(), "--serve", folder, std::to_string(rank), std::to_string(kJoiningRanks),
                                 "0",        "3000",    "lo",   transports,           "0"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int descriptor : {0, 1, 2}) posix_spawn_file_actions_addopen(&actions, descriptor, "/dev/null", O_RDWR, 0);
  pid_t process = 0;
  if (posix_spawn(&process, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) std::abort();
  posix_spawn_file_actions_destroy(&actions);
  return process;
}

inline JoinCounts kill_during_joins(int runs) {
  JoinCounts counts;
  std::mt19937 random(std::random_device{}());
  for (; counts.runs < runs; ++counts.runs) {
    const std::string folder = make_job_folder();
    const std::string transports = random() % 2 == 0 ? "tcp" : "";
    std::array<pid_t, kJoiningRanks> processes{};
    for (std::uint32_t rank = 0; rank < kJoiningRanks; ++rank)
      processes[rank] = start_joining(folder, rank, transports);
    const auto exchange =
        make_folder_exchange({.folder = folder, .rank = 0, .ranks = kJoiningRanks, .token = folder}).value();
    for (std::uint32_t rank = 0; rank < kJoiningRanks; ++rank)
      exchange->fetch(rank, "berth.cluster", Clock::now() + 60s).value();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    const std::uint32_t victim = random() % kJoiningRanks;
    kill(processes[victim], SIGKILL);
    const auto deadline = Clock::now() + 60s;
    for (std::uint32_t rank = 0; rank < kJoiningRanks; ++rank) {
      int status = 0;
      pid_t ended = 0;
      while ((ended = waitpid(processes[rank], &status, WNOHANG)) == 0 && Clock::now() < deadline)
        std::this_thread::sleep_for(1ms);
      if (ended == 0) {
        kill(processes[rank], SIGKILL);
        waitpid(processes[rank], nullptr, 0);
        ++counts.hung;
      } else if (rank != victim) {
        ++(WIFSIGNALED(status) ? counts.crashed : counts.survivors);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) ++counts.joined;
      }
    }
    std::filesystem::remove_all(folder);
  }
  return counts;
}

}  // namespace berth::bench
