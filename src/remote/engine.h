// The transport of a cluster: one UCX worker, an endpoint for each rank that is talked to, and a thread that makes
// progress. Every call of UCX happens under one mutex: a worker is faster with one thread at a time. A thread that
// waits makes progress itself for a moment; then it sleeps, and the progress thread goes on. That thread sleeps until
// UCX has an event; it never spins.
//
// A rank is lost for good when UCX reports an error for it, when it says goodbye, or when it owes an answer and gave no
// sign of life for give_up_after. Its endpoint is closed by force then, which ends what is in flight, and every later
// call fails with the same kDeviceLost.
//
// Locking: functions that need the mutex say so. Callbacks of UCX only note what happened; it is handled afterwards,
// because UCX must not be called from them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/base/result.h"
#include "devices/remote/ucx_driver.h"
#include "remote/wire.h"

namespace berth::internal::remote {

using Clock = std::chrono::steady_clock;

// Operations that are waited for together. Guarded by the engine's mutex.
struct Ticket {
  std::uint32_t in_flight = 0;
};
using TicketPtr = std::shared_ptr<Ticket>;

// Memory of this process that UCX knows.
struct Mapping {
  ucx::Memory memory = nullptr;
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  Bytes key{};  // what another rank needs to access it
};

class Engine {
 public:
  struct Options {
    std::uint32_t rank = 0;
    std::uint32_t ranks = 0;
    std::string interfaces{};  // UCX_NET_DEVICES
    std::string transports{};  // UCX_TLS
    Clock::duration give_up_after{};
  };
  // Handles a message of another rank that is no reply. Called with the mutex held.
  using Handler = std::function<void(Message)>;
  // Where data of another rank for this address may be written; null if nowhere. Called with the mutex held.
  using Accept = std::function<std::byte*(std::uint32_t from, std::uint64_t address, std::size_t bytes)>;
  using LostCallback = std::function<void(std::uint32_t rank, const Error& why)>;

  // Opens UCX and makes the worker. kDeviceUnavailable without UCX or for an interface that does not exist.
  static Result<std::shared_ptr<Engine>> make(Options options, const Sealer& sealer);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ucx::Driver& driver() const noexcept { return *ucx_; }
  const Options& options() const noexcept { return options_; }
  const Bytes& address() const noexcept { return address_; }  // of the worker

  // Starts the progress thread. Requires: called once; one card per rank.
  void start(std::vector<Card> cards, Handler handler, Accept accept);
  // True if data goes as messages, which the receiver checks before it copies them to their place. UCX executes a put
  // that comes by TCP whatever it is, also from a rank that this process gave up on: an endpoint that is closed goes on
  // receiving. RDMA has keys, which end with the mapping, so puts are used where TCP is not among the transports.
  bool sends_data() const noexcept { return sends_data_; }
  // UCX before 1.16 ends a process whose peer dies while the two connect, so ranks connect when they join.
  bool connects_early() const noexcept { return ucx_->minor < 16; }
  // All ranks are connected, where they connect early.
  void connected() noexcept { half_connected_ = false; }
  // Says goodbye, ends the progress thread and closes all endpoints; what is in flight ends. Only unmap() and destroy()
  // may be called afterwards. Requires: not the progress thread.
  void stop() noexcept;
  const Card& card(std::uint32_t rank) const noexcept { return peers_[rank].card; }
  bool same_host(std::uint32_t rank) const noexcept;
  // True if the kernel may copy between this process and the rank's: it is on this machine, and the transports do not
  // exclude that.
  bool is_near(std::uint32_t rank) const noexcept;

  Mutex mutex;

  // --- All of these need the mutex ---
  // kDeviceLost with the rank; otherwise nothing.
  Result<void> check(std::uint32_t rank) const BERTH_REQUIRES(mutex);
  bool is_lost(std::uint32_t rank) const BERTH_REQUIRES(mutex) { return peers_[rank].why.has_value(); }
  bool has_heard_from(std::uint32_t rank) const BERTH_REQUIRES(mutex) { return peers_[rank].heard; }
  void lose(std::uint32_t rank, Error why) BERTH_REQUIRES(mutex);

  // Sends a message, without waiting. A failure loses the rank.
  void send(std::uint32_t to, Message message) BERTH_REQUIRES(mutex);
  void reply(const Message& request, Message answer) BERTH_REQUIRES(mutex);
  void refuse(const Message& request, const Error& why) BERTH_REQUIRES(mutex);

  // A request whose reply is waited for later. `done` is called, with the mutex held, with the reply, or with an error:
  // the other rank's, or kDeviceLost.
  void ask(std::uint32_t to, Message request, std::function<void(Result<Message>)> done) BERTH_REQUIRES(mutex);
  // The same, waiting for the reply.
  Result<Message> ask_and_wait(std::uint32_t to, Message request) BERTH_REQUIRES(mutex);

  // Starts to copy to memory of another rank. `done` may be empty; it is called with the mutex held when the local
  // bytes may be reused. A failure loses the rank, and the call is done then.
  using Done = std::function<void(bool succeeded)>;
  void put(std::uint32_t rank, ucx::Key key, std::uint64_t address, std::span<const std::byte> source,
           const TicketPtr& ticket, Done done = {}) BERTH_REQUIRES(mutex);
  // How many operations a put of so many bytes is, which its ticket counts.
  std::uint32_t operations_of(std::size_t bytes) const noexcept;
  // `done` is called when everything that was put to the rank before is in its memory: at once if it is already.
  void flush(std::uint32_t rank, Done done) BERTH_REQUIRES(mutex);
  // Lets a rank write here, for a read that it serves, until forget_target().
  void expect_target(std::uint32_t rank, std::span<std::byte> target) BERTH_REQUIRES(mutex);
  void forget_target(std::uint32_t rank, std::span<std::byte> target) BERTH_REQUIRES(mutex);
  bool is_flushed(std::uint32_t rank) const BERTH_REQUIRES(mutex) { return peers_[rank].flushed == peers_[rank].puts; }

  // Lets other threads in, and makes progress until the condition holds. Every condition must come true when the rank
  // that it depends on is lost.
  void wait(const std::function<bool()>& condition) BERTH_REQUIRES(mutex);
  // The same until a time. False if the time came first.
  bool wait_until(const std::function<bool()>& condition, Clock::time_point until) BERTH_REQUIRES(mutex);
  // Wakes threads whose condition may have changed by a message.
  void changed() noexcept { changed_.notify_all(); }

  // Maps memory of the program, or new memory if `address` is null. If `lazily`, nothing is pinned before it is used.
  // kOutOfMemory; kDriver.
  Result<Mapping> map(std::byte* address, std::size_t bytes, bool lazily = false) BERTH_REQUIRES(mutex);
  void unmap(const Mapping& mapping) noexcept BERTH_REQUIRES(mutex);
  // A key that another rank packed. A failure is kDriver.
  Result<ucx::Key> unpack(std::uint32_t rank, Bytes packed) BERTH_REQUIRES(mutex);
  void destroy(ucx::Key key) noexcept BERTH_REQUIRES(mutex);

  // --- These do not ---
  // Called by the progress thread, without locks, once for each lost rank, also for those that are lost already.
  void on_lost(LostCallback callback);
  std::vector<std::uint32_t> lost();
  std::uint64_t refused_messages() const noexcept { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Peer {
    Engine* engine = nullptr;
    std::uint32_t rank = 0;
    Card card{};
    ucx::Endpoint endpoint = nullptr;
    std::optional<Error> why{};           // it is lost
    bool heard = false;                   // a message of it has come
    std::uint32_t outstanding = 0;        // operations and requests that it owes an answer
    Clock::time_point quiet_since{};      // its last sign of life, or the first of the outstanding
    std::uint64_t puts = 0, flushed = 0;  // puts started, and those known to be in its memory
  };
  // One operation of UCX.
  struct Operation {
    Engine* engine;
    std::uint32_t rank;
    TicketPtr ticket;
    Done done;
    Bytes kept;  // the bytes of a message
  };
  struct Question {
    std::uint32_t rank;
    std::function<void(Result<Message>)> done;
  };

  Engine(Options options, const Sealer& sealer, const ucx::Driver* driver);
  Result<void> open();
  std::size_t data_bytes() const noexcept;  // of one message
  Result<ucx::Endpoint> endpoint(std::uint32_t rank) BERTH_REQUIRES(mutex);
  ucx::RequestParams params(Operation* operation) const;
  void track(ucx::StatusOrRequest started, std::unique_ptr<Operation> operation, const char* call)
      BERTH_REQUIRES(mutex);
  void begin(Peer& peer) BERTH_REQUIRES(mutex);
  void end(Peer& peer) BERTH_REQUIRES(mutex);
  void finish(Operation& operation, ucx::Status status, const char* call) BERTH_REQUIRES(mutex);
  // Handles events. Returns whether there were any.
  bool progress() BERTH_REQUIRES(mutex);
  bool handle_noted() BERTH_REQUIRES(mutex);
  void handle_message(const Bytes& bytes) BERTH_REQUIRES(mutex);
  void take_data(std::span<const std::byte> header, std::span<const std::byte> data) BERTH_REQUIRES(mutex);
  void send_data(std::uint32_t rank, ucx::Endpoint endpoint, std::uint64_t address, std::span<const std::byte> source,
                 const TicketPtr& ticket, Done done) BERTH_REQUIRES(mutex);
  void flush_endpoint(Peer& peer, Done done) BERTH_REQUIRES(mutex);
  void close_endpoint(ucx::Endpoint endpoint) BERTH_REQUIRES(mutex);
  void check_deadlines() BERTH_REQUIRES(mutex);
  void give_up(Peer& peer) BERTH_REQUIRES(mutex);
  void tell_lost() BERTH_EXCLUDES(mutex);
  void nudge() BERTH_REQUIRES(mutex);  // lets the progress thread look again
  void run() noexcept;
  void say_goodbye() BERTH_REQUIRES(mutex);

  static void on_complete(void* request, ucx::Status status, void* user);
  static void on_error(void* user, ucx::Endpoint endpoint, ucx::Status status);
  static ucx::Status on_message(void* user, const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                                const ucx::MessageParams* params);

  const Options options_;
  const Sealer sealer_;
  const ucx::Driver* const ucx_;
  const bool sends_data_;
  bool half_connected_ = false;  // set by the thread that joins
  ucx::Context context_ = nullptr;
  ucx::Worker worker_ = nullptr;
  int descriptor_ = -1;  // readable when the worker has an event; of the worker
  Bytes address_;
  std::vector<Peer> peers_;  // constant in number and place once started; contents guarded by the mutex, cards constant
  Handler handler_;
  Accept accept_;
  std::vector<std::pair<std::uint32_t, std::span<std::byte>>> targets_ BERTH_GUARDED_BY(mutex);  // of reads in flight

  // What callbacks of UCX noted.
  std::vector<std::pair<Operation*, ucx::Status>> completed_ BERTH_GUARDED_BY(mutex);
  std::vector<std::pair<std::uint32_t, ucx::Status>> failed_ BERTH_GUARDED_BY(mutex);
  std::deque<Bytes> inbox_ BERTH_GUARDED_BY(mutex);

  std::map<std::uint64_t, Question> questions_ BERTH_GUARDED_BY(mutex);
  std::uint64_t last_question_ BERTH_GUARDED_BY(mutex) = 0;
  std::vector<std::uint32_t> to_close_ BERTH_GUARDED_BY(mutex);  // lost ranks whose endpoints are open
  std::vector<std::uint32_t> lost_ BERTH_GUARDED_BY(mutex);      // in order
  CondVar changed_;
  CondVar calm_;
  unsigned spinning_ BERTH_GUARDED_BY(mutex) = 0;  // threads that make progress themselves
  bool sleeps_ BERTH_GUARDED_BY(mutex) = false;    // the progress thread waits for an event
  bool stop_ BERTH_GUARDED_BY(mutex) = false;
  std::size_t outstanding_ BERTH_GUARDED_BY(mutex) = 0;  // of all ranks
  Clock::time_point next_check_ BERTH_GUARDED_BY(mutex){};
  std::atomic<std::uint64_t> refused_{0};

  Mutex callbacks_mutex_;  // guards what follows; never held while a callback runs
  struct Listener {
    LostCallback call;
    std::size_t told = 0;  // of the lost ranks, in order
  };
  std::vector<std::shared_ptr<Listener>> listeners_ BERTH_GUARDED_BY(callbacks_mutex_);

  std::thread thread_;
};

// True if UCX may choose TCP from these transports, which are written as in UCX_TLS.
bool may_use_tcp(std::string_view transports);

// The error of a rank that is lost, for all layers: names it and says what remains possible.
Error lost_error(std::uint32_t rank, std::string_view why);

}  // namespace berth::internal::remote
