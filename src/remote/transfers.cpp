#include "remote/transfers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/try.h"
#include "memory/host_copy.h"

namespace berth::internal::remote {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::uint32_t kPiecesInFlight = 4;
// What the owner does in one go, without any byte on the network.
constexpr std::size_t kOwnerBytes = std::size_t{64} << 20;

Error stale(const Region& region) {
  return Error(Code::kNotFound, Layer::kDevice, "window {} of rank {} is stale: its owner closed it; ask for a new one",
               region.id, region.rank);
}

// Accesses a region without UCX: nothing may close it meanwhile.
class Use {
 public:
  static Result<Use> begin(Engine& engine, Region& region) {
    const MutexLock lock(engine.mutex);
    BERTH_TRY(check_usable(engine, region));
    ++region.uses;
    return Use(engine, region);
  }
  Use(Use&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), region_(other.region_) {}
  Use& operator=(Use&&) = delete;
  ~Use() {
    if (engine_ == nullptr) return;
    Engine& engine = *engine_;
    const MutexLock lock(engine.mutex);
    --region_->uses;
    answer_revocations(engine, *region_);
  }

 private:
  Use(Engine& engine, Region& region) : engine_(&engine), region_(&region) {}
  Engine* engine_;
  Region* region_;
};

Result<void> flush(Engine& engine, std::uint32_t rank) BERTH_REQUIRES(engine.mutex) {
  const auto done = std::make_shared<bool>(false);
  engine.flush(rank, [done](bool) { *done = true; });
  engine.wait([&] { return *done; });
  return engine.check(rank);
}

// The answers to several requests.
struct Answers {
  std::uint32_t open = 0;
  std::optional<Error> error{};
};

// What an outcome of the kernel's copy means. Takes the mutex.
Result<void> outcome_of(Engine& engine, const Region& region, NearWindow::Outcome outcome) {
  if (outcome == NearWindow::Outcome::kDone) return {};
  const MutexLock lock(engine.mutex);
  if (outcome == NearWindow::Outcome::kGone) engine.lose(region.rank, lost_error(region.rank, "its process has ended"));
  BERTH_TRY(engine.check(region.rank));
  // A process loses its memory a moment before it has ended.
  if (outcome == NearWindow::Outcome::kRefused) BERTH_TRY(engine.ask_and_wait(region.rank, {.kind = Kind::kFlush}));
  if (outcome == NearWindow::Outcome::kClosed) return stale(region);
  return Error(Code::kDriver, Layer::kDevice, "the kernel does not copy between this process and window {} of rank {}",
               region.id, region.rank);
}

// Copies between this process and a window on this machine, in pieces: the owner, who wants to close it, waits for one.
template <class Byte>
Result<void> copy_near(Engine& engine, Region& region, std::size_t offset, std::span<Byte> local,
                       NearWindow::Outcome (NearWindow::*copy)(std::uint64_t, std::span<Byte>)) {
  for (std::size_t at = 0; at < local.size(); at += kPieceBytes) {
    BERTH_TRY_ASSIGN(const Use use, Use::begin(engine, region));
    const auto piece = local.subspan(at, std::min(kPieceBytes, local.size() - at));
    const auto outcome = (*region.near.*copy)(region.address + offset + at, piece);
    BERTH_TRY(outcome_of(engine, region, outcome));
  }
  return {};
}

Result<void> read_by_push(Engine& engine, Region& region, std::size_t offset, std::span<std::byte> target)
    BERTH_REQUIRES(engine.mutex) {
  BERTH_TRY_ASSIGN(const Mapping mapping, engine.map(target.data(), target.size()));
  engine.expect_target(region.rank, target);
  const auto answers = std::make_shared<Answers>();
  for (std::size_t at = 0; at < target.size() && !answers->error; at += kPieceBytes) {
    const std::size_t bytes = std::min(kPieceBytes, target.size() - at);
    if (auto usable = check_usable(engine, region); !usable) {
      answers->error = usable.error();
      break;
    }
    Message request{.kind = Kind::kPush,
                    .numbers = {region.id, region.generation, offset + at, bytes,
                                reinterpret_cast<std::uint64_t>(target.data() + at)},
                    .payload = mapping.key};
    ++answers->open;
    engine.ask(region.rank, std::move(request), [answers](Result<Message> answer) {
      --answers->open;
      if (!answer && !answers->error) answers->error = answer.error();
    });
    engine.wait([&] { return answers->open < kPiecesInFlight; });
  }
  engine.wait([&] { return answers->open == 0; });
  engine.forget_target(region.rank, target);
  engine.unmap(mapping);
  if (answers->error) return *answers->error;
  return {};
}

}  // namespace

Result<void> check_usable(Engine& engine, const Region& region) {
  BERTH_TRY(engine.check(region.rank));
  if (region.revoked) return stale(region);
  return {};
}

void answer_revocations(Engine& engine, Region& region) {
  if (region.uses > 0) return;
  for (Message& request : std::exchange(region.revocations, {})) {
    const std::uint32_t from = request.from;
    engine.flush(from, [&engine, request = std::move(request)](bool) {
      engine.mutex.assert_held();
      engine.reply(request, {.numbers = {kOkReply}});
    });
  }
}

Result<void> write(Engine& engine, Region& region, std::size_t offset, std::span<const std::byte> source,
                   const TicketPtr& ticket, bool reuse) {
  if (region.host != nullptr) {
    BERTH_TRY_ASSIGN(const Use use, Use::begin(engine, region));
    copy_host(region.host + offset, source.data(), source.size());
    return {};
  }
  if (region.near != nullptr) return copy_near(engine, region, offset, source, &NearWindow::write);
  const MutexLock lock(engine.mutex);
  Result<void> outcome;
  const std::uint32_t most = kPiecesInFlight * engine.operations_of(kPieceBytes);
  for (std::size_t at = 0; at < source.size(); at += kPieceBytes) {
    if (outcome = check_usable(engine, region); !outcome) break;
    const auto piece = source.subspan(at, std::min(kPieceBytes, source.size() - at));
    engine.put(region.rank, region.key, region.address + offset + at, piece, ticket);
    engine.wait([&] { return ticket->in_flight < most; });
  }
  if (reuse) engine.wait([&] { return ticket->in_flight == 0; });
  if (!outcome) return outcome;
  return engine.check(region.rank);
}

void arrive(Engine& engine, Region& region) {
  // The note of a window that is closed may be another's.
  if (region.revoked || engine.is_lost(region.rank)) return;
  if (region.near != nullptr && !region.near->arrive()) return;
  const std::uint64_t count = region.near != nullptr ? 0 : 1;
  engine.send(region.rank, {.kind = Kind::kArrived, .numbers = {region.id, region.generation, count}});
}

Result<void> flush(Engine& engine, std::span<const std::uint32_t> ranks) {
  const MutexLock lock(engine.mutex);
  const auto open = std::make_shared<std::size_t>(ranks.size());
  for (const std::uint32_t rank : ranks) engine.flush(rank, [open](bool) { --*open; });
  engine.wait([&] { return *open == 0; });
  for (const std::uint32_t rank : ranks) BERTH_TRY(engine.check(rank));
  return {};
}

Result<void> read(Engine& engine, Region& region, std::size_t offset, std::span<std::byte> target) {
  if (region.host != nullptr) {
    BERTH_TRY_ASSIGN(const Use use, Use::begin(engine, region));
    copy_host(target.data(), region.host + offset, target.size());
    return {};
  }
  if (region.near != nullptr) return copy_near(engine, region, offset, target, &NearWindow::read);
  const MutexLock lock(engine.mutex);
  BERTH_TRY(check_usable(engine, region));
  BERTH_TRY(flush(engine, region.rank));
  BERTH_TRY(check_usable(engine, region));
  ++region.uses;
  auto outcome = read_by_push(engine, region, offset, target);
  --region.uses;
  answer_revocations(engine, region);
  return outcome;
}

Result<void> copy(Engine& engine, Region& from, std::size_t from_offset, Region& to, std::size_t to_offset,
                  std::size_t bytes) {
  if (from.host != nullptr && to.host != nullptr) {
    BERTH_TRY_ASSIGN(const Use use, Use::begin(engine, from));
    BERTH_TRY_ASSIGN(const Use other, Use::begin(engine, to));
    copy_host(to.host + to_offset, from.host + from_offset, bytes);
    return {};
  }
  const MutexLock lock(engine.mutex);
  BERTH_TRY(check_usable(engine, from));
  BERTH_TRY(check_usable(engine, to));
  BERTH_TRY(flush(engine, from.rank));
  // Overlapping ranges: from the end if the target is behind.
  const bool backwards = &from == &to && to_offset > from_offset;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(kOwnerBytes, bytes - done);
    const std::size_t at = backwards ? bytes - done - piece : done;
    Message request{
        .kind = Kind::kCopy,
        .numbers = {from.id, from.generation, from_offset + at, to.id, to.generation, to_offset + at, piece}};
    BERTH_TRY(engine.ask_and_wait(from.rank, std::move(request)));
    done += piece;
  }
  return {};
}

Result<void> fill(Engine& engine, Region& region, std::size_t offset, std::size_t bytes, std::uint8_t value) {
  if (region.host != nullptr) {
    BERTH_TRY_ASSIGN(const Use use, Use::begin(engine, region));
    fill_host(region.host + offset, value, bytes);
    return {};
  }
  const MutexLock lock(engine.mutex);
  BERTH_TRY(check_usable(engine, region));
  BERTH_TRY(flush(engine, region.rank));
  for (std::size_t at = 0; at < bytes; at += kOwnerBytes) {
    Message request{.kind = Kind::kFill,
                    .numbers = {region.id, region.generation, offset + at, std::min(kOwnerBytes, bytes - at), value}};
    BERTH_TRY(engine.ask_and_wait(region.rank, std::move(request)));
  }
  return {};
}

}  // namespace berth::internal::remote
