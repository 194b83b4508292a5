// One rank that loads a checkpoint together with the others, compares its shards with slices of the file, moves them to
// another plan, and compares again. Prints "ok" or "error CODE message", and ends with 0 in both cases.
//
//   sharded_rank FILE RULES [what RANK PIECE]
// `what` happens on that rank after that many pieces: "kill" (itself), "cancel", "stay" (never comes) or "other" (it
// uses no rules).
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "berth/berth.h"
#include "berth/remote/load_sharded.h"

namespace {

using namespace std::chrono_literals;

int fail(const berth::Error& error) {
  std::printf("error %s %s\n", std::string(to_string(error.code())).c_str(), error.message().c_str());
  return 0;
}

bool is_right(const berth::ShardedTensors& loaded, const berth::WeightFile& file, std::uint32_t rank) {
  const auto cpu = berth::device("CPU").value();
  for (std::size_t i = 0; i < loaded.buffers.size(); ++i) {
    const berth::Shard shard = loaded.plan.shard(i, rank);
    if (shard.bytes == 0) continue;
    const auto expected = file.load_slice(loaded.plan.tensors()[i].name, shard.slice, cpu).value();
    const auto a = expected.as_host_bytes().value(), b = loaded.buffers[i].as_host_bytes().value();
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end())) {
      std::printf("%s differs\n", loaded.plan.tensors()[i].name.c_str());
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string_view what = argc > 5 ? argv[3] : "";
  // A short time to give up after should not begin while another process is still starting.
  const auto exchange = berth::make_job_exchange().value();
  exchange->publish("started", {}).value();
  exchange->fetch_all("started", std::chrono::steady_clock::now() + 60s).value();
  const auto cluster =
      berth::Cluster::join({.exchange = exchange, .give_up_after = what == "stay" ? 2'000ms : 60'000ms});
  if (!cluster) return fail(cluster.error());
  const std::uint32_t rank = (*cluster)->rank();
  const bool chosen = argc > 5 && rank == static_cast<std::uint32_t>(std::atoi(argv[4]));
  const auto file = berth::open_weights(argv[1]);
  if (!file) return fail(file.error());
  auto rules = berth::read_shard_rules(argv[2]);
  if (!rules) return fail(rules.error());
  if (chosen && what == "other") rules->clear();
  if (chosen && what == "stay") {
    sleep(4);
    return 0;
  }
  berth::ShardedLoadOptions options{.piece_bytes = 64 << 10};
  int pieces = 0;
  if (chosen && what != "other")
    options.progress = [&](const berth::LoadProgress&) {
      if (++pieces < std::atoi(argv[5])) return true;
      if (what == "kill") raise(SIGKILL);
      return what != "cancel";
    };
  const auto cpu = berth::device("CPU").value();
  const auto loaded = berth::load_sharded(**cluster, *file, *rules, cpu, options);
  if (!loaded) return fail(loaded.error());
  if (!is_right(*loaded, *file, rank)) return 1;
  const auto plan = berth::make_shard_plan(file->tensors(), {}, {.ranks = (*cluster)->ranks()}).value();
  const auto moved = berth::reshard(**cluster, *loaded, plan, cpu);
  if (!moved) return fail(moved.error());
  if (!is_right(*moved, *file, rank)) return 1;
  std::printf("ok\n");
  return 0;
}
