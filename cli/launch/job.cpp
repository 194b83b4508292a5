#include "launch/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/try.h"
#include "launch/lines.h"
#include "launch/parent_death.h"
#include "streams.h"

extern char** environ;

namespace berth::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kEndSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kOtherSignals{SIGUSR1, SIGUSR2, SIGCHLD};

Error io_error(const std::string& what) {
  return Error::with_text(Code::kIo, Layer::kProgram, what + ": " + std::strerror(errno));
}

int wake_pipe = -1;  // the end that the handler writes to

extern "C" void note_signal(int signal) {
  const int before = errno;
  const auto number = static_cast<unsigned char>(signal);
  // A full pipe has enough to wake up for.
  static_cast<void>(!::write(wake_pipe, &number, 1));
  errno = before;
}

// Signals arrive as bytes of a pipe while this object lives. What was ignored before stays ignored.
class SignalPipe {
 public:
  static Result<SignalPipe> open() {
    SignalPipe opened;
    if (pipe(opened.ends_) != 0) return io_error("a pipe for signals");
    for (const int end : opened.ends_) {
      fcntl(end, F_SETFD, FD_CLOEXEC);
      fcntl(end, F_SETFL, O_NONBLOCK);
    }
    wake_pipe = opened.ends_[1];
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    for (const int signal : all()) {
      struct sigaction before {};
      sigaction(signal, nullptr, &before);
      opened.previous_.push_back(before);
      if (before.sa_handler != SIG_IGN || signal == SIGCHLD) sigaction(signal, &action, nullptr);
    }
    return opened;
  }
  SignalPipe(SignalPipe&& other) noexcept : previous_(std::move(other.previous_)) {
    std::swap(ends_[0], other.ends_[0]);
    std::swap(ends_[1], other.ends_[1]);
    other.previous_.clear();
  }
  SignalPipe& operator=(SignalPipe&&) = delete;
  ~SignalPipe() {
    for (std::size_t i = 0; i < previous_.size(); ++i) sigaction(all()[i], &previous_[i], nullptr);
    for (const int end : ends_)
      if (end >= 0) close(end);
  }

  int descriptor() const noexcept { return ends_[0]; }
  // The signals since the last call.
  std::vector<int> take() {
    std::vector<int> signals;
    unsigned char chunk[64];
    for (ssize_t n; (n = ::read(ends_[0], chunk, sizeof chunk)) > 0;) signals.insert(signals.end(), chunk, chunk + n);
    return signals;
  }

 private:
  SignalPipe() = default;
  static std::vector<int> all() {
    std::vector<int> signals(kEndSignals.begin(), kEndSignals.end());
    signals.insert(signals.end(), kOtherSignals.begin(), kOtherSignals.end());
    return signals;
  }

  int ends_[2] = {-1, -1};
  std::vector<struct sigaction> previous_;
};

struct RankProcess {
  unsigned rank = 0;
  pid_t pid = -1;
  bool running = true;
  int status = 0;
  bool told_to_end = false;  // by this program
  LabelledLines out, err;    // with labels only

  bool failed() const { return !running && status != 0; }
  int exit_code() const { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }
};

std::string how_it_ended(const RankProcess& rank) {
  const std::string_view why = rank.told_to_end ? " after it was asked to end" : "";
  if (WIFSIGNALED(rank.status))
    return fmt::format("rank {} was ended by signal {} ({}){}", rank.rank, WTERMSIG(rank.status),
                       strsignal(WTERMSIG(rank.status)), why);
  return fmt::format("rank {} ended with exit code {}{}", rank.rank, WEXITSTATUS(rank.status), why);
}

class Job {
 public:
  Job(const JobOptions& options, SignalPipe& signals) : options_(options), signals_(signals) {}
  ~Job() {
    // Reached with ranks only if one could not be started, or after an exception.
    for (const RankProcess& rank : ranks_)
      if (rank.running) kill(-rank.pid, SIGKILL);
    for (const RankProcess& rank : ranks_)
      if (rank.running) waitpid(rank.pid, nullptr, 0);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Result<void> start() {
    ranks_.reserve(options_.ranks);
    for (unsigned rank = 0; rank < options_.ranks; ++rank) BERTH_TRY(start(rank));
    return {};
  }

  int run() {
    while (std::ranges::any_of(ranks_, &RankProcess::running)) {
      wait_for_news();
      for (const int signal : signals_.take()) take(signal);
      reap();
      if (kill_at_ && Clock::now() >= *kill_at_) {
        send(SIGKILL);
        kill_at_.reset();
      }
    }
    for (RankProcess& rank : ranks_) {
      rank.out.finish();
      rank.err.finish();
    }
    if (stopped_by_ != 0) return 128 + stopped_by_;
    return exit_code_;
  }

 private:
  // Starts one rank. The child reports through a pipe that closes itself if the program could not be run.
  Result<void> start(unsigned number) {
    std::vector<std::string> texts;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text(*variable);
      const std::string_view name = text.substr(0, text.find('='));
      if (name == "BERTH_RANK") continue;
      if (std::ranges::any_of(options_.environment, [&](const auto& set) { return set.first == name; })) continue;
      texts.emplace_back(text);
    }
    for (const auto& [name, value] : options_.environment) texts.push_back(name + "=" + value);
    texts.push_back(fmt::format("BERTH_RANK={}", number));
    std::vector<char*> variables, arguments;
    for (std::string& text : texts) variables.push_back(text.data());
    variables.push_back(nullptr);
    std::vector<std::string> program = options_.program;
    for (std::string& argument : program) arguments.push_back(argument.data());
    arguments.push_back(nullptr);

    RankProcess rank;
    rank.rank = number;
    int out[2] = {-1, -1}, err[2] = {-1, -1}, report[2] = {-1, -1};
    const auto close_all = [&] {
      for (int* ends : {out, err, report})
        for (int i = 0; i < 2; ++i)
          if (ends[i] >= 0) close(ends[i]);
    };
    if (pipe(report) != 0 || (options_.label && (pipe(out) != 0 || pipe(err) != 0))) {
      const Error error = io_error("a pipe to a rank");
      close_all();
      return error;
    }
    for (const int* ends : {out, err, report})
      for (int i = 0; i < 2; ++i)
        if (ends[i] >= 0) fcntl(ends[i], F_SETFD, FD_CLOEXEC);
    const pid_t parent = getpid();
    rank.pid = fork();
    if (rank.pid == 0) {
      setpgid(0, 0);  // so that what the rank starts can be ended with it
      end_with_parent(parent);
      for (const int signal : kEndSignals) reset_unless_ignored(signal);
      for (const int signal : {SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE, SIGXFSZ}) signal_default(signal);
      if (number > 0 || isatty(STDIN_FILENO) != 0)
        if (const int nothing = ::open("/dev/null", O_RDONLY); nothing >= 0) dup2(nothing, STDIN_FILENO);
      if (options_.label) {
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
      }
      environ = variables.data();
      execvp(arguments[0], arguments.data());
      const int failure = errno;
      static_cast<void>(!::write(report[1], &failure, sizeof failure));
      _exit(127);
    }
    if (rank.pid < 0) {
      const Error error = io_error(fmt::format("the process of rank {}", number));
      close_all();
      return error;
    }
    setpgid(rank.pid, rank.pid);  // also here: a signal may come before the child did it
    close(report[1]);
    if (options_.label) {
      close(out[1]);
      close(err[1]);
      rank.out = LabelledLines(out[0], stdout, number);
      rank.err = LabelledLines(err[0], stderr, number);
    }
    ranks_.push_back(std::move(rank));
    int failure = 0;
    ssize_t n = 0;
    do n = ::read(report[0], &failure, sizeof failure);
    while (n < 0 && errno == EINTR);
    close(report[0]);
    if (n == sizeof failure)
      return Error::with_text(failure == ENOENT ? Code::kNotFound : Code::kIo, Layer::kProgram,
                              fmt::format("{} cannot be started: {}", options_.program[0], std::strerror(failure)));
    return {};
  }

  static void signal_default(int number) { signal(number, SIG_DFL); }
  static void reset_unless_ignored(int number) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) signal_default(number);
  }

  // Sleeps until a signal, output of a rank or the end of the grace period. Takes the output.
  void wait_for_news() {
    std::vector<pollfd> watched{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    std::vector<LabelledLines*> sources;
    for (RankProcess& rank : ranks_)
      for (LabelledLines* lines : {&rank.out, &rank.err})
        if (lines->open()) {
          watched.push_back({.fd = lines->descriptor(), .events = POLLIN, .revents = 0});
          sources.push_back(lines);
        }
    int timeout = -1;
    if (kill_at_)
      timeout = static_cast<int>(std::clamp<std::int64_t>(
          std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count(), 0, 1'000'000));
    if (poll(watched.data(), watched.size(), timeout) <= 0) return;
    bool lost = false;
    for (std::size_t i = 0; i < sources.size(); ++i)
      if (watched[i + 1].revents != 0) lost = !sources[i]->take() || lost;
    if (lost && stopped_by_ == 0) {
      // Nobody reads the output any more, as after `| head`.
      stopped_by_ = SIGPIPE;
      ask_to_end(SIGTERM);
    }
  }

  void take(int signal) {
    if (std::ranges::find(kEndSignals, signal) == kEndSignals.end()) {
      if (signal != SIGCHLD) send(signal);
      return;
    }
    if (stopped_by_ != 0) return send(SIGKILL);  // the second time
    stopped_by_ = signal;
    ask_to_end(signal);
  }

  void send(int signal) {
    for (RankProcess& rank : ranks_)
      if (rank.running) kill(-rank.pid, signal);
  }

  void ask_to_end(int signal) {
    for (RankProcess& rank : ranks_) rank.told_to_end = rank.told_to_end || rank.running;
    send(signal);
    if (!kill_at_)
      kill_at_ = Clock::now() +
                 std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.grace_seconds));
  }

  void reap() {
    for (RankProcess& rank : ranks_) {
      if (!rank.running) continue;
      siginfo_t ended{};
      if (waitid(P_PID, static_cast<id_t>(rank.pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0)
        continue;
      // What it started and left behind, as long as nobody else can have this number.
      kill(-rank.pid, SIGKILL);
      waitpid(rank.pid, &rank.status, 0);
      rank.running = false;
      if (!rank.failed()) continue;
      complain("launch", how_it_ended(rank), 0);
      if (exit_code_ != 0) continue;
      exit_code_ = rank.exit_code();
      if (!options_.keep_going && stopped_by_ == 0) ask_to_end(SIGTERM);
    }
  }

  const JobOptions& options_;
  SignalPipe& signals_;
  std::vector<RankProcess> ranks_;
  std::optional<Clock::time_point> kill_at_;
  int stopped_by_ = 0;  // the signal
  int exit_code_ = 0;
};

}  // namespace

Result<int> run_job(const JobOptions& options) {
  BERTH_TRY_ASSIGN(SignalPipe signals, SignalPipe::open());
  signal(SIGPIPE, SIG_IGN);  // a reader of the output that is gone is an error of a write
  Job job(options, signals);
  BERTH_TRY(job.start());
  return job.run();
}

}  // namespace berth::cli
