// Memory of another process, as a device and as a window. Start it as a job of two ranks, on one machine with
//
//   berth launch -n 2 -- ./example_remote_buffer
//
// or with mpirun. Started alone, it forks to be both ranks. Rank 1 lends 64 MiB, in which rank 0 keeps a buffer and to
// which it evicts a model; then rank 0 writes into a buffer that rank 1 has opened. docs/scale_out.md explains each
// step.
#include <berth/berth.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kCount = 1 << 20;  // floats: 4 MiB

std::vector<float> counting() {
  std::vector<float> numbers(kCount);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  return numbers;
}

void rank_0(berth::Cluster& cluster, berth::Exchange& exchange) {
  // A buffer in the memory that rank 1 lends.
  const auto neighbour = berth::device("REMOTE:1").value();
  std::printf("rank 0: REMOTE:1 is %s\n", neighbour->description().c_str());
  const auto numbers = counting();
  const auto far = berth::Buffer::allocate(neighbour, berth::f32, {kCount}, {.label = "far"}).value();
  far.copyin(std::as_bytes(std::span(numbers))).value();
  std::vector<float> back(kCount);
  far.copyout(std::as_writable_bytes(std::span(back))).value();
  std::printf("rank 0: %s held by rank 1 and read back: %s\n", berth::format_bytes(far.size()).c_str(),
              back == numbers ? "equal" : "different");

  // A model that is not in use moves to the neighbour, and back.
  const auto memory = berth::make_evictable(berth::device("CPU").value()).value();
  const auto model = berth::Buffer::allocate(memory, berth::f32, {kCount}, {.tag = "model"}).value();
  model.copy_from(far).value();
  const std::size_t freed = memory->evict("model", neighbour).value();
  memory->wake("model").value();
  std::printf("rank 0: evicted %s to rank 1, woken: %s\n", berth::format_bytes(freed).c_str(),
              model.as_slice<float>().value()[kCount - 1] == numbers[kCount - 1] ? "equal" : "different");

  // A window that rank 1 has opened, sent through the exchange.
  const auto deadline = std::chrono::steady_clock::now() + cluster.give_up_after();
  const auto window = berth::RemoteWindow::from_bytes(exchange.fetch(1, "window", deadline).value()).value();
  const auto target = cluster.import(window).value();
  const auto queue = neighbour->make_queue().value();
  queue->copy(model.window().value(), target.window().value()).value();
  queue->finish().value();
}

void rank_1(berth::Cluster& cluster, berth::Exchange& exchange) {
  const auto buffer = berth::Buffer::allocate(berth::device("CPU").value(), berth::f32, {kCount}).value();
  const auto window = cluster.open(buffer, berth::Access::kWrite).value();
  exchange.publish("window", window.to_bytes()).value();
  berth::wait(cluster.arrived(window, 1).value()).value();
  cluster.close(window).value();
  std::printf("rank 1: %s has arrived: %s\n", to_string(window).c_str(),
              buffer.as_slice<float>().value()[12345] == 12345.0f ? "right" : "wrong");
}

int run() {
  auto exchange = berth::make_job_exchange().value();
  auto joined = berth::Cluster::join({.exchange = exchange, .lends = std::size_t{64} << 20});
  if (!joined) {
    std::printf("%s\n", joined.error().message().c_str());
    return joined.error().code() == berth::Code::kDeviceUnavailable ? 77 : 1;  // 77: a test skips it
  }
  (*joined)->rank() == 0 ? rank_0(**joined, *exchange) : rank_1(**joined, *exchange);
  // A rank that leaves takes the memory it lends with it.
  (*joined)->barrier().value();
  return 0;
}

}  // namespace

int main() {
  if (std::getenv("BERTH_EXCHANGE") != nullptr || std::getenv("PMIX_RANK") != nullptr) return run();
  std::string folder = (std::filesystem::temp_directory_path() / "berth_example_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  setenv("BERTH_EXCHANGE", folder.c_str(), 1);
  setenv("BERTH_RANKS", "2", 1);
  setenv("BERTH_JOB_TOKEN", folder.c_str(), 1);  // a secret in earnest: berth launch draws one
  const pid_t child = fork();
  setenv("BERTH_RANK", child == 0 ? "1" : "0", 1);
  const int own = run();
  std::fflush(stdout);
  if (child == 0) _exit(own);
  int other = 0;
  waitpid(child, &other, 0);
  std::filesystem::remove_all(folder);
  return own != 0 ? own : WEXITSTATUS(other);
}
