// Memory of other ranks: how fast it is next to a memcpy, a kernel copy and a plain socket, how much a sharded load
// reads and sends, how soon a lost rank is noticed, what a cluster costs, and what follows for 10,000 ranks. Everything
// stays on this machine; the rows of a 1 Gbit/s link need the right to make network namespaces.
//
//   remote_bench [--realtime] [--kills N] [--cuts N] [--joins N] [--only PART]...
// with N runs in which a rank is killed (20), its link cut (5), or a rank killed while all join (20), at a random
// moment; PART is one of costs, host, tcp, load, link, faults. --realtime: before all other work of the machine, where
// the system permits it.
#include <sched.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>

#include "remote_faults.h"
#include "remote_job.h"
#include "remote_joins.h"
#include "remote_sockets.h"
#include "support/network_namespaces.h"

namespace {

using namespace berth::bench;

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

void heading() {
  fmt::print("| {:<66} | {:>8} | {:<9} | {:<6} | {} |\n|---|---|---|---|---|\n", "what", "reached", "goal", "",
             "figures");
  std::fflush(stdout);
}

void row(const std::string& what, double reached, double goal, bool at_least, const std::string& detail) {
  const bool met = at_least ? reached >= goal : reached <= goal;
  fmt::print("| {:<66} | {:>8.3g} | {} {:<6.3g} | {:<6} | {} |\n", what, reached, at_least ? ">=" : "<=", goal,
             met ? "met" : "missed", detail);
  std::fflush(stdout);
}

std::string speeds(std::size_t bytes, double ours, double theirs, const char* peer) {
  return fmt::format("{:.2f} GB/s, {} {:.2f}", static_cast<double>(bytes) / ours / 1e9, peer,
                     static_cast<double>(bytes) / theirs / 1e9);
}

void one_host() {
  Job job({.window = kLarge});
  job.connect();
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
          if (process_vm_writev(job.pid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) std::abort();
        });
    row(fmt::format("one host, private memory, write of {}, of the kernel's copy", berth::format_bytes(bytes)),
        kernel / ours, 0.9, true, speeds(bytes, ours, kernel, "process_vm_writev"));
  }
}

void tcp_loopback() {
  Job job({.transports = "tcp"});
  job.connect();
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

// The bytes that have crossed an interface, with their headers.
double on_the_wire(const std::string& interface) {
  double sum = 0;
  for (const char* way : {"tx_bytes", "rx_bytes"}) {
    double bytes = 0;
    std::ifstream(fmt::format("/sys/class/net/{}/statistics/{}", interface, way)) >> bytes;
    sum += bytes;
  }
  return sum;
}

constexpr double kLink = 125e6;  // bytes per second of 1 Gbit/s, frames and headers included

// The parts that run on one "machine", with rank 1 on `other`.
void gigabit(const std::string& other) {
  const std::size_t bytes = 64 * kMiB;
  Job job({.lends = 2 * bytes, .interface = "berth0", .transports = "tcp", .before = {"ip", "netns", "exec", other}});
  job.connect();
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
  row("1 Gbit/s between namespaces, evict 64 MiB, of the link", static_cast<double>(bytes) / evict / kLink, 0.94, true,
      fmt::format("{:.1f} MB/s", static_cast<double>(bytes) / evict / 1e6));
  row("1 Gbit/s between namespaces, wake 64 MiB, of the link", static_cast<double>(bytes) / wake / kLink, 0.9, true,
      fmt::format("{:.1f} MB/s", static_cast<double>(bytes) / wake / 1e6));

  const auto path = std::filesystem::temp_directory_path() / fmt::format("berth_link_{}.safetensors", getpid());
  write_checkpoint(path, kLarge);
  const auto file = berth::open_weights(path).value();
  double load = 1e9, plain = 1e9, wire = 0;
  berth::ShardCost cost;
  flood::Client sockets(other);
  for (int i = 0; i < 5; ++i) {
    job.tell_all(path);
    const double before = on_the_wire("berth0");
    const auto start = Clock::now();
    const auto loaded =
        berth::load_sharded(job.cluster(), file, checkpoint_rules(), berth::device("CPU").value()).value();
    load = std::min(load, seconds_since(start));
    wire = on_the_wire("berth0") - before;
    cost = loaded.plan.cost();
    if (!is_right(loaded, file, 0) || !job.answers()[0].starts_with("ok")) std::abort();
    plain = std::min(plain, sockets.round(cost.largest_received));
  }
  const auto received = static_cast<double>(cost.largest_received);
  row("1 Gbit/s between namespaces, load 256 MiB by 2 ranks, of the link", received / load / kLink, 0.9, true,
      fmt::format("{:.1f} MB/s to each rank at once; with headers {:.3f} of what the plan sends", received / load / 1e6,
                  wire / static_cast<double>(cost.network_bytes)));
  fmt::print(
      "| {:<66} | {:>8.3g} | {:<9} | {:<6} | sockets, in turn with it: {:.1f} MB/s each way, {:.3f} of the link |\n",
      "the same, of plain sockets both ways at once", plain / load, "", "", received / plain / 1e6,
      received / plain / kLink);
  std::filesystem::remove(path);
}

// What the kernel says that all ranks together read, and what the plan sends.
void sharded_load() {
  constexpr std::uint32_t kRanks = 4;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("berth_load_{}.safetensors", getpid());
  write_checkpoint(path, kLarge);
  Job job({.ranks = kRanks, .lends = kMiB});
  job.connect();
  const auto file = berth::open_weights(path).value();
  job.tell_all(path);
  const double before = bytes_read();
  const auto loaded =
      berth::load_sharded(job.cluster(), file, checkpoint_rules(), berth::device("CPU").value()).value();
  double read = bytes_read() - before;
  for (const std::string& answer : job.answers()) {
    if (!answer.starts_with("ok ")) std::abort();
    read += std::strtod(answer.c_str() + 3, nullptr);
  }
  if (!is_right(loaded, file, 0)) std::abort();
  const berth::ShardCost cost = loaded.plan.cost();
  const auto all = static_cast<double>(cost.file_bytes);
  row("load by 4 ranks, bytes from storage, of the file", read / all, 1.01, false,
      fmt::format("{} of {}, counted by the kernel", berth::format_bytes(static_cast<std::size_t>(read)),
                  berth::format_bytes(cost.file_bytes)));
  row("load by 4 ranks, bytes over the network, of (N-1)/N of the file",
      static_cast<double>(cost.network_bytes) / (all * (kRanks - 1) / kRanks), 1.02, false,
      fmt::format("{}", berth::format_bytes(cost.network_bytes)));
  // The same without a cluster: what load_slice reads on all ranks together.
  double sliced = 0;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    for (std::size_t i = 0; i < loaded.plan.tensors().size(); ++i) {
      const double then = bytes_read();
      static_cast<void>(
          file.load_slice(loaded.plan.tensors()[i].name, loaded.plan.shard(i, rank).slice, berth::device("CPU").value())
              .value());
      sliced += bytes_read() - then;
    }
  fmt::print("| {:<66} | {:>8.3g} | {:<9} | {:<6} | rows of 8 KiB, columns of 2 KiB |\n",
             "load_slice on each of 4 ranks, bytes read, of the file", sliced / all, "", "");
  std::filesystem::remove(path);
}

void cut_link(const std::string& own, const std::string& other) {
  const auto give_up = 3000ms;
  Job job({.lends = 128 * kMiB,
           .give_up_after = give_up,
           .interface = "berth0",
           .transports = "tcp",
           .before = {"ip", "netns", "exec", other}});
  job.connect();
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
  if (std::system(
          fmt::format("ip netns exec {} {} --link {} {}", net.name(0), own_path(), net.name(0), net.name(1)).c_str()) !=
      0)
    fmt::print("| 1 Gbit/s between namespaces | - | - | failed | |\n");
}

void killed_rank() {
  Job job({.transports = "tcp"});
  job.connect();
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

void faults(int kills, int cuts, int joins) {
  const auto show = [](const char* what, const FaultCounts& counts) {
    row(fmt::format("hangs, crashes, wrong bytes in {} runs with a {}", counts.runs, what),
        counts.hung + counts.crashed + counts.wrong, 0, false,
        fmt::format("{} noticed, the last after {:.2f} s{}{}", counts.noticed, counts.longest,
                    counts.last_words.empty() ? "" : "; ", counts.last_words));
  };
  if (kills > 0) show("kill", count_faults(kills, {}, {}));
  if (joins > 0) {
    const JoinCounts counts = kill_during_joins(joins);
    row(fmt::format("hangs, crashes in {} joins of {} ranks with a kill", counts.runs, kJoiningRanks),
        counts.hung + counts.crashed, 0, false,
        fmt::format("{} ranks survived, {} of them joined before", counts.survivors, counts.joined));
  }
  if (cuts == 0) return;
  const berth::test::NetworkNamespaces net("1gbit");
  if (!net.made()) {
    fmt::print("| runs with a cut | - | - | not run | {} |\n", berth::test::NetworkNamespaces::why_not());
    return;
  }
  show("cut (give_up_after 2 s)", count_faults(cuts, net.on(0), {net.name(0), net.name(1)}));
}

// --- What a cluster costs ---

struct PeerCost {
  double memory = 0, descriptors = 0, seconds = 0;  // of all peers; seconds of processor time
};

// In a process of its own, so that no memory of an earlier cluster is used again: joins, and prints what connecting to
// all other ranks took.
int measure_peers(std::uint32_t ranks) {
  const auto memory = [] { return 1024 * number_in("/proc/self/status", "RssAnon:"); };
  const double start = memory();
  Job job({.ranks = ranks, .lends = kMiB});
  const double joined = memory();
  job.connect();
  fmt::print("{} {} {} {}\n", joined - start, memory() - start, open_descriptors() - job.before_join().descriptors,
             processor_seconds() - job.before_join().seconds);
  return 0;
}

// The memory after joining, and what the peers cost.
std::pair<double, PeerCost> peers_of(std::uint32_t ranks) {
  FILE* const output = popen(fmt::format("{} --peers {}", own_path(), ranks).c_str(), "r");
  std::array<double, 4> found{};
  if (output == nullptr || fscanf(output, "%lf %lf %lf %lf", &found[0], &found[1], &found[2], &found[3]) != 4)
    std::abort();
  pclose(output);
  return {found[0], {found[1], found[2], found[3]}};
}

void costs() {
  double shortest = 1e9, longest = 0;
  std::size_t card = 0;
  for (int i = 0; i < 5; ++i) {
    Job job({.lends = kMiB});
    job.connect();
    shortest = std::min(shortest, job.join_seconds());
    longest = std::max(longest, job.join_seconds());
    card = job.card_bytes();
  }
  row("join of 2 ranks, when the other is there, ms", 1e3 * shortest, 100, false,
      fmt::format("longest of 5: {:.0f} ms", 1e3 * longest));
  // The first peers make pools of UCX and of malloc grow, once.
  constexpr std::uint32_t kOne = 2, kSome = 17, kMany = 65;
  const auto [alone, one] = peers_of(kOne);
  const PeerCost some = peers_of(kSome).second, many = peers_of(kMany).second;
  const auto each = [&](double PeerCost::*what) { return (many.*what - some.*what) / (kMany - kSome); };
  const double memory = each(&PeerCost::memory), seconds = each(&PeerCost::seconds);
  row("memory of joining and one peer, MiB", one.memory / kMiB, 8, false,
      fmt::format("{:.1f} MiB after joining; with 16 peers {:.1f} MiB", alone / kMiB, some.memory / kMiB));
  row("memory of a further peer, KiB", memory / 1024, 8, false,
      fmt::format("64 peers against 16; {:.1f} descriptors and {:.2f} ms of processor time each",
                  each(&PeerCost::descriptors), 1e3 * seconds));

  // Two ways to load a checkpoint: docs/scale_out.md.
  constexpr double kRanks = 10'000, kParts = 8, kCheckpoint = 810e9, kFast = 50e9;
  fmt::print(
      "\n10,000 ranks, 810 GB, 8 ranks to a replica, with these constants:\n"
      "| | to all ranks | in the replica, then all-gather |\n|---|---|---|\n");
  const auto model = [&](const char* what, const std::function<std::string(double)>& of) {
    fmt::print("| {} | {} | {} |\n", what, of(kRanks), of(kParts + 2));
  };
  model("peers of a rank", [](double peers) { return fmt::format("{:.0f}", peers); });
  model("memory for them", [&](double peers) { return fmt::format("{:.1f} MiB", peers * memory / kMiB); });
  model("descriptors", [&](double peers) { return fmt::format("{:.0f}", peers * each(&PeerCost::descriptors)); });
  model("processor time to connect", [&](double peers) { return fmt::format("{:.3f} s", peers * seconds); });
  model("read from storage by a rank", [&](double) { return fmt::format("{:.0f} MB", kCheckpoint / kRanks / 1e6); });
  model("through the link of a rank, at 50 GB/s", [&](double) {
    return fmt::format("{:.0f} GB, {:.1f} s", kCheckpoint / kParts / 1e9, kCheckpoint / kParts / kFast);
  });
  fmt::print("| entries of the exchange that a rank reads | {} | {} |\n",
             berth::format_bytes(static_cast<std::size_t>(kRanks) * card),
             berth::format_bytes(static_cast<std::size_t>(kParts) * card));
  fmt::print("\n");
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  const auto is = [&](const char* word, std::size_t size) { return words.size() >= size && words[0] == word; };
  if (is("--flood", 1)) return flood::serve();
  if (is("--serve", 9)) return serve(arguments + 2);
  if (is("--peers", 2)) return measure_peers(static_cast<std::uint32_t>(std::stoul(words[1])));
  if (is("--faults", 3))
    return faulty_runs(std::stoi(words[1]), static_cast<std::uint32_t>(std::stoul(words[2])),
                       words.size() > 4 ? words[3] : "", words.size() > 4 ? words[4] : "");
  if (is("--link", 3)) {
    gigabit(words[2]);
    cut_link(words[1], words[2]);
    return 0;
  }
  int kills = 20, cuts = 5, joins = 20;
  std::set<std::string> only;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--realtime") {
      // Inherited by the other ranks.
      const sched_param priority{.sched_priority = 1};
      if (sched_setscheduler(0, SCHED_RR, &priority) != 0) fmt::print("--realtime: not permitted\n");
    }
    if (i + 1 == words.size()) break;
    if (words[i] == "--kills") kills = std::atoi(words[i + 1].c_str());
    if (words[i] == "--cuts") cuts = std::atoi(words[i + 1].c_str());
    if (words[i] == "--joins") joins = std::atoi(words[i + 1].c_str());
    if (words[i] == "--only") only.insert(words[i + 1]);
  }
  const auto wanted = [&](const char* part) { return only.empty() || only.contains(part); };
  const auto remote = berth::device("REMOTE");
  if (!remote && remote.error().message().find("Cluster::join") == std::string::npos) {
    fmt::print("{}\n", remote.error().message());
    return 1;
  }
  fmt::print("{}\n\n", remote.error().message());
  if (wanted("costs")) {
    heading();
    costs();
  }
  heading();
  if (wanted("host")) one_host();
  if (wanted("tcp")) tcp_loopback();
  if (wanted("load")) sharded_load();
  if (wanted("link")) between_namespaces();
  if (wanted("faults")) {
    killed_rank();
    faults(kills, cuts, joins);
  }
  return 0;
}
