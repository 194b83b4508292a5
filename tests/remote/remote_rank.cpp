// One rank of a test, as a process of its own. It joins the job that its arguments describe, and then obeys commands
// that it reads from its input, one a line, each answered by one line. It ends when its input ends, so that it never
// outlives the test.
//
// If BERTH_TEST_MEET is set, it waits for the other processes before it joins.
//   berth_remote_rank FOLDER TOKEN RANK RANKS LENDS GIVE_UP_MS [INTERFACE [TRANSPORTS]]
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "berth/berth.h"
#include "berth/remote/cluster.h"
#include "remote/remote_device.h"

namespace {

using berth::Result;

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(each));
    text += digits;
  }
  return text;
}

std::vector<std::byte> unhex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::string answer_of(const Result<void>& result) {
  return result ? "ok" : "error " + std::string(to_string(result.error().code())) + " " + result.error().message();
}

// Byte i of a pattern.
std::byte pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<std::byte>((i * 131 + i / 251 * 7 + seed) & 0xff);
}

std::vector<std::byte> pattern_bytes(std::uint64_t seed, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(seed, i);
  return bytes;
}

// Stops this process. When it is resumed, it writes before it looks at what other ranks sent meanwhile: below the
// checks that a rank makes for itself, so that only those of the owner are left.
std::string write_blindly(const berth::Buffer& buffer, std::uint64_t seed) {
  using namespace berth::internal::remote;
  const auto bytes = pattern_bytes(seed, buffer.size());
  const auto& device = dynamic_cast<const RemoteDevice&>(buffer.device());
  const auto [region, offset] = device.find(buffer.window().value()).value();
  Engine& engine = device.engine();
  const berth::MutexLock lock(engine.mutex);  // so the progress thread waits, too
  std::raise(SIGSTOP);
  if (region->near != nullptr)
    return region->near->write(region->address + offset, bytes) == NearWindow::Outcome::kDone ? "ok" : "refused";
  const auto ticket = std::make_shared<Ticket>();
  engine.put(region->rank, region->key, region->address + offset, bytes, ticket);
  engine.wait([&] { return ticket->in_flight == 0; });
  return "ok";
}

class Rank {
 public:
  explicit Rank(berth::ClusterPtr cluster) : cluster_(std::move(cluster)) {}

  // Throws BadResult.
  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "open") {  // open NAME BYTES ACCESS SEED -> the window
      std::string name;
      std::size_t bytes = 0;
      int access = 0;
      std::uint64_t seed = 0;
      words >> name >> bytes >> access >> seed;
      auto buffer = berth::Buffer::allocate(berth::device("CPU").value(), berth::u8, {bytes}).value();
      const auto all = buffer.as_host_bytes_mut().value();
      for (std::size_t i = 0; i < bytes; ++i) all[i] = pattern(seed, i);
      const auto window = cluster_->open(buffer, static_cast<berth::Access>(access)).value();
      buffers_[name] = buffer;
      windows_[name] = window;
      return "ok " + hex(window.to_bytes());
    }
    if (command == "close") {  // close NAME
      std::string name;
      words >> name;
      auto closed = cluster_->close(windows_.at(name));
      return answer_of(closed);
    }
    if (command == "arrived") {  // arrived NAME COUNT
      std::string name;
      std::uint64_t count = 0;
      words >> name >> count;
      const auto moment = cluster_->arrived(windows_.at(name), count);
      return moment ? answer_of(berth::wait(*moment)) : answer_of(moment.error());
    }
    if (command == "holds") {  // holds NAME SEED: whether the buffer has that pattern
      std::string name;
      std::uint64_t seed = 0;
      words >> name >> seed;
      const auto all = buffers_.at(name).as_host_bytes().value();
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i] != pattern(seed, i)) return "differs at " + std::to_string(i);
      return "ok";
    }
    if (command == "put") {  // put WINDOW SEED: imports it and writes the pattern
      std::string window;
      std::uint64_t seed = 0;
      words >> window >> seed;
      const auto target = cluster_->import(berth::RemoteWindow::from_bytes(unhex(window)).value());
      if (!target) return answer_of(target.error());
      return answer_of(target->copyin(pattern_bytes(seed, target->size())));
    }
    if (command == "get") {  // get WINDOW SEED: imports it and compares
      std::string window;
      std::uint64_t seed = 0;
      words >> window >> seed;
      const auto source = cluster_->import(berth::RemoteWindow::from_bytes(unhex(window)).value());
      if (!source) return answer_of(source.error());
      std::vector<std::byte> bytes(source->size());
      if (auto read = source->copyout(bytes); !read) return answer_of(read);
      for (std::size_t i = 0; i < bytes.size(); ++i)
        if (bytes[i] != pattern(seed, i)) return "differs at " + std::to_string(i);
      return "ok";
    }
    if (command == "evict") {  // evict RANK BYTES: to that rank and back
      std::uint32_t rank = 0;
      std::size_t bytes = 0;
      words >> rank >> bytes;
      const auto neighbour = cluster_->device(rank);
      if (!neighbour) return answer_of(neighbour.error());
      const auto memory = berth::make_evictable(berth::device("CPU").value()).value();
      const auto buffer = berth::Buffer::allocate(memory, berth::u8, {bytes}, {.tag = "model"}).value();
      {
        const auto all = buffer.as_host_bytes_mut().value();
        for (std::size_t i = 0; i < bytes; ++i) all[i] = pattern(99, i);
      }
      if (auto evicted = memory->evict("model", *neighbour); !evicted) return answer_of(evicted.error());
      if (auto woken = memory->wake("model"); !woken) return answer_of(woken.error());
      const auto all = buffer.as_host_bytes().value();
      for (std::size_t i = 0; i < bytes; ++i)
        if (all[i] != pattern(99, i)) return "differs at " + std::to_string(i);
      return "ok";
    }
    if (command == "keep") {  // keep WINDOW: imports it for good
      std::string window;
      words >> window;
      auto imported = cluster_->import(berth::RemoteWindow::from_bytes(unhex(window)).value());
      if (!imported) return answer_of(imported.error());
      kept_.push_back(*std::move(imported));
      return "ok";
    }
    if (command == "write") {  // write SEED: the pattern into the window that was kept last
      std::uint64_t seed = 0;
      words >> seed;
      return answer_of(kept_.back().copyin(pattern_bytes(seed, kept_.back().size())));
    }
    if (command == "blind") {  // blind SEED: the same, stopped just before, as one that hears nothing of that time
      std::uint64_t seed = 0;
      words >> seed;
      return write_blindly(kept_.back(), seed);
    }
    if (command == "barrier") return answer_of(cluster_->barrier());
    if (command == "lost") {
      std::string text = "ok";
      for (const std::uint32_t rank : cluster_->lost()) text += " " + std::to_string(rank);
      return text;
    }
    if (command == "counters") return "ok " + to_string(cluster_->counters());
    if (command == "pid") return "ok " + std::to_string(getpid());
    return "error unknown command " + command;
  }

 private:
  berth::ClusterPtr cluster_;
  std::map<std::string, berth::Buffer> buffers_;
  std::map<std::string, berth::RemoteWindow> windows_;
  std::vector<berth::Buffer> kept_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 7) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  auto exchange = berth::make_folder_exchange({.folder = arguments[1],
                                               .rank = static_cast<std::uint32_t>(number(3)),
                                               .ranks = static_cast<std::uint32_t>(number(4)),
                                               .token = arguments[2]});
  if (!exchange) {
    std::printf("%s\n", answer_of(exchange.error()).c_str());
    return 1;
  }
  // Where all ranks are such processes, a short time to give up after should not begin while one is still starting.
  if (std::getenv("BERTH_TEST_MEET") != nullptr &&
      (!(*exchange)->publish("started", {}) ||
       !(*exchange)->fetch_all("started", std::chrono::steady_clock::now() + std::chrono::minutes(1))))
    return 1;
  berth::ClusterOptions options{.exchange = *exchange,
                                .transports = count > 8 ? arguments[8] : "",
                                .give_up_after = std::chrono::milliseconds(number(6)),
                                .lends = number(5)};
  if (count > 7 && std::string(arguments[7]) != "lo") options.interfaces = {arguments[7]};
  auto joined = berth::Cluster::join(options);
  if (!joined) {
    std::printf("%s\n", answer_of(joined.error()).c_str());
    return 1;
  }
  std::printf("ok joined\n");
  Rank rank(*std::move(joined));
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "quit") break;
    std::string answer;
    try {
      answer = rank.obey(line);
    } catch (const berth::BadResult& failed) {
      answer = answer_of(failed.error());
    }
    std::printf("%s\n", answer.c_str());
  }
  return 0;
}
