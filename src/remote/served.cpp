#include "remote/served.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/try.h"

namespace berth::internal::remote {
namespace {

constexpr std::size_t kLeaseGranule = 4096;

Error stale(std::uint64_t id) {
  return Error(Code::kNotFound, Layer::kDevice, "window {} is stale: it is not open here; ask its owner for a new one",
               id);
}

}  // namespace

Served::~Served() {
  const MutexLock lock(engine_.mutex);
  for (const auto& [id, entry] : entries_) engine_.unmap(entry.mapping);
}

std::size_t Served::lent_bytes() const {
  engine_.mutex.assert_held();
  return lent_;
}

std::size_t Served::windows() const {
  engine_.mutex.assert_held();
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const auto& each) { return !each.second.is_lease; }));
}

std::uint64_t Served::add(Entry entry) {
  entries_.emplace(++last_id_, std::move(entry));
  return last_id_;
}

Result<Served::Entry*> Served::find(std::uint64_t id, std::uint64_t generation) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.generation != generation || found->second.closing) return stale(id);
  return &found->second;
}

Result<Served::Entry*> Served::find(std::uint32_t from, std::uint64_t id, std::uint64_t generation,
                                    std::uint64_t offset, std::uint64_t bytes, bool writes) {
  BERTH_TRY_ASSIGN(Entry* const entry, find(id, generation));
  if (entry->is_lease ? entry->borrower != from : !entry->importers.contains(from)) return stale(id);
  if (bytes > entry->mapping.bytes || offset > entry->mapping.bytes - bytes)
    return Error(Code::kInvalidView, Layer::kDevice, "bytes [{}, {}) are outside of window {} of {} bytes", offset,
                 offset + bytes, id, entry->mapping.bytes);
  if (writes ? entry->access == Access::kRead : entry->access == Access::kWrite)
    return Error(Code::kInvalidUsage, Layer::kDevice, "window {} was opened with access {}", id,
                 static_cast<int>(entry->access));
  return entry;
}

void Served::handle(const Message& message) {
  engine_.mutex.assert_held();
  const auto answer = [&](Result<Message> made) {
    engine_.mutex.assert_held();
    if (made)
      engine_.reply(message, *std::move(made));
    else
      engine_.refuse(message, made.error());
  };
  switch (message.kind) {
    case Kind::kLease: return answer(lease(message));
    case Kind::kImport: return answer(import(message));
    case Kind::kCopy: return answer(copy(message));
    case Kind::kFill: return answer(fill(message));
    case Kind::kPush:
      if (auto started = push(message); !started) engine_.refuse(message, started.error());
      return;
    case Kind::kRelease:
      if (auto entry = find(message.numbers[0], message.numbers[1])) (*entry)->importers.erase(message.from);
      return;
    case Kind::kArrived:
      if (auto entry = find(message.numbers[0], message.numbers[1]); entry && !(*entry)->is_lease)
        (*entry)->arrived += message.numbers[2];
      return;
    default: return;
  }
}

std::byte* Served::accept(std::uint32_t from, std::uint64_t address, std::size_t bytes) {
  engine_.mutex.assert_held();
  for (auto& [id, entry] : entries_) {
    const auto first = reinterpret_cast<std::uint64_t>(entry.mapping.address);
    const bool allowed = entry.is_lease ? entry.borrower == from : entry.importers.contains(from);
    if (!allowed || entry.access == Access::kRead || address < first || address - first > entry.mapping.bytes ||
        bytes > entry.mapping.bytes - (address - first))
      continue;
    return entry.mapping.address + (address - first);
  }
  return nullptr;
}

Result<Message> Served::lease(const Message& request) {
  // A rank that opens its device again finds its lease, and nobody else ever gets it.
  auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& each) {
    return each.second.is_lease && each.second.borrower == request.from;
  });
  if (found == entries_.end()) {
    const std::uint64_t share = lends_ / (engine_.options().ranks - 1) / kLeaseGranule * kLeaseGranule;
    const std::uint64_t bytes = request.numbers[0] == 0 ? share : request.numbers[0];
    if (bytes == 0 || bytes > lends_ - lent_)
      return Error(Code::kOutOfMemory, Layer::kDevice,
                   "a lease of {b} was asked for, and {b} of the {b} that this rank lends are left; raise "
                   "ClusterOptions::lends there",
                   bytes, lends_ - lent_, lends_);
    Entry entry;
    entry.generation = draw();
    if (engine_.is_near(request.from)) entry.near = NearLease::make(bytes, entry.generation);
    std::byte* const shared = entry.near == nullptr ? nullptr : entry.near->address();
    BERTH_TRY_ASSIGN(entry.mapping, engine_.map(shared, bytes, true));
    entry.is_lease = true;
    entry.borrower = request.from;
    lent_ += bytes;
    found = entries_.find(add(std::move(entry)));
  }
  const Entry& entry = found->second;
  return Message{.numbers = {kOkReply, found->first, entry.generation,
                             reinterpret_cast<std::uint64_t>(entry.mapping.address), entry.mapping.bytes,
                             entry.near == nullptr ? 0 : static_cast<std::uint64_t>(entry.near->descriptor()) + 1},
                 .payload = entry.mapping.key};
}

Result<Message> Served::import(const Message& request) {
  BERTH_TRY_ASSIGN(Entry* const entry, find(request.numbers[0], request.numbers[1]));
  if (entry->is_lease) return stale(request.numbers[0]);
  entry->importers.insert(request.from);
  std::uint64_t address = 0, place = 0;
  if (engine_.is_near(request.from)) {
    auto found = entry->notes.find(request.from);
    if (found == entry->notes.end())
      if (Note* const taken = board_.take()) found = entry->notes.emplace(request.from, taken).first;
    if (found != entry->notes.end()) {
      Note& note = *found->second;
      note.generation = entry->generation;
      note.listens = entry->listeners;
      address = reinterpret_cast<std::uint64_t>(&note);
      place = board_.place_of(note);
    }
  }
  return Message{.numbers = {kOkReply, reinterpret_cast<std::uint64_t>(entry->mapping.address), entry->mapping.bytes,
                             static_cast<std::uint64_t>(entry->access), address, place},
                 .payload = entry->mapping.key};
}

Result<Message> Served::copy(const Message& request) {
  const auto& numbers = request.numbers;
  BERTH_TRY_ASSIGN(Entry* const from, find(request.from, numbers[0], numbers[1], numbers[2], numbers[6], false));
  BERTH_TRY_ASSIGN(Entry* const to, find(request.from, numbers[3], numbers[4], numbers[5], numbers[6], true));
  std::memmove(to->mapping.address + numbers[5], from->mapping.address + numbers[2], numbers[6]);
  return Message{.numbers = {kOkReply}};
}

Result<Message> Served::fill(const Message& request) {
  const auto& numbers = request.numbers;
  BERTH_TRY_ASSIGN(Entry* const entry, find(request.from, numbers[0], numbers[1], numbers[2], numbers[3], true));
  std::memset(entry->mapping.address + numbers[2], static_cast<int>(numbers[4] & 0xff), numbers[3]);
  return Message{.numbers = {kOkReply}};
}

Result<void> Served::push(const Message& request) {
  const auto& numbers = request.numbers;
  const std::uint64_t id = numbers[0];
  BERTH_TRY_ASSIGN(Entry* const entry, find(request.from, id, numbers[1], numbers[2], numbers[3], false));
  BERTH_TRY_ASSIGN(const ucx::Key key, engine_.unpack(request.from, request.payload));
  ++entry->uses;
  const std::span<const std::byte> source(entry->mapping.address + numbers[2], numbers[3]);
  // An entry in use is not removed, and entries do not move.
  const auto finish = [this, key, entry, request](bool succeeded) {
    engine_.mutex.assert_held();
    engine_.destroy(key);
    --entry->uses;
    if (succeeded) engine_.reply(request, {.numbers = {kOkReply}});
    engine_.changed();
  };
  engine_.put(request.from, key, numbers[4], source, nullptr, [this, request, finish](bool put) {
    engine_.mutex.assert_held();
    // The answer comes after the data, where both are messages.
    if (!put || engine_.sends_data()) return finish(put);
    engine_.flush(request.from, finish);
  });
  return {};
}

Result<RemoteWindow> Served::open(const Buffer& buffer, Access access) {
  BERTH_TRY(buffer.ensure_allocated());
  const bool writes = access != Access::kRead;
  BERTH_TRY_ASSIGN(std::span<const std::byte> bytes, buffer.as_host_bytes());
  if (writes) BERTH_TRY(buffer.as_host_bytes_mut());
  if (bytes.empty())
    return Error(Code::kInvalidArgument, Layer::kDevice, "a buffer of {} bytes has nothing to open", bytes.size());
  // Other ranks read and write the pages whenever they like. Memory that may move stays where it is from here on.
  BERTH_TRY_ASSIGN(const Window window, buffer.window());
  if (window.block.has(BlockFlags::kEvictable))
    return Error(Code::kUnsupported, Layer::kDevice,
                 "{} bytes of evictable memory cannot be opened to other ranks, which would use its pages also while "
                 "they are evicted: allocate from another allocator",
                 bytes.size());
  const MutexLock lock(engine_.mutex);
  Entry entry;
  BERTH_TRY_ASSIGN(entry.mapping, engine_.map(const_cast<std::byte*>(bytes.data()), bytes.size()));
  entry.generation = draw();
  entry.access = access;
  entry.buffer = buffer;
  entry.last_arrival = Clock::now();
  const std::uint64_t id = add(std::move(entry));
  return RemoteWindow{.rank = engine_.options().rank,
                      .id = id,
                      .generation = entries_.at(id).generation,
                      .bytes = bytes.size(),
                      .dtype = buffer.dtype(),
                      .shape = buffer.shape(),
                      .access = access};
}

Result<void> Served::close(const RemoteWindow& window) {
  Entry closed;  // its buffer is released after the lock
  const MutexLock lock(engine_.mutex);
  BERTH_TRY_ASSIGN(Entry* const entry, find(window.id, window.generation));
  if (window.rank != engine_.options().rank || entry->is_lease) return stale(window.id);
  entry->closing = true;  // nothing new starts here
  for (const auto& [importer, note] : entry->notes) note->generation = 0;
  const auto open = std::make_shared<std::size_t>(entry->importers.size());
  for (const std::uint32_t importer : entry->importers) {
    // A lost rank has nothing in flight: its connection is closed.
    engine_.ask(importer, {.kind = Kind::kRevoke, .numbers = {window.id, window.generation}},
                [open](const Result<Message>&) { --*open; });
  }
  engine_.wait([&] { return *open == 0 && entry->uses == 0; });
  engine_.unmap(entry->mapping);
  // A rank that is lost may live on, unknowing, and count: its note is never used again.
  for (const auto& [importer, note] : entry->notes)
    if (!engine_.is_lost(importer)) board_.give_back(note);
  closed = std::move(*entry);
  entries_.erase(window.id);
  return {};
}

Result<Served::Arrivals> Served::arrivals(std::uint64_t id, std::uint64_t generation) {
  engine_.mutex.assert_held();
  BERTH_TRY_ASSIGN(Entry* const entry, find(id, generation));
  std::uint64_t count = entry->arrived;
  for (const auto& [importer, note] : entry->notes) count += note->arrived.load(std::memory_order_acquire);
  if (std::exchange(entry->seen, count) != count) entry->last_arrival = Clock::now();
  Arrivals result{.count = count, .last = entry->last_arrival};
  for (const std::uint32_t importer : entry->importers)
    if (engine_.is_lost(importer)) result.lost = importer;
  return result;
}

void Served::listen(std::uint64_t id, std::uint64_t generation) {
  engine_.mutex.assert_held();
  const auto entry = find(id, generation);
  if (!entry) return;
  ++(*entry)->listeners;
  for (const auto& [importer, note] : (*entry)->notes) note->listens = 1;
  // A rank that counted before it could see this is seen from here on; see NearWindow::arrive.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Served::stop_listening(std::uint64_t id, std::uint64_t generation) {
  engine_.mutex.assert_held();
  const auto entry = find(id, generation);
  if (!entry || --(*entry)->listeners > 0) return;
  for (const auto& [importer, note] : (*entry)->notes) note->listens = 0;
}

}  // namespace berth::internal::remote
