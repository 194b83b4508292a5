#include "run/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/os/program_path.h"
#include "run/message.h"

namespace berth::cli {

using namespace internal;

namespace {

constexpr int kLookUpMs = 50;  // how often a wait looks for a stop request

Error pipe_error(const std::string& what) {
  return Error::with_text(Code::kIo, Layer::kProgram, what + ": " + std::strerror(errno));
}

// A pipe that the worker does not inherit.
int private_pipe(int (&ends)[2]) {
  if (pipe(ends) != 0) return -1;
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  return 0;
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& arguments, std::stop_token stop) {
  int in[2], out[2];
  if (private_pipe(in) != 0) return pipe_error("a pipe to a worker process");
  if (private_pipe(out) != 0) {
    const Error error = pipe_error("a pipe from a worker process");
    close(in[0]);
    close(in[1]);
    return error;
  }
  std::vector<char*> argv;
  std::vector<std::string> copies = arguments;
  copies.insert(copies.begin(), "berth");
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string program = program_path().string();
  // A child that ended must be an error of ask(), not a signal.
  signal(SIGPIPE, SIG_IGN);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    signal(SIGINT, SIG_IGN);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  ChildProcess child;
  child.pid_ = pid;
  child.to_ = in[1];
  child.from_ = out[0];
  child.stop_ = std::move(stop);
  if (pid < 0) return pipe_error("a worker process");
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      to_(std::exchange(other.to_, -1)),
      from_(std::exchange(other.from_, -1)),
      buffered_(std::move(other.buffered_)),
      stop_(std::move(other.stop_)) {}

ChildProcess::~ChildProcess() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

Result<nlohmann::json> ChildProcess::ask(const nlohmann::json& question) {
  const std::string line = encode_message(question) + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t n = write(to_, line.data() + sent, line.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error::with_text(Code::kIo, Layer::kProgram, "a worker process " + how_it_ended());
    sent += static_cast<std::size_t>(n);
  }
  Result<std::string> answer = read_line();
  if (!answer) return answer.error();
  nlohmann::json parsed = decode_message(*answer);
  if (parsed.is_discarded())
    return Error::with_text(Code::kIo, Layer::kProgram, "a worker process answered: " + *answer);
  if (const auto error = parsed.find("error"); error != parsed.end())
    return Error::with_text(static_cast<Code>(parsed.value("code", static_cast<unsigned>(Code::kDriver))),
                            Layer::kEngine, error->get<std::string>());
  return parsed;
}

Result<std::string> ChildProcess::read_line() {
  for (;;) {
    if (const std::size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    pollfd ready{.fd = from_, .events = POLLIN, .revents = 0};
    const int changed = poll(&ready, 1, kLookUpMs);
    if (stop_.stop_requested()) return cancelled();
    if (changed == 0 || (changed < 0 && errno == EINTR)) continue;
    char chunk[4096];
    const ssize_t n = read(from_, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Error::with_text(Code::kIo, Layer::kProgram, "a worker process " + how_it_ended());
    buffered_.append(chunk, static_cast<std::size_t>(n));
  }
}

// Ends the child at once: it may be in the middle of a run.
Error ChildProcess::cancelled() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  return Error(Code::kCancelled, Layer::kProgram, "interrupted");
}

std::string ChildProcess::how_it_ended() {
  int status = 0;
  if (pid_ <= 0 || waitpid(std::exchange(pid_, -1), &status, 0) < 0) return "is gone";
  if (WIFSIGNALED(status)) return std::string("was ended by a signal: ") + strsignal(WTERMSIG(status));
  return "ended with code " + std::to_string(WEXITSTATUS(status)) + " instead of answering";
}

}  // namespace berth::cli
