#include "berth/remote/load_sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/try.h"
#include "berth/remote/window.h"
#include "remote/remote_device.h"
#include "remote/shard_load.h"

namespace berth {
namespace {

using namespace std::chrono_literals;
namespace remote = internal::remote;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = 100ms;  // how often a wait looks for lost ranks
constexpr int kPatience = 10;  // times the time that this rank needed

// Windows over UCX. Ranks tell each other their windows, and how they ended, through the exchange of the cluster.
class ClusterTransport final : public internal::ShardTransport {
 public:
  explicit ClusterTransport(Cluster& cluster)
      : cluster_(cluster), key_(fmt::format("sharded-{}-", cluster.exchange().next_number())) {}
  ~ClusterTransport() override { close(); }

  std::uint32_t rank() const noexcept override { return cluster_.rank(); }
  std::uint32_t ranks() const noexcept override { return cluster_.ranks(); }

  Result<void> begin(const Result<void>& own, const Buffer& memory, std::uint64_t fingerprint) override {
    Result<void> ready = own;
    std::vector<std::byte> about;
    if (ready) {
      Result<RemoteWindow> window = cluster_.open(memory, Access::kReadWrite);
      if (window) {
        window_ = *window;
        open_ = true;
        const auto number = std::as_bytes(std::span(&fingerprint, 1));
        about.assign(number.begin(), number.end());
        const std::vector<std::byte> packed = window->to_bytes();
        about.insert(about.end(), packed.begin(), packed.end());
      } else {
        ready = window.error();
      }
    }
    BERTH_TRY(tell("begin", ready, about));
    BERTH_TRY(ready);
    BERTH_TRY_ASSIGN(const auto all, hear("begin", Clock::now() + cluster_.give_up_after()));
    windows_.resize(ranks());
    for (std::uint32_t other = 0; other < ranks(); ++other) {
      const std::span<const std::byte> text(all[other]);
      if (text.size() < sizeof fingerprint ||
          !std::ranges::equal(text.first(sizeof fingerprint), std::as_bytes(std::span(&fingerprint, 1))))
        return Error(Code::kInvalidArgument, Layer::kDevice,
                     "rank {} loads something else: all ranks must use the same files, rules and options", other);
      BERTH_TRY_ASSIGN(windows_[other], RemoteWindow::from_bytes(text.subspan(sizeof fingerprint)));
    }
    started_ = Clock::now();
    return {};
  }

  Result<void> reach(std::uint32_t target) override {
    BERTH_TRY(import(target));
    return {};
  }

  Result<void> put(std::uint32_t target, std::uint64_t offset, const Window& source) override {
    BERTH_TRY_ASSIGN(const Import* const to, import(target));
    remote::TicketPtr& ticket = tickets_[last_mark_ + 1];
    if (ticket == nullptr) ticket = std::make_shared<remote::Ticket>();
    return remote::write(to->device->engine(), *to->place.region, to->place.offset + offset, source.host_bytes(),
                         ticket, false);
  }

  Result<std::uint64_t> mark() override { return ++last_mark_; }

  // The source may change as soon as UCX has read it. Whether the bytes have arrived is asked once, at the end: the
  // answer waits behind the bytes that the other rank sends, and two ranks that wait for each other lose half the link.
  Result<void> wait(std::uint64_t mark) override {
    const auto node = tickets_.extract(mark);
    if (node.empty() || imports_.empty()) return {};
    remote::Engine& engine = imports_.begin()->second.device->engine();
    const MutexLock lock(engine.mutex);
    engine.wait([&] { return node.mapped()->in_flight == 0; });
    return {};
  }

  Result<void> finish(Result<void> own) override {
    // Also after a failure: sources of puts in flight must stay until they have ended.
    while (!tickets_.empty())
      if (auto done = wait(tickets_.begin()->first); !done && own) own = std::move(done);
    if (own) own = confirm();
    if (!own) own = cause_of(own.error());
    imports_.clear();
    const auto own_time = Clock::now() - started_;
    Result<void> told = tell("end", own, {});
    // The others still write to this memory, so it stays open until they have ended, or are late.
    const auto patience = std::max<Clock::duration>(cluster_.give_up_after(), own_time * kPatience);
    auto heard = hear("end", Clock::now() + patience);
    close();
    BERTH_TRY(own);
    BERTH_TRY(told);
    if (!heard) return heard.error();
    return {};
  }

 private:
  struct Import {
    Buffer buffer;
    remote::RemoteDevice* device = nullptr;
    remote::RemoteDevice::Place place{};
  };

  Result<void> confirm() {
    if (imports_.empty()) return {};
    std::vector<std::uint32_t> targets;
    for (const auto& [target, to] : imports_) targets.push_back(target);
    return remote::flush(imports_.begin()->second.device->engine(), targets);
  }

  Result<const Import*> import(std::uint32_t target) {
    if (const auto known = imports_.find(target); known != imports_.end()) return &known->second;
    Import made;
    BERTH_TRY_ASSIGN(made.buffer, cluster_.import(windows_[target]));
    made.device = static_cast<remote::RemoteDevice*>(&made.buffer.device());
    BERTH_TRY_ASSIGN(const Window window, made.buffer.window());
    BERTH_TRY_ASSIGN(made.place, made.device->find(window));
    return &imports_.emplace(target, std::move(made)).first->second;
  }

  void close() noexcept {
    imports_.clear();
    if (std::exchange(open_, false)) static_cast<void>(cluster_.close(window_).has_value());
  }

  // Publishes success with `about`, or an error: its code and its message.
  Result<void> tell(const char* when, const Result<void>& own, std::span<const std::byte> about) {
    std::vector<std::byte> value{own ? std::byte{0} : std::byte{1}};
    if (own) {
      value.insert(value.end(), about.begin(), about.end());
    } else {
      value.push_back(static_cast<std::byte>(own.error().code()));
      const std::string text = own.error().message().substr(0, 4096);
      const auto bytes = std::as_bytes(std::span(text));
      value.insert(value.end(), bytes.begin(), bytes.end());
    }
    return cluster_.exchange().publish(key_ + when, value);
  }

  // What all ranks told, without the first byte. The error of the first that failed, or is lost.
  Result<std::vector<std::vector<std::byte>>> hear(const char* when, Deadline deadline) {
    std::vector<std::vector<std::byte>> all(ranks());
    for (std::uint32_t other = 0; other < ranks(); ++other) {
      for (;;) {
        const bool last = Clock::now() >= deadline;
        const std::vector<std::uint32_t> lost = cluster_.lost();
        auto value = cluster_.exchange().fetch(other, key_ + when, std::min<Deadline>(Clock::now() + kLook, deadline));
        if (value) {
          BERTH_TRY_ASSIGN(all[other], understood(other, *value));
          break;
        }
        if (value.error().code() != Code::kDeviceUnavailable) return value.error();
        // A lost rank ended the load for all, whichever one is waited for.
        if (!lost.empty()) return cause_of(lost_during_load(lost.front()));
        if (last) return value.error();
      }
    }
    return all;
  }

  static Error lost_during_load(std::uint32_t rank) {
    return Error(Code::kDeviceLost, Layer::kDevice, "rank {} was lost during a sharded load; nothing was kept", rank);
  }

  // A rank that fails tells so, closes its memory and may end, which the next rank sees as a lost rank or as a window
  // that is closed. What began it is a lost rank that told nothing, or otherwise what a rank told.
  Error cause_of(const Error& seen) {
    if (seen.code() != Code::kDeviceLost && seen.code() != Code::kNotFound) return seen;
    std::optional<Error> told;
    const auto ask = [&](std::uint32_t other) {
      const auto value = cluster_.exchange().fetch(other, key_ + "end", Clock::now());
      if (value && !told)
        if (const auto text = understood(other, *value); !text) told = text.error();
      return value.has_value();
    };
    for (const std::uint32_t other : cluster_.lost())
      if (!ask(other)) return lost_during_load(other);
    for (std::uint32_t other = 0; !told && seen.code() == Code::kNotFound && other < ranks(); ++other)
      if (other != rank()) ask(other);
    return told ? *told : seen;
  }

  static Result<std::vector<std::byte>> understood(std::uint32_t other, const std::vector<std::byte>& value) {
    if (value.size() >= 1 && value[0] == std::byte{0}) return std::vector<std::byte>(value.begin() + 1, value.end());
    if (value.size() < 2 || std::to_integer<unsigned>(value[1]) > static_cast<unsigned>(Code::kCycle))
      return Error(Code::kInvalidData, Layer::kDevice, "rank {} says something that is not understood", other);
    const std::string_view text(reinterpret_cast<const char*>(value.data()) + 2, value.size() - 2);
    return Error::with_text(static_cast<Code>(value[1]), Layer::kDevice,
                            fmt::format("rank {} failed in a sharded load: {}", other, text));
  }

  Cluster& cluster_;
  const std::string key_;
  RemoteWindow window_{};
  bool open_ = false;
  std::vector<RemoteWindow> windows_;
  std::map<std::uint32_t, Import> imports_;
  std::map<std::uint64_t, remote::TicketPtr> tickets_;  // of the puts before each mark
  std::uint64_t last_mark_ = 0;
  Clock::time_point started_ = Clock::now();
};

}  // namespace

Result<ShardedTensors> load_sharded(Cluster& cluster, const WeightFile& file, std::span<const ShardRule> rules,
                                    const AllocatorPtr& allocator, const ShardedLoadOptions& options) {
  ClusterTransport transport(cluster);
  return internal::load_sharded(transport, file, rules, allocator, options);
}

Result<ShardedTensors> reshard(Cluster& cluster, const ShardedTensors& from, const ShardPlan& to,
                               const AllocatorPtr& allocator, const ShardedLoadOptions& options) {
  ClusterTransport transport(cluster);
  return internal::reshard(transport, from, to, allocator, options);
}

}  // namespace berth
