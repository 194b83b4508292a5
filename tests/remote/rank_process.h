// Ranks of a test as processes of their own: starts berth_remote_rank, which lies beside the test program, sends it
// commands and reads its answers. Every wait ends after a generous time with an empty answer, and the process is killed
// with the object, so that a test neither hangs nor leaves anything behind. Not thread-safe.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "base/os/program_path.h"
#include "base/sanitizers.h"
#include "berth/berth.h"
#include "berth/remote/cluster.h"

extern char** environ;

namespace berth::test {

constexpr std::chrono::seconds kPatience{60};

#if BERTH_THREAD_SANITIZER
// UCX puts hooks into mmap and madvise, which run at the end of a thread when the sanitizer has forgotten it. Set
// before the library is loaded, and inherited by other ranks.
inline const bool kNoUcxHooks = setenv("UCX_MEM_EVENTS", "n", 1) == 0;
#endif

// A folder for one job, removed with the object.
class JobFolder {
 public:
  JobFolder() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() /
            ("berth_job_" + std::to_string(getpid()) + "_" + std::to_string(random()));
    std::filesystem::create_directory(path_);
    token_ = "token " + std::to_string(random());
  }
  ~JobFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  std::string path() const { return path_.string(); }
  const std::string& token() const { return token_; }
  ExchangePtr exchange(std::uint32_t rank, std::uint32_t ranks) const {
    return make_folder_exchange({.folder = path(), .rank = rank, .ranks = ranks, .token = token_}).value();
  }
  // Waits, generously, until other ranks are about to join: a short give_up_after is no time to start a process in.
  void await(std::initializer_list<std::uint32_t> others, std::uint32_t ranks) const {
    for (const std::uint32_t rank : others)
      exchange(0, ranks)->fetch(rank, "berth.cluster", std::chrono::steady_clock::now() + kPatience).value();
  }

 private:
  std::filesystem::path path_;
  std::string token_;
};

struct RankOptions {
  std::size_t lends = 0;
  std::chrono::milliseconds give_up_after{60'000};
  std::string interface = "lo";
  std::string transports{};
  std::string token{};                     // empty: the folder's
  std::vector<std::string> before{};       // a command that runs the program, such as {"ip", "netns", "exec", "a"}
  std::vector<std::string> environment{};  // "NAME=value"
};

class RankProcess {
 public:
  RankProcess(const JobFolder& folder, std::uint32_t rank, std::uint32_t ranks, const RankOptions& options = {}) {
    std::vector<std::string> words = options.before;
    words.insert(words.end(),
                 {(internal::program_path().parent_path() / "remote" / "berth_remote_rank").string(), folder.path(),
                  options.token.empty() ? folder.token() : options.token, std::to_string(rank), std::to_string(ranks),
                  std::to_string(options.lends), std::to_string(options.give_up_after.count()), options.interface});
    if (!options.transports.empty()) words.push_back(options.transports);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<std::string> variables = options.environment;
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** each = environ; *each != nullptr; ++each) environment.push_back(*each);
    environment.push_back(nullptr);
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environment.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~RankProcess() {
    kill9();
    close(to_);
    close(from_);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // The first line, when the process has joined: "ok joined" or an error.
  std::string joined() { return answer(); }
  void send(const std::string& command) {
    const std::string line = command + "\n";
    // A process that is gone has no answer, which is what a test sees.
    static_cast<void>(!write(to_, line.data(), line.size()));
  }
  // The next line of its output; empty if it ended or did not answer.
  std::string answer() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      if (const auto end = read_.find('\n'); end != std::string::npos) {
        const std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return line;
      }
      pollfd wanted{.fd = from_, .events = POLLIN, .revents = 0};
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0 || poll(&wanted, 1, static_cast<int>(left.count())) <= 0) return "";
      char buffer[4096];
      const ssize_t got = read(from_, buffer, sizeof buffer);
      if (got <= 0) return "";
      read_.append(buffer, static_cast<std::size_t>(got));
    }
  }
  std::string ask(const std::string& command) {
    send(command);
    return answer();
  }
  // The answer without its "ok ".
  std::string value(const std::string& command) {
    const std::string text = ask(command);
    EXPECT_EQ(text.substr(0, 3), "ok ") << command << ": " << text;
    return text.size() > 3 ? text.substr(3) : "";
  }
  RemoteWindow open(const std::string& name, std::size_t bytes, Access access, std::uint64_t seed) {
    const std::string text = value("open " + name + " " + std::to_string(bytes) + " " +
                                   std::to_string(static_cast<int>(access)) + " " + std::to_string(seed));
    std::vector<std::byte> packed;
    for (std::size_t i = 0; i + 1 < text.size(); i += 2)
      packed.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
    return RemoteWindow::from_bytes(packed).value();
  }

  void kill9() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Returns when it has stopped: its threads run on until then.
  void stop() {
    kill(pid_, SIGSTOP);
    await_stop();
  }
  void await_stop() { waitpid(pid_, nullptr, WUNTRACED); }
  void resume() { kill(pid_, SIGCONT); }
  // Ends in order.
  int quit() {
    send("quit");
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string read_;
};

// A window as a word of a command.
inline std::string word_of(const RemoteWindow& window) {
  std::string text;
  for (const std::byte each : window.to_bytes()) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(each));
    text += digits;
  }
  return text;
}

inline std::byte rank_pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<std::byte>((i * 131 + i / 251 * 7 + seed) & 0xff);
}
inline std::vector<std::byte> rank_pattern_bytes(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = rank_pattern(seed, i);
  return result;
}

}  // namespace berth::test
