#include "remote/member.h"

#include <fmt/format.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "base/try.h"
#include "remote/remote_device.h"

namespace berth::internal::remote {
namespace {

constexpr const char* kJoinKey = "berth.cluster";
// What endpoints that report errors of their peers can use. "cma" also lets Berth have the kernel copy; see near_*.h.
constexpr const char* kTransports = "tcp,cma";

// "name/boot": the boot tells machines with the same name apart.
std::string host_identity() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name.data()) + "/" + boot;
}

std::string network_identity() {
  std::array<char, 64> link{};
  const ssize_t got = readlink("/proc/self/ns/net", link.data(), link.size());
  return got > 0 ? std::string(link.data(), static_cast<std::size_t>(got)) : "";
}

std::string transports_of(const ClusterOptions& options) {
  if (!options.transports.empty()) return options.transports;
  const char* const chosen = std::getenv("UCX_TLS");
  return chosen != nullptr && *chosen != '\0' ? chosen : kTransports;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// UCX passes over interfaces that do not exist. Names with a port, such as mlx5_0:1, are not the system's.
Result<void> check_interfaces(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (name.find(':') == std::string::npos && if_nametoindex(name.c_str()) == 0)
      return Error::with_text(
          Code::kDeviceUnavailable, Layer::kDevice,
          fmt::format("the network interface \"{}\" of ClusterOptions::interfaces does not exist; `ip link` lists them",
                      name));
  return {};
}

// What may not differ between ranks.
Result<void> check_card(const Card& card, const Card& own) {
  const auto refuse = [&](std::string text) {
    return Error::with_text(Code::kInvalidData, Layer::kDevice, fmt::format("rank {} {}", card.rank, text));
  };
  if (card.ranks != own.ranks) return refuse(fmt::format("counts {} ranks and this process {}", card.ranks, own.ranks));
  if (card.ucx_major != own.ucx_major || card.ucx_minor != own.ucx_minor)
    return refuse(
        fmt::format("has UCX {}.{} and this process {}.{}, which do not understand each other; use one version "
                    "on all ranks",
                    card.ucx_major, card.ucx_minor, own.ucx_major, own.ucx_minor));
  if ((card.loopback != 0 || own.loopback != 0) && (card.host != own.host || card.network != own.network))
    return refuse(
        fmt::format("is on {}, which the loopback interface of this machine does not reach; name an interface "
                    "in ClusterOptions::interfaces on all ranks",
                    card.host.substr(0, card.host.find('/'))));
  return {};
}

}  // namespace

Member::Member(ClusterOptions options, std::shared_ptr<Engine> engine)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      served_(std::make_unique<Served>(*engine_, options_.lends)),
      arrival_device_(make_arrival_device(engine_->options().rank)) {}

Member::~Member() {
  {
    const MutexLock lock(arrivals_mutex_);
    arrivals_.clear();
  }
  engine_->stop();
}

Result<std::shared_ptr<Member>> Member::join(ClusterOptions options) {
  if (options.give_up_after.count() <= 0)
    return Error(Code::kInvalidArgument, Layer::kDevice, "give_up_after of {} ms leaves no time for anything",
                 options.give_up_after.count());
  BERTH_TRY(check_interfaces(options.interfaces));
  const Deadline deadline = Clock::now() + options.give_up_after;
  if (options.exchange == nullptr) {
    BERTH_TRY_ASSIGN(options.exchange, make_job_exchange());
  }
  Exchange& exchange = *options.exchange;
  // Before the token: a machine without UCX should say so at once.
  BERTH_TRY(ucx::Driver::open());
  BERTH_TRY_ASSIGN(const std::string token, job_token(exchange, deadline));
  if (token.empty())
    return Error(Code::kInvalidArgument, Layer::kDevice, "a job without a token cannot tell its ranks from strangers");
  const Sealer sealer(token);
  const bool loopback = options.interfaces.empty();
  Engine::Options transport{.rank = exchange.rank(),
                            .ranks = exchange.ranks(),
                            .interfaces = loopback ? "lo" : joined(options.interfaces),
                            .transports = transports_of(options),
                            .give_up_after = options.give_up_after};
  BERTH_TRY_ASSIGN(std::shared_ptr<Engine> engine, Engine::make(std::move(transport), sealer));

  const Card own{.rank = exchange.rank(),
                 .ranks = exchange.ranks(),
                 .ucx_major = engine->driver().major,
                 .ucx_minor = engine->driver().minor,
                 .lends = options.lends,
                 .process = static_cast<std::uint32_t>(getpid()),
                 .loopback = static_cast<std::uint8_t>(loopback),
                 .host = host_identity(),
                 .network = network_identity(),
                 .address = engine->address()};
  BERTH_TRY(exchange.publish(kJoinKey, encode(own, sealer)));
  BERTH_TRY_ASSIGN(const auto published, exchange.fetch_all(kJoinKey, deadline));
  std::vector<Card> cards;
  for (std::uint32_t rank = 0; rank < exchange.ranks(); ++rank) {
    BERTH_TRY_ASSIGN(Card card, decode_card(published[rank], rank, sealer));
    BERTH_TRY(check_card(card, own));
    cards.push_back(std::move(card));
  }
  std::shared_ptr<Member> member(new Member(std::move(options), engine));
  engine->start(
      std::move(cards),
      [raw = member.get()](const Message& message) {
        raw->engine_->mutex.assert_held();
        raw->handle(message);
      },
      [raw = member.get()](std::uint32_t from, std::uint64_t address, std::size_t bytes) {
        return raw->served_->accept(from, address, bytes);
      });
  if (engine->connects_early()) {
    BERTH_TRY(member->connect_all(deadline));
    engine->connected();
  }
  offer(member);
  return member;
}

Result<void> Member::connect_all(Deadline deadline) {
  const auto ask = [this](std::uint32_t first, std::uint32_t last) -> Result<void> {
    const MutexLock lock(engine_->mutex);
    for (std::uint32_t other = first; other < last; ++other)
      BERTH_TRY(engine_->ask_and_wait(other, {.kind = Kind::kFlush}));
    return {};
  };
  // The lower rank of two begins: UCX has trouble with two that begin at once.
  for (std::uint32_t lower = 0; lower < rank(); ++lower) {
    const MutexLock lock(engine_->mutex);
    const auto came = [&] {
      engine_->mutex.assert_held();
      return engine_->has_heard_from(lower) || engine_->is_lost(lower);
    };
    if (!engine_->wait_until(came, deadline))
      return Error(Code::kDeviceUnavailable, Layer::kDevice, "rank {} did not connect within {} ms", lower,
                   options_.give_up_after.count());
    BERTH_TRY(engine_->check(lower));
  }
  BERTH_TRY(ask(rank() + 1, ranks()));
  BERTH_TRY(ask(0, rank()));
  return barrier();
}

Result<DevicePtr> Member::open_device(std::uint32_t rank) {
  if (rank >= ranks())
    return Error(Code::kDeviceUnavailable, Layer::kDevice, "REMOTE:{} does not exist: the cluster has ranks 0 to {}",
                 rank, ranks() - 1);
  if (rank == this->rank())
    return Error(Code::kDeviceUnavailable, Layer::kDevice,
                 "REMOTE:{} is this process itself, whose memory is the device CPU; the cluster has ranks 0 to {}",
                 rank, ranks() - 1);
  const MutexLock lock(devices_mutex_);
  std::weak_ptr<Device>& known = devices_[rank];
  if (DevicePtr alive = known.lock()) return alive;
  BERTH_TRY_ASSIGN(DevicePtr device, RemoteDevice::open(shared_from_this(), rank, options_.lease));
  known = device;
  return device;
}

bool Member::owns(const Device& device) const {
  const auto* const remote = dynamic_cast<const RemoteDevice*>(&device);
  return remote != nullptr && &remote->member() == this;
}

RegionPtr Member::region(std::uint32_t rank, std::uint64_t id, std::uint64_t generation, std::uint64_t address,
                         std::uint64_t bytes) const {
  auto region = std::make_shared<Region>();
  region->rank = rank;
  region->id = id;
  region->generation = generation;
  region->address = address;
  region->bytes = bytes;
  return region;
}

Result<ucx::Key> Member::key(std::uint32_t rank, const Message& answer) {
  const auto key = engine_->unpack(rank, answer.payload);
  if (key) return *key;
  // UCX may need the process of the other rank: one that has just ended should be named.
  BERTH_TRY(engine_->ask_and_wait(rank, {.kind = Kind::kFlush}));
  return key.error();
}

Result<RegionPtr> Member::lease(std::uint32_t rank, std::size_t bytes) {
  if (engine_->card(rank).lends == 0)
    return Error(Code::kUnsupported, Layer::kDevice, "rank {} lends no memory; set ClusterOptions::lends there", rank);
  const MutexLock lock(engine_->mutex);
  BERTH_TRY_ASSIGN(const Message answer, engine_->ask_and_wait(rank, {.kind = Kind::kLease, .numbers = {bytes}}));
  const auto& numbers = answer.numbers;
  RegionPtr lease = region(rank, numbers[1], numbers[2], numbers[3], numbers[4]);
  if (engine_->is_near(rank))
    lease->lease = NearLease::open({.process = static_cast<pid_t>(engine_->card(rank).process),
                                    .descriptor = static_cast<int>(numbers[5]) - 1,
                                    .address = lease->address,
                                    .bytes = lease->bytes,
                                    .generation = lease->generation});
  if (lease->lease != nullptr) {
    lease->host = lease->lease->address();
    return lease;
  }
  BERTH_TRY_ASSIGN(lease->key, key(rank, answer));
  return lease;
}

Result<Buffer> Member::import(const RemoteWindow& window) {
  if (window.rank == rank())
    return Error(Code::kInvalidArgument, Layer::kDevice, "window {} is this rank's own: use the buffer", window.id);
  BERTH_TRY_ASSIGN(const DevicePtr device, open_device(window.rank));
  auto& remote = static_cast<RemoteDevice&>(*device);
  RegionPtr region;
  {
    const MutexLock lock(engine_->mutex);
    BERTH_TRY_ASSIGN(
        const Message answer,
        engine_->ask_and_wait(window.rank, {.kind = Kind::kImport, .numbers = {window.id, window.generation}}));
    const auto& numbers = answer.numbers;
    if (numbers[2] != window.bytes || numbers[3] > static_cast<std::uint64_t>(Access::kReadWrite))
      return Error(Code::kInvalidData, Layer::kDevice, "window {} says {} bytes, and its owner {}", window.id,
                   window.bytes, numbers[2]);
    // One region for all imports of a window, so that a revocation finds all that is in flight.
    Import& import = imports_[{window.rank, window.id}];
    if (import.region == nullptr) {
      RegionPtr made = this->region(window.rank, window.id, window.generation, numbers[1], numbers[2]);
      if (engine_->is_near(window.rank))
        made->near = NearWindow::open({.process = static_cast<pid_t>(engine_->card(window.rank).process),
                                       .address = numbers[4],
                                       .note = numbers[5],
                                       .generation = window.generation});
      if (made->near == nullptr) {
        const auto key = this->key(window.rank, answer);
        if (!key) {
          // Another thread may have imported it meanwhile.
          const auto found = imports_.find({window.rank, window.id});
          if (found != imports_.end() && found->second.region == nullptr) imports_.erase(found);
          return key.error();
        }
        made->key = *key;
      }
      import.region = std::move(made);
      import.region->access = static_cast<Access>(numbers[3]);
      import.region->is_window = true;
    }
    ++import.count;
    region = import.region;
  }
  auto handle = remote.add_region(region);
  if (!handle) {
    forget(*region);
    return handle.error();
  }
  ForeignMemory memory{
      .address = *handle,
      .bytes = window.bytes,
      .read_only = region->access == Access::kRead,
      .release = [device, handle = *handle] { static_cast<RemoteDevice&>(*device).remove_region(handle); }};
  return Buffer::import(device, std::move(memory), window.dtype, window.shape,
                        {.usage = region->access == Access::kWrite ? Usage::kCopyTarget : Usage::kDefault});
}

void Member::forget(const Region& region) noexcept {
  const MutexLock lock(engine_->mutex);
  const auto found = imports_.find({region.rank, region.id});
  if (found == imports_.end() || --found->second.count > 0) return;
  engine_->destroy(std::exchange(found->second.region->key, nullptr));
  imports_.erase(found);
  if (!region.revoked && !engine_->is_lost(region.rank))
    engine_->send(region.rank, {.kind = Kind::kRelease, .numbers = {region.id, region.generation}});
}

void Member::handle(const Message& message) {
  switch (message.kind) {
    case Kind::kRevoke: {
      Region none;
      const auto found = imports_.find({message.from, message.numbers[0]});
      const bool known = found != imports_.end() && found->second.region->generation == message.numbers[1];
      Region& region = known ? *found->second.region : none;
      region.revoked = true;
      region.revocations.push_back(message);
      return answer_revocations(*engine_, region);
    }
    case Kind::kBarrier: return count_arrival(message.from, message.numbers[0]);
    case Kind::kGo:
      if (message.from != 0) return;
      if (message.numbers[1] != 0)
        no_barrier_ = lost_error(static_cast<std::uint32_t>(message.numbers[2]), "rank 0 lost it before a barrier");
      else
        released_ = std::max(released_, message.numbers[0]);
      return;
    default: return served_->handle(message);
  }
}

void Member::count_arrival(std::uint32_t rank, std::uint64_t epoch) {
  std::set<std::uint32_t>& arrived = at_barrier_[epoch];
  arrived.insert(rank);
  if (arrived.size() < ranks()) return;
  at_barrier_.erase(epoch);
  released_ = std::max(released_, epoch);
  for (std::uint32_t other = 1; other < ranks(); ++other) engine_->send(other, {.kind = Kind::kGo, .numbers = {epoch}});
  engine_->changed();
}

Result<void> Member::barrier() {
  const MutexLock lock(engine_->mutex);
  const std::uint64_t epoch = ++barriers_;
  if (rank() == 0) {
    count_arrival(0, epoch);
  } else {
    BERTH_TRY(engine_->check(0));
    engine_->send(0, {.kind = Kind::kBarrier, .numbers = {epoch}});
  }
  // Rank 0 counts, and tells the others if a rank is lost that it still waits for.
  const auto hopeless = [&]() -> Result<void> {
    engine_->mutex.assert_held();
    if (no_barrier_) return *no_barrier_;
    if (rank() != 0) return engine_->check(0);
    for (std::uint32_t other = 1; other < ranks(); ++other)
      if (!at_barrier_[epoch].contains(other)) BERTH_TRY(engine_->check(other));
    return {};
  };
  const bool came = engine_->wait_until(
      [&] {
        engine_->mutex.assert_held();
        return released_ >= epoch || !hopeless();
      },
      Clock::now() + options_.give_up_after);
  if (released_ >= epoch) return {};
  if (came) {
    const auto lost = hopeless();
    for (std::uint32_t other = 1; rank() == 0 && other < ranks(); ++other)
      if (engine_->is_lost(other))
        for (std::uint32_t each = 1; each < ranks(); ++each)
          engine_->send(each, {.kind = Kind::kGo, .numbers = {epoch, 1, other}});
    return lost;
  }
  std::string missing;
  std::uint32_t named = 0;
  if (rank() == 0)
    for (std::uint32_t other = 0; other < ranks() && named < 8; ++other)
      if (!at_barrier_[epoch].contains(other)) missing += fmt::format("{}{}", named++ == 0 ? ": ranks " : ", ", other);
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                          fmt::format("some ranks did not come to barrier {} within {} ms{}", epoch,
                                      options_.give_up_after.count(), missing));
}

Result<void> Member::close(const RemoteWindow& window) {
  BERTH_TRY(served_->close(window));
  std::unique_ptr<ArrivalQueue> ended;
  const MutexLock lock(arrivals_mutex_);
  if (const auto found = arrivals_.find(window.id); found != arrivals_.end()) {
    ended = std::move(found->second);
    arrivals_.erase(found);
  }
  return {};
}

Result<Timepoint> Member::arrived(const RemoteWindow& window, std::uint64_t count) {
  {
    const MutexLock lock(engine_->mutex);
    BERTH_TRY(served_->arrivals(window.id, window.generation));
  }
  if (window.rank != rank())
    return Error(Code::kNotFound, Layer::kDevice, "window {} is of rank {}, which alone knows what arrived", window.id,
                 window.rank);
  const MutexLock lock(arrivals_mutex_);
  std::unique_ptr<ArrivalQueue>& queue = arrivals_[window.id];
  if (queue == nullptr)
    queue = std::make_unique<ArrivalQueue>(*arrival_device_, *engine_, *served_, window.id, window.generation);
  if (queue->timeline() == TimelineId::kNone) {
    arrivals_.erase(window.id);
    return Error(Code::kOutOfMemory, Layer::kDevice, "65535 queues are alive; drop some before waiting for a window");
  }
  return queue->at(count);
}

}  // namespace berth::internal::remote
