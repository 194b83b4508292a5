// What this process lets other ranks access: leases of memory that it lends, and windows over buffers. Handles their
// requests. Guarded by the engine's mutex, which callers hold unless a function excludes it; the analysis cannot see
// that their engine is this one's, so these functions assert it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "berth/remote/window.h"
#include "berth/tensor/buffer.h"
#include "remote/engine.h"
#include "remote/near_lease.h"
#include "remote/near_window.h"

namespace berth::internal::remote {

class Served {
 public:
  Served(Engine& engine, std::size_t lends) : engine_(engine), lends_(lends) {}
  // Requires: the engine is stopped.
  ~Served();
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  // A request of another rank; replies to it now or later.
  void handle(const Message& message);

  Result<RemoteWindow> open(const Buffer& buffer, Access access) BERTH_EXCLUDES(engine_.mutex);
  Result<void> close(const RemoteWindow& window) BERTH_EXCLUDES(engine_.mutex);

  // Where a rank may write bytes at this address; null if nowhere.
  std::byte* accept(std::uint32_t from, std::uint64_t address, std::size_t bytes);

  // How many submits have arrived, and whether more can come. kNotFound for a window that is not open.
  struct Arrivals {
    std::uint64_t count = 0;
    Clock::time_point last{};             // or the opening
    std::optional<std::uint32_t> lost{};  // a rank that imported the window
  };
  Result<Arrivals> arrivals(std::uint64_t id, std::uint64_t generation);
  // Between the two, ranks of this machine send a message when something arrives, which wakes who waits. Before, they
  // only count. Calls add up.
  void listen(std::uint64_t id, std::uint64_t generation);
  void stop_listening(std::uint64_t id, std::uint64_t generation);

  std::size_t lent_bytes() const;
  std::size_t windows() const;

 private:
  struct Entry {
    std::uint64_t generation = 0;
    Mapping mapping{};
    Access access = Access::kReadWrite;
    bool is_lease = false;
    std::uint32_t borrower = 0;              // of a lease
    std::unique_ptr<NearLease> near{};       // of a lease, if the borrower is on this machine
    Buffer buffer{};                         // of a window
    std::set<std::uint32_t> importers{};     // of a window
    std::map<std::uint32_t, Note*> notes{};  // of all ranks near that have ever imported it
    std::uint32_t listeners = 0;
    std::uint32_t uses = 0;  // pushes in flight
    bool closing = false;
    std::uint64_t arrived = 0;  // by messages
    std::uint64_t seen = 0;     // arrived by messages and in notes, when somebody asked
    Clock::time_point last_arrival{};
  };

  // A generation is drawn at random, so that a window of an earlier process with the same rank is refused, too.
  std::uint64_t draw() BERTH_REQUIRES(engine_.mutex) { return std::uint64_t{random_()} << 32 | random_(); }
  // Numbers are never used twice.
  std::uint64_t add(Entry entry) BERTH_REQUIRES(engine_.mutex);
  // The entry with `bytes` bytes at `offset` that rank `from` may access. kNotFound; kInvalidView.
  Result<Entry*> find(std::uint64_t id, std::uint64_t generation) BERTH_REQUIRES(engine_.mutex);
  Result<Entry*> find(std::uint32_t from, std::uint64_t id, std::uint64_t generation, std::uint64_t offset,
                      std::uint64_t bytes, bool writes) BERTH_REQUIRES(engine_.mutex);
  Result<Message> lease(const Message& request) BERTH_REQUIRES(engine_.mutex);
  Result<Message> import(const Message& request) BERTH_REQUIRES(engine_.mutex);
  Result<Message> copy(const Message& request) BERTH_REQUIRES(engine_.mutex);
  Result<Message> fill(const Message& request) BERTH_REQUIRES(engine_.mutex);
  Result<void> push(const Message& request) BERTH_REQUIRES(engine_.mutex);

  Engine& engine_;
  const std::size_t lends_;
  std::size_t lent_ BERTH_GUARDED_BY(engine_.mutex) = 0;
  std::uint64_t last_id_ BERTH_GUARDED_BY(engine_.mutex) = 0;
  std::map<std::uint64_t, Entry> entries_ BERTH_GUARDED_BY(engine_.mutex);
  NoteBoard board_ BERTH_GUARDED_BY(engine_.mutex);
  std::random_device random_ BERTH_GUARDED_BY(engine_.mutex);
};

}  // namespace berth::internal::remote
