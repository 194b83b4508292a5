// Memory of other ranks: how fast it is next to a memcpy, a kernel copy and a plain socket, how soon a lost rank is
// noticed, and what a cluster costs. The ranks are this program, started again. Everything stays on this machine; the
// rows of a 1 Gbit/s link need the right to make network namespaces.
//
//   remote_bench [--runs N]      N runs with a rank killed at a random moment (20)
//   remote_bench --kills N       only these
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "berth/berth.h"
#include "support/network_namespaces.h"

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLarge = 256 * kMiB;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The resident bytes of a process.
double resident(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  double total = 0, pages = 0;
  file >> total >> pages;
  return pages * 4096;
}

// --- The other rank ---

// FOLDER RANK RANKS LENDS GIVE_UP_MS INTERFACE TRANSPORTS WINDOW_BYTES. Says its process and the address of its window,
// and serves until its input ends.
int serve(char** arguments) {
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  const std::string interface = arguments[5];
  const auto exchange = berth::make_folder_exchange({.folder = arguments[0],
                                                     .rank = static_cast<std::uint32_t>(number(1)),
                                                     .ranks = static_cast<std::uint32_t>(number(2)),
                                                     .token = arguments[0]})
                            .value();
  berth::ClusterOptions options{.exchange = exchange,
                                .transports = arguments[6],
                                .give_up_after = std::chrono::milliseconds(number(4)),
                                .lends = number(3)};
  if (interface != "lo") options.interfaces = {interface};
  const auto cluster = berth::Cluster::join(options).value();
  cluster->barrier().value();
  void* address = nullptr;
  berth::Buffer buffer;
  if (number(7) > 0) {
    buffer = berth::Buffer::allocate(berth::device("CPU").value(), berth::u8, {number(7)}, {.zero = true}).value();
    std::memset(buffer.as_raw_ptr(), 1, number(7));
    exchange->publish("window", cluster->open(buffer).value().to_bytes()).value();
    address = buffer.as_raw_ptr();
  }
  std::cout << getpid() << " " << reinterpret_cast<std::uintptr_t>(address) << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
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

// A job of which this process is rank 0.
class Job {
 public:
  explicit Job(JobOptions options) : options_(std::move(options)) {
    std::string pattern = (std::filesystem::temp_directory_path() / "berth_bench_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    folder_ = pattern;
    for (std::uint32_t rank = 1; rank < options_.ranks; ++rank) start(rank);
    exchange_ =
        berth::make_folder_exchange({.folder = folder_, .rank = 0, .ranks = options_.ranks, .token = folder_}).value();
    berth::ClusterOptions join{
        .exchange = exchange_, .transports = options_.transports, .give_up_after = options_.give_up_after};
    if (options_.interface != "lo") join.interfaces = {options_.interface};
    // What is measured is this rank's own part: the others have published what they say.
    for (std::uint32_t rank = 1; rank < options_.ranks; ++rank)
      exchange_->fetch(rank, "berth.cluster", Clock::now() + 60s).value();
    before_join_ = resident(getpid());
    const auto begun = Clock::now();
    cluster_ = berth::Cluster::join(join).value();
    join_seconds_ = seconds_since(begun);
    joined_ = resident(getpid());
    cluster_->barrier().value();  // which connects this rank to all others
    for (Child& child : children_) {
      std::string line;
      char letter = 0;
      while (read(child.from, &letter, 1) == 1 && letter != '\n') line += letter;
      std::istringstream(line) >> child.pid >> child.address;
    }
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

  berth::Cluster& cluster() { return *cluster_; }
  double join_seconds() const { return join_seconds_; }
  double before_join() const { return before_join_; }
  double joined() const { return joined_; }
  pid_t pid(std::size_t i) const { return children_[i].pid; }
  void* address() const { return reinterpret_cast<void*>(children_[0].address); }
  void kill_rank_1() { kill(children_[0].pid, SIGKILL); }
  berth::DevicePtr neighbour(std::uint32_t rank = 1) { return cluster_->device(rank).value(); }
  berth::Buffer window() {
    const auto packed = exchange_->fetch(1, "window", Clock::now() + 10s).value();
    return cluster_->import(berth::RemoteWindow::from_bytes(packed).value()).value();
  }

 private:
  struct Child {
    pid_t started = 0, pid = 0;
    std::uintptr_t address = 0;
    int to = -1, from = -1;
  };
  void start(std::uint32_t rank) {
    std::vector<std::string> words = options_.before;
    words.insert(words.end(), {std::filesystem::read_symlink("/proc/self/exe").string(), "--serve", folder_,
                               std::to_string(rank), std::to_string(options_.ranks), std::to_string(options_.lends),
                               std::to_string(options_.give_up_after.count()), options_.interface, options_.transports,
                               std::to_string(options_.window)});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
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
  berth::ExchangePtr exchange_;
  berth::ClusterPtr cluster_;
  double join_seconds_ = 0, before_join_ = 0, joined_ = 0;
};

// --- What is measured ---

// The shortest of several rounds, both ways in turn.
std::pair<double, double> best(int rounds, const std::function<void()>& ours, const std::function<void()>& theirs) {
  double a = 1e9, b = 1e9;
  for (int i = 0; i < rounds; ++i) {
    auto start = Clock::now();
    ours();
    a = std::min(a, seconds_since(start));
    start = Clock::now();
    theirs();
    b = std::min(b, seconds_since(start));
  }
  return {a, b};
}

void row(const std::string& what, double reached, double goal, bool at_least, const std::string& detail) {
  const bool met = at_least ? reached >= goal : reached <= goal;
  fmt::print("| {:<58} | {:>8.3g} | {} {:<6.3g} | {:<6} | {} |\n", what, reached, at_least ? ">=" : "<=", goal,
             met ? "met" : "missed", detail);
  std::fflush(stdout);
}

std::string speeds(std::size_t bytes, double ours, double theirs, const char* peer) {
  return fmt::format("{:.2f} GB/s, {} {:.2f}", static_cast<double>(bytes) / ours / 1e9, peer,
                     static_cast<double>(bytes) / theirs / 1e9);
}

void one_host() {
  Job job({.window = kLarge});
  const Bytes source(kLarge, std::byte{7});
  Bytes target(kLarge, std::byte{1});
  const auto neighbour = job.neighbour();
  const auto far = berth::Buffer::allocate(neighbour, berth::u8, {kLarge}, {.zero = true}).value();
  const auto queue = neighbour->make_queue().value();
  const auto window = job.window();
  for (const std::size_t bytes : {kMiB, kLarge}) {
    const auto part = far.view(0, bytes).value();
    const int rounds = bytes == kMiB ? 200 : 8;
    // The same threads copy in both cases: berth's own copy, so that the ratio shows the cost of the other rank.
    const auto near = berth::Buffer::allocate(berth::device("CPU").value(), berth::u8, {bytes}, {.zero = true}).value();
    const auto span = std::span(source).first(bytes);
    const auto [ours, copy] = best(
        rounds, [&] { part.copyin(span).value(); }, [&] { near.copyin(span).value(); });
    row(fmt::format("one host, lease, write of {}, of memcpy", berth::format_bytes(bytes)), copy / ours, 0.9, true,
        speeds(bytes, ours, copy, "memcpy"));
  }
  for (const std::size_t bytes : {kMiB, kLarge}) {
    const auto part = window.view(0, bytes).value();
    const int rounds = bytes == kMiB ? 200 : 8;
    const auto [ours, kernel] = best(
        rounds, [&] { part.copyin(std::span(source).first(bytes)).value(); },
        [&] {
          iovec local{const_cast<std::byte*>(source.data()), bytes}, remote{job.address(), bytes};
          if (process_vm_writev(job.pid(0), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) std::abort();
        });
    row(fmt::format("one host, private memory, write of {}, of the kernel's copy", berth::format_bytes(bytes)),
        kernel / ours, 0.9, true, speeds(bytes, ours, kernel, "process_vm_writev"));
  }
}

// A plain socket on the loopback interface, with a receiving thread.
class Socket {
 public:
  explicit Socket(std::size_t bytes) : received_(bytes) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      std::abort();
    sender_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(sender_, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
    receiver_ = accept(listener, nullptr, nullptr);
    close(listener);
    thread_ = std::thread([this] {
      while (true) {
        std::size_t at = 0;
        while (at < received_.size()) {
          const ssize_t got = recv(receiver_, received_.data() + at, received_.size() - at, 0);
          if (got <= 0) return;
          at += static_cast<std::size_t>(got);
        }
        if (write(receiver_, "k", 1) != 1) return;
      }
    });
  }
  ~Socket() {
    shutdown(sender_, SHUT_RDWR);
    thread_.join();
    close(sender_);
    close(receiver_);
  }
  void send_all(const Bytes& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = send(sender_, bytes.data() + at, bytes.size() - at, 0);
      if (sent <= 0) std::abort();
      at += static_cast<std::size_t>(sent);
    }
    char answer = 0;
    if (read(sender_, &answer, 1) != 1) std::abort();
  }

 private:
  Bytes received_;
  int sender_ = -1, receiver_ = -1;
  std::thread thread_;
};

void tcp_loopback() {
  Job job({.transports = "tcp"});
  const Bytes source(kLarge, std::byte{7});
  Bytes target(kLarge, std::byte{1});
  Socket plain(kLarge);
  const auto far = berth::Buffer::allocate(job.neighbour(), berth::u8, {kLarge}, {.zero = true}).value();
  const auto [put, sent] = best(
      6, [&] { far.copyin(source).value(); }, [&] { plain.send_all(source); });
  row("TCP loopback, put of 256 MiB, of a plain socket", sent / put, 0.85, true, speeds(kLarge, put, sent, "socket"));
  const auto [got, again] = best(
      6, [&] { far.copyout(target).value(); }, [&] { plain.send_all(source); });
  row("TCP loopback, read back of 256 MiB, of a plain socket", again / got, 0.8, true,
      speeds(kLarge, got, again, "socket"));
}

// The parts that run on "machine" `own`, with rank 1 on `other`.
void gigabit(const std::string& other) {
  const std::size_t bytes = 64 * kMiB;
  Job job({.lends = 2 * bytes, .interface = "berth0", .transports = "tcp", .before = {"ip", "netns", "exec", other}});
  const auto memory = berth::make_evictable(berth::device("CPU").value()).value();
  const auto model = berth::Buffer::allocate(memory, berth::u8, {bytes}, {.tag = "model"}).value();
  std::memset(model.as_raw_ptr(), 5, bytes);
  const auto neighbour = job.neighbour();
  double evict = 1e9, wake = 1e9;
  for (int i = 0; i < 3; ++i) {
    auto start = Clock::now();
    memory->evict("model", neighbour).value();
    evict = std::min(evict, seconds_since(start));
    start = Clock::now();
    memory->wake("model").value();
    wake = std::min(wake, seconds_since(start));
  }
  const double link = 125e6;  // bytes per second, frames and headers included
  row("1 Gbit/s between namespaces, evict 64 MiB, of the link", static_cast<double>(bytes) / evict / link, 0.94, true,
      fmt::format("{:.1f} MB/s", static_cast<double>(bytes) / evict / 1e6));
  row("1 Gbit/s between namespaces, wake 64 MiB, of the link", static_cast<double>(bytes) / wake / link, 0.9, true,
      fmt::format("{:.1f} MB/s", static_cast<double>(bytes) / wake / 1e6));
}

void cut_link(const std::string& own, const std::string& other) {
  const auto give_up = 3000ms;
  Job job({.lends = 128 * kMiB,
           .give_up_after = give_up,
           .interface = "berth0",
           .transports = "tcp",
           .before = {"ip", "netns", "exec", other}});
  const auto far = berth::Buffer::allocate(job.neighbour(), berth::u8, {64 * kMiB}).value();
  const Bytes source(64 * kMiB);
  far.copyin(source).value();
  std::optional<Clock::time_point> cut;
  std::thread cutter([&] {
    std::this_thread::sleep_for(150ms);
    if (!berth::test::NetworkNamespaces::cut(own, other)) std::abort();
    cut = Clock::now();
  });
  while (far.copyin(source)) {
  }
  const auto noticed = Clock::now();
  cutter.join();
  row("error after the link is cut during a put, of give_up_after",
      std::chrono::duration<double>(noticed - *cut).count() / std::chrono::duration<double>(give_up).count(), 1.1,
      false, "3 s; DeviceLost");
}

// UCX looks for interfaces in /sys, which a process sees of the namespace that it was started in.
void between_namespaces() {
  const berth::test::NetworkNamespaces net("1gbit");
  if (!net.made()) {
    fmt::print("| 1 Gbit/s between namespaces | - | - | not run | {} |\n", berth::test::NetworkNamespaces::why_not());
    return;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  if (std::system(
          fmt::format("ip netns exec {} {} --link {} {}", net.name(0), self, net.name(0), net.name(1)).c_str()) != 0)
    fmt::print("| 1 Gbit/s between namespaces | - | - | failed | |\n");
}

void killed_rank() {
  Job job({.transports = "tcp"});
  const auto far = berth::Buffer::allocate(job.neighbour(), berth::u8, {kLarge}).value();
  const Bytes source(kLarge);
  std::optional<Clock::time_point> killed;
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    killed = Clock::now();
    job.kill_rank_1();
  });
  while (far.copyin(source)) {
  }
  const auto noticed = Clock::now();
  killer.join();
  row("error after a rank is killed during a put, seconds", std::chrono::duration<double>(noticed - *killed).count(),
      0.5, false, "DeviceLost");
}

void random_kills(int runs) {
  std::random_device seed;
  std::mt19937 random(seed());
  int wrong = 0, lost = 0;
  double longest = 0;
  for (int i = 0; i < runs; ++i) {
    Job job({.lends = 32 * kMiB, .transports = i % 2 == 0 ? "" : "tcp"});
    const auto opened = job.cluster().device(1);
    Clock::time_point killed;
    std::thread killer([&job, &killed, ms = random() % 40] {
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      killed = Clock::now();
      job.kill_rank_1();
    });
    const auto failed = [&](const auto& result) {
      if (!result && result.error().code() != berth::Code::kDeviceLost) ++wrong;
      return !result;
    };
    const auto until = Clock::now() + 60s;
    while (opened && Clock::now() < until && job.cluster().lost().empty()) {
      const std::size_t bytes = 1 + random() % (8 * kMiB);
      const Bytes source(bytes, static_cast<std::byte>(random()));
      Bytes back(bytes);
      const auto far = berth::Buffer::allocate(*opened, berth::u8, {bytes});
      if (failed(far) || failed(far->copyin(source)) || failed(far->copyout(back))) break;
      if (back != source) ++wrong;
    }
    killer.join();
    while (job.cluster().lost().empty() && Clock::now() < until) std::this_thread::sleep_for(1ms);
    lost += !job.cluster().lost().empty();
    longest = std::max(longest, seconds_since(killed));
  }
  row(fmt::format("hangs, crashes, wrong bytes in {} runs with a kill", runs), runs - lost + wrong, 0, false,
      fmt::format("{} of {} noticed, the last after {:.2f} s", lost, runs, longest));
}

void costs() {
  double shortest = 1e9, longest = 0, alone = 0;
  for (int i = 0; i < 5; ++i) {
    Job job({.lends = kMiB});
    shortest = std::min(shortest, job.join_seconds());
    longest = std::max(longest, job.join_seconds());
    static_cast<void>(job.neighbour());
    alone = resident(getpid()) - job.before_join();
  }
  row("join of 2 ranks, when the other is there, ms", 1e3 * shortest, 100, false,
      fmt::format("longest of 5: {:.0f} ms", 1e3 * longest));
  constexpr std::uint32_t kMany = 13;
  Job job({.ranks = kMany, .lends = 64 * kMiB});
  const double connected = resident(getpid());
  std::vector<berth::DevicePtr> devices;
  for (std::uint32_t rank = 1; rank < kMany; ++rank) devices.push_back(job.neighbour(rank));
  const double opened = resident(getpid());
  row("memory of joining and one peer, MiB", alone / kMiB, 8, false, "after the library is loaded once");
  row("memory of a further peer, KiB", (connected - job.joined()) / 1024 / (kMany - 1), 8, false,
      fmt::format("connected; {:.0f} KiB more with its device", (opened - connected) / 1024 / (kMany - 1)));
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 10 && std::string_view(arguments[1]) == "--serve") return serve(arguments + 2);
  if (count == 4 && std::string_view(arguments[1]) == "--link") {
    gigabit(arguments[3]);
    cut_link(arguments[2], arguments[3]);
    return 0;
  }
  int runs = 20;
  if (count == 3 && std::string_view(arguments[1]) == "--runs") runs = std::atoi(arguments[2]);
  const auto remote = berth::device("REMOTE");
  if (!remote && remote.error().message().find("Cluster::join") == std::string::npos) {
    fmt::print("{}\n", remote.error().message());
    return 1;
  }
  fmt::print("{}\n\n", remote.error().message());
  fmt::print("| {:<58} | {:>8} | {:<9} | {:<6} | {} |\n|---|---|---|---|---|\n", "what", "reached", "goal", "",
             "figures");
  if (count == 3 && std::string_view(arguments[1]) == "--kills") {
    random_kills(std::atoi(arguments[2]));
    return 0;
  }
  // First, while the process is small.
  costs();
  one_host();
  tcp_loopback();
  between_namespaces();
  killed_rank();
  random_kills(runs);
  return 0;
}
