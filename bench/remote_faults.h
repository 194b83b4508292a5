// Runs of remote_bench in which rank 1 is killed, or the link to it cut, at a random moment of a copy, an eviction or a
// sharded load. They happen in a process of their own, so that a crash or a hang is counted and not suffered. Not
// thread-safe.
#pragma once

#include <memory>
#include <random>
#include <thread>

#include "remote_job.h"
#include "support/network_namespaces.h"

namespace berth::bench {

// One round of work with rank 1. An error is that of a lost rank, or wrong; wrong bytes are always wrong.
class FaultyWork {
 public:
  FaultyWork(Job& job, std::string checkpoint, std::mt19937& random)
      : job_(job), path_(std::move(checkpoint)), random_(random) {}

  // False when the rank is lost, or something went wrong.
  bool round(int kind) {
    if (kind == 0) return copies();
    if (kind == 1) return evicts();
    return loads();
  }
  const std::string& wrong() const { return wrong_; }

 private:
  template <class T>
  bool works(const Result<T>& result) {
    if (result) return true;
    if (result.error().code() != Code::kDeviceLost) wrong_ = result.error().message();
    return false;
  }
  bool same(bool equal) {
    if (!equal) wrong_ = "wrong bytes";
    return equal;
  }

  bool copies() {
    const std::size_t bytes = 1 + random_() % (8 * kMiB);
    const Bytes source(bytes, static_cast<std::byte>(random_()));
    Bytes back(bytes);
    const auto device = job_.cluster().device(1);
    if (!works(device)) return false;
    const auto far = Buffer::allocate(*device, u8, {bytes});
    return works(far) && works(far->copyin(source)) && works(far->copyout(back)) && same(back == source);
  }

  bool evicts() {
    const std::size_t bytes = kMiB + random_() % (8 * kMiB);
    const auto device = job_.cluster().device(1);
    if (!works(device)) return false;
    const auto memory = make_evictable(berth::device("CPU").value()).value();
    const auto model = Buffer::allocate(memory, u8, {bytes}, {.tag = "model"}).value();
    const Bytes source(bytes, static_cast<std::byte>(random_()));
    model.copyin(source).value();
    if (!works(memory->evict("model", *device)) || !works(memory->wake("model"))) return false;
    const auto back = model.as_host_bytes().value();
    return same(std::equal(back.begin(), back.end(), source.begin(), source.end()));
  }

  bool loads() {
    job_.tell_all(path_);
    const auto file = open_weights(path_).value();
    const auto loaded = load_sharded(job_.cluster(), file, checkpoint_rules(), device("CPU").value());
    // A rank that does not come in time is no lost one yet.
    if (!loaded && loaded.error().code() == Code::kDeviceUnavailable) return false;
    if (!works(loaded)) return false;
    const auto answers = job_.answers();
    return same(is_right(*loaded, file, 0)) && same(!answers[0].starts_with("wrong"));
  }

  Job& job_;
  const std::string path_;
  std::mt19937& random_;
  std::string wrong_;
};

constexpr auto kGiveUp = 2000ms;  // after a cut

// A job that works. On a busy machine, ranks may take longer to start than they wait for each other.
inline std::unique_ptr<Job> start(const JobOptions& options) {
  for (int attempt = 1;; ++attempt) {
    try {
      auto job = std::make_unique<Job>(options);
      job->connect();
      return job;
    } catch (const BadResult&) {
      if (attempt == 10) throw;
    }
  }
}

// The process of its own: `runs` runs, each answered by one line, "lost SECONDS" or what went wrong. With the names of
// two namespaces the link is cut; otherwise the rank is killed.
inline int faulty_runs(int runs, std::uint32_t seed, const std::string& own, const std::string& other) {
  const bool cuts = !own.empty();
  std::mt19937 random(seed);
  const auto checkpoint = std::filesystem::temp_directory_path() / fmt::format("berth_faults_{}.safetensors", getpid());
  write_checkpoint(checkpoint, 24 * kMiB);
  for (int i = 0; i < runs; ++i) {
    // A run that was ended in the middle leaves the link cut.
    if (cuts && !test::NetworkNamespaces::heal(own, other, "1gbit")) std::abort();
    JobOptions options{.lends = 32 * kMiB, .transports = cuts || random() % 2 == 0 ? "tcp" : ""};
    if (cuts) {
      options.interface = "berth0";
      options.give_up_after = kGiveUp;
      options.before = {"ip", "netns", "exec", other};
    }
    const auto started = start(options);
    Job& job = *started;
    FaultyWork work(job, checkpoint, random);
    const int kind = static_cast<int>(random() % 3);
    Clock::time_point happened;
    std::thread fault([&, ms = random() % (cuts ? 300 : 60)] {
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      if (cuts && !test::NetworkNamespaces::cut(own, other)) std::abort();
      if (!cuts) job.kill_rank_1();
      happened = Clock::now();
    });
    while (job.cluster().lost().empty() && work.round(kind)) {
    }
    fault.join();
    // A cut is noticed by those who need the other side; a killed rank by itself.
    while (work.wrong().empty() && job.cluster().lost().empty() && (!cuts || work.round(0)))
      std::this_thread::sleep_for(1ms);
    if (work.wrong().empty())
      fmt::print("lost {:.3f}\n", seconds_since(happened));
    else
      fmt::print("wrong kind {}: {}\n", kind, work.wrong());
    std::fflush(stdout);
  }
  std::filesystem::remove(checkpoint);
  return 0;
}

struct FaultCounts {
  int runs = 0, noticed = 0, wrong = 0, crashed = 0, hung = 0;
  double longest = 0;
  std::string last_words{};
};

// Starts that process as often as it takes. `words` start it and name the namespaces.
inline FaultCounts count_faults(int runs, const std::vector<std::string>& before,
                                const std::vector<std::string>& nets) {
  FaultCounts counts;
  std::random_device seeds;
  while (counts.runs < runs) {
    std::string command;
    for (const std::string& word : before) command += word + " ";
    const std::uint32_t seed = seeds();
    // A run takes some seconds; one that takes two minutes hangs.
    command += fmt::format("{} --faults {} {}", own_path(), runs - counts.runs, seed);
    for (const std::string& net : nets) command += " " + net;
    FILE* const output = popen(fmt::format("exec {}", command).c_str(), "r");
    if (output == nullptr) std::abort();
    bool hangs = false;
    for (std::string line;;) {
      pollfd wanted{.fd = fileno(output), .events = POLLIN, .revents = 0};
      char letter = 0;
      if (poll(&wanted, 1, 120'000) == 0) {
        hangs = true;
        break;
      }
      if (read(fileno(output), &letter, 1) != 1) break;
      if (letter != '\n') {
        line += letter;
        continue;
      }
      ++counts.runs;
      if (line.starts_with("lost ")) {
        ++counts.noticed;
        counts.longest = std::max(counts.longest, std::strtod(line.c_str() + 5, nullptr));
      } else {
        ++counts.wrong;
        counts.last_words = fmt::format("{} (seed {})", line, seed);
      }
      line.clear();
    }
    if (hangs) {
      ++counts.runs;
      ++counts.hung;
      counts.last_words = fmt::format("a hang (seed {})", seed);
      return counts;  // the process is left to whoever looks for the cause
    }
    if (pclose(output) != 0) {
      ++counts.runs;
      ++counts.crashed;
      counts.last_words = fmt::format("a crash (seed {})", seed);
    }
  }
  return counts;
}

}  // namespace berth::bench
