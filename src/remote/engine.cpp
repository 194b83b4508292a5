#include "remote/engine.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/try.h"

namespace berth::internal::remote {
namespace {

constexpr unsigned kMessageId = 190;  // any number; the worker has one kind of message
constexpr std::size_t kLargestMessage = std::size_t{64} << 10;
constexpr std::size_t kDataBytes = std::size_t{512} << 10;        // the most in one message of data
constexpr std::size_t kCopiedDataBytes = std::size_t{128} << 10;  // the same, where UCX copies it
constexpr const char* kSegmentBytes = "528k";                     // a message of data and what UCX puts before it
// How often a waiting thread asks for events in vain before it sleeps: some 20 microseconds.
constexpr int kSpins = 64;
constexpr std::chrono::milliseconds kLongestSleep{100};
constexpr std::chrono::milliseconds kGoodbyeTime{250};

std::string seconds(Clock::duration time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

}  // namespace

bool may_use_tcp(std::string_view transports) {
  // A list that begins with ^ names what UCX may not choose.
  const bool excludes = transports.starts_with('^');
  if (excludes) transports.remove_prefix(1);
  while (!transports.empty()) {
    const std::size_t end = std::min(transports.find(','), transports.size());
    const std::string_view name = transports.substr(0, end);
    if (name == "tcp" || name == "all") return !excludes;
    transports.remove_prefix(std::min(end + 1, transports.size()));
  }
  return excludes;
}

Error lost_error(std::uint32_t rank, std::string_view why) {
  return Error::with_text(
      Code::kDeviceLost, Layer::kDevice,
      fmt::format("rank {} is lost: {}; what it held is gone, and other ranks can be used on", rank, why));
}

Engine::Engine(Options options, const Sealer& sealer, const ucx::Driver* driver)
    : options_(std::move(options)),
      sealer_(sealer),
      ucx_(driver),
      sends_data_(connects_early() || may_use_tcp(options_.transports)) {}

Result<std::shared_ptr<Engine>> Engine::make(Options options, const Sealer& sealer) {
  BERTH_TRY_ASSIGN(const ucx::Driver* const driver, ucx::Driver::open());
  std::shared_ptr<Engine> engine(new Engine(std::move(options), sealer, driver));
  BERTH_TRY(engine->open());
  return engine;
}

Result<void> Engine::open() {
  ucx::Config config = nullptr;
  if (const ucx::Status status = ucx_->config_read(nullptr, nullptr, &config); status != ucx::kOk)
    return ucx_->error(status, "config_read");
  // Through this handle, not the environment: the program may use UCX for itself, or through MPI. Without the third
  // one, a put of 1 MiB takes 8 ms on UCX 1.22.
  std::vector<std::pair<const char*, const char*>> settings = {
      {"TLS", options_.transports.c_str()}, {"NET_DEVICES", options_.interfaces.c_str()}, {"RNDV_THRESH", "inf"}};
  // While UCX waits for a connection inside of ep_create, it does not survive that the other process ends.
  if (may_use_tcp(options_.transports)) settings.emplace_back("TCP_CONN_NB", "y");
  // UCX 1.13 completes a message that TCP sends from its place twice when the receiver dies, and then ends the process
  // by an assertion, there or later. So messages are copied into buffers of UCX, in larger parts than by default. Later
  // versions send from the place, and a message of data is one segment, so that it is copied once where it is received.
  if (connects_early())
    settings.insert(settings.end(), {{"ZCOPY_THRESH", "inf"}, {"TCP_TX_SEG_SIZE", "64k"}});
  else if (sends_data())
    settings.insert(settings.end(),
                    {{"ZCOPY_THRESH", "16k"}, {"TCP_TX_SEG_SIZE", kSegmentBytes}, {"TCP_RX_SEG_SIZE", kSegmentBytes}});
  ucx::Status status = ucx::kOk;
  for (const auto& [name, value] : settings)
    if (status == ucx::kOk) status = ucx_->config_modify(config, name, value);
  const ucx::Params params{.fields = ucx::kParamsFeatures,
                           .features = ucx::kFeatureRma | ucx::kFeatureWakeup | ucx::kFeatureMessages};
  if (status == ucx::kOk) status = ucx_->init_version(1, 13, &params, config, &context_);
  ucx_->config_release(config);
  const ucx::WorkerParams worker{.fields = ucx::kWorkerThreadMode, .thread_mode = ucx::kThreadSerialized};
  if (status == ucx::kOk) status = ucx_->worker_create(context_, &worker, &worker_);
  if (status == ucx::kOk) status = ucx_->worker_get_efd(worker_, &descriptor_);
  const ucx::MessageHandler handler{
      .fields = ucx::kHandlerId | ucx::kHandlerFlags | ucx::kHandlerCall | ucx::kHandlerUser,
      .id = kMessageId,
      .flags = ucx::kWholeMessages,
      .call = &Engine::on_message,
      .user = this};
  if (status == ucx::kOk) status = ucx_->worker_set_am_recv_handler(worker_, &handler);
  ucx::Address address = nullptr;
  std::size_t bytes = 0;
  if (status == ucx::kOk) status = ucx_->worker_get_address(worker_, &address, &bytes);
  if (status != ucx::kOk) {
    const std::string last_words = ucx::take_last_words();
    return Error::with_text(
        Code::kDeviceUnavailable, Layer::kDevice,
        fmt::format(
            "UCX {}.{} cannot use the interface \"{}\" with the transports \"{}\": {}{}; `ip link` lists interfaces",
            ucx_->major, ucx_->minor, options_.interfaces, options_.transports, ucx_->words(status),
            last_words.empty() ? "" : " (" + last_words + ")"));
  }
  const auto* const first = reinterpret_cast<const std::byte*>(address);
  address_.assign(first, first + bytes);
  ucx_->worker_release_address(worker_, address);
  return {};
}

void Engine::start(std::vector<Card> cards, Handler handler, Accept accept) {
  handler_ = std::move(handler);
  accept_ = std::move(accept);
  peers_.resize(cards.size());
  for (std::size_t i = 0; i < cards.size(); ++i) {
    peers_[i].engine = this;
    peers_[i].rank = static_cast<std::uint32_t>(i);
    peers_[i].card = std::move(cards[i]);
  }
  half_connected_ = connects_early();
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  stop();
  // UCX before 1.16 ends the process if a connection of the worker is half made, as after a join that failed. What is
  // left then is some memory and sockets.
  if (half_connected_) return;
  if (worker_ != nullptr) ucx_->worker_destroy(worker_);
  if (context_ != nullptr) ucx_->cleanup(context_);
}

void Engine::stop() noexcept {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex);
    say_goodbye();
    stop_ = true;
    nudge();
  }
  thread_.join();
  const MutexLock lock(mutex);
  for (Peer& peer : peers_) lose(peer.rank, lost_error(peer.rank, "this process left the cluster"));
  // Closing cancels what is in flight, and its callbacks refer to this object.
  for (int round = 0; round < 1000 && (progress() || outstanding_ > 0); ++round) std::this_thread::yield();
}

void Engine::say_goodbye() {
  std::size_t waiting = 0;
  const auto count = std::make_shared<std::size_t*>(&waiting);
  for (Peer& peer : peers_) {
    if (peer.endpoint == nullptr || peer.why) continue;
    send(peer.rank, {.kind = Kind::kGoodbye});
    // Who has heard the goodbye answers nothing any more, so only UCX itself can tell that it has arrived.
    if (peer.why || connects_early()) continue;
    ++waiting;
    flush_endpoint(peer, [count](bool) {
      if (*count != nullptr) --**count;
    });
  }
  wait_until(
      [&] {
        mutex.assert_held();
        return waiting == 0 && (!connects_early() || outstanding_ == 0);
      },
      Clock::now() + std::min<Clock::duration>(kGoodbyeTime, options_.give_up_after));
  *count = nullptr;
}

bool Engine::same_host(std::uint32_t rank) const noexcept {
  return peers_[rank].card.host == peers_[options_.rank].card.host;
}

bool Engine::is_near(std::uint32_t rank) const noexcept {
  return same_host(rank) && options_.transports.find("cma") != std::string::npos;
}

Result<void> Engine::check(std::uint32_t rank) const {
  if (const auto& why = peers_[rank].why) return *why;
  return {};
}

void Engine::lose(std::uint32_t rank, Error why) {
  Peer& peer = peers_[rank];
  if (peer.why) return;
  peer.why = std::move(why);
  lost_.push_back(rank);
  to_close_.push_back(rank);
  std::vector<Question> unanswered;
  for (auto at = questions_.begin(); at != questions_.end();) {
    if (at->second.rank != rank) {
      ++at;
      continue;
    }
    unanswered.push_back(std::move(at->second));
    at = questions_.erase(at);
  }
  for (Question& question : unanswered) {
    end(peer);
    question.done(*peer.why);
  }
  changed();
  nudge();
}

void Engine::nudge() {
  if (std::exchange(sleeps_, false)) ucx_->worker_signal(worker_);
  if (spinning_ == 0) calm_.notify_one();
}

void Engine::begin(Peer& peer) {
  if (peer.outstanding++ == 0) peer.quiet_since = Clock::now();
  ++outstanding_;
  if (spinning_ == 0) nudge();
}

void Engine::end(Peer& peer) {
  --peer.outstanding;
  --outstanding_;
  peer.quiet_since = Clock::now();
}

// --- Operations ---

ucx::RequestParams Engine::params(Operation* operation) const {
  return {.fields = ucx::kOperationCallback | ucx::kOperationUser, .callback = &Engine::on_complete, .user = operation};
}

void Engine::track(ucx::StatusOrRequest started, std::unique_ptr<Operation> operation, const char* call) {
  if (!ucx::is_request(started)) {
    finish(*operation, ucx::status_of(started), call);
    return;
  }
  begin(peers_[operation->rank]);
  if (operation->ticket) ++operation->ticket->in_flight;
  static_cast<void>(operation.release());  // on_complete has it
}

void Engine::on_complete(void* request, ucx::Status status, void* user) {
  auto* const operation = static_cast<Operation*>(user);
  operation->engine->mutex.assert_held();
  operation->engine->completed_.emplace_back(operation, status);
  operation->engine->ucx_->request_free(request);
}

void Engine::on_error(void* user, ucx::Endpoint, ucx::Status status) {
  auto* const peer = static_cast<Peer*>(user);
  peer->engine->mutex.assert_held();
  peer->engine->failed_.emplace_back(peer->rank, status);
}

ucx::Status Engine::on_message(void* user, const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                               const ucx::MessageParams* params) {
  auto* const engine = static_cast<Engine*>(user);
  engine->mutex.assert_held();
  const std::span content(static_cast<const std::byte*>(data), bytes);
  // Ranks of a job send small messages, all at once. Anything else comes from elsewhere.
  if ((params->attributes & ucx::kReceivedRendezvous) != 0 ||
      bytes > (header_bytes > 0 ? kDataBytes : kLargestMessage)) {
    engine->refused_.fetch_add(1, std::memory_order_relaxed);
  } else if (header_bytes > 0) {
    engine->take_data({static_cast<const std::byte*>(header), header_bytes}, content);
  } else {
    engine->inbox_.emplace_back(content.begin(), content.end());
  }
  return ucx::kOk;
}

void Engine::take_data(std::span<const std::byte> header, std::span<const std::byte> data) {
  const auto message = decode_message(header, sealer_);
  std::byte* place = nullptr;
  if (message && message->kind == Kind::kData && message->to == options_.rank && message->from < peers_.size() &&
      !peers_[message->from].why) {
    const std::uint32_t from = message->from;
    const std::uint64_t address = message->numbers[0];
    peers_[from].quiet_since = Clock::now();
    for (const auto& [rank, target] : targets_) {
      const auto first = reinterpret_cast<std::uint64_t>(target.data());
      if (rank == from && address >= first && address - first <= target.size() &&
          data.size() <= target.size() - (address - first))
        place = target.data() + (address - first);
    }
    if (place == nullptr) place = accept_(from, address, data.size());
  }
  if (place != nullptr)
    std::memcpy(place, data.data(), data.size());
  else
    refused_.fetch_add(1, std::memory_order_relaxed);
}

void Engine::expect_target(std::uint32_t rank, std::span<std::byte> target) {
  targets_.emplace_back(rank, target);
}

void Engine::forget_target(std::uint32_t rank, std::span<std::byte> target) {
  const auto found = std::find_if(targets_.begin(), targets_.end(), [&](const auto& each) {
    return each.first == rank && each.second.data() == target.data() && each.second.size() == target.size();
  });
  if (found != targets_.end()) targets_.erase(found);
}

void Engine::finish(Operation& operation, ucx::Status status, const char* call) {
  if (status < ucx::kOk)
    lose(operation.rank, lost_error(operation.rank, fmt::format("ucp_{} says: {}", call, ucx_->words(status))));
  if (operation.done) operation.done(status == ucx::kOk);
}

Result<ucx::Endpoint> Engine::endpoint(std::uint32_t rank) {
  BERTH_TRY(check(rank));
  Peer& peer = peers_[rank];
  if (peer.endpoint != nullptr) return peer.endpoint;
  const ucx::EndpointParams params{
      .fields = ucx::kEndpointAddress | ucx::kEndpointErrorMode | ucx::kEndpointErrorHandler,
      .address = reinterpret_cast<const ucx::AddressTag*>(peer.card.address.data()),
      .error_mode = ucx::kErrorsOfPeers,
      .error_handler = {.call = &Engine::on_error, .user = &peer}};
  if (const ucx::Status status = ucx_->ep_create(worker_, &params, &peer.endpoint); status != ucx::kOk) {
    peer.endpoint = nullptr;
    lose(rank, lost_error(rank, fmt::format("UCX cannot connect to it: {}", ucx_->words(status))));
    return *peer.why;
  }
  return peer.endpoint;
}

void Engine::send(std::uint32_t to, Message message) {
  const auto endpoint = this->endpoint(to);
  if (!endpoint) return;
  message.from = options_.rank;
  message.to = to;
  auto operation = std::make_unique<Operation>();
  operation->engine = this;
  operation->rank = to;
  operation->kept = encode(message, sealer_);
  ucx::RequestParams send = params(operation.get());
  send.fields |= ucx::kOperationFlags;
  send.flags = ucx::kSendEager;
  const auto started =
      ucx_->am_send_nbx(*endpoint, kMessageId, nullptr, 0, operation->kept.data(), operation->kept.size(), &send);
  track(started, std::move(operation), "am_send_nbx");
}

void Engine::reply(const Message& request, Message answer) {
  answer.kind = Kind::kReply;
  answer.request = request.request;
  if (answer.request != 0) send(request.from, std::move(answer));
}

void Engine::refuse(const Message& request, const Error& why) {
  Message answer;
  answer.numbers[0] = static_cast<std::uint64_t>(why.code());
  const std::string text = why.message();
  const auto bytes = std::as_bytes(std::span(text));
  answer.payload.assign(bytes.begin(), bytes.end());
  reply(request, std::move(answer));
}

void Engine::ask(std::uint32_t to, Message request, std::function<void(Result<Message>)> done) {
  if (const auto alive = check(to); !alive) return done(alive.error());
  request.request = ++last_question_;
  questions_.emplace(request.request, Question{to, std::move(done)});
  begin(peers_[to]);
  send(to, std::move(request));  // a failure loses the rank, which answers the question
}

Result<Message> Engine::ask_and_wait(std::uint32_t to, Message request) {
  const auto answer = std::make_shared<std::optional<Result<Message>>>();
  ask(to, std::move(request), [answer](Result<Message> reply) { answer->emplace(std::move(reply)); });
  wait([&] { return answer->has_value(); });
  return **answer;
}

void Engine::put(std::uint32_t rank, ucx::Key key, std::uint64_t address, std::span<const std::byte> source,
                 const TicketPtr& ticket, Done done) {
  const auto endpoint = this->endpoint(rank);
  if (!endpoint) {
    if (done) done(false);
    return;
  }
  ++peers_[rank].puts;
  if (sends_data()) return send_data(rank, *endpoint, address, source, ticket, std::move(done));
  auto operation = std::make_unique<Operation>(Operation{this, rank, ticket, std::move(done), {}});
  const ucx::RequestParams put = params(operation.get());
  const auto started = ucx_->put_nbx(*endpoint, source.data(), source.size(), address, key, &put);
  track(started, std::move(operation), "put_nbx");
}

std::size_t Engine::data_bytes() const noexcept {
  return connects_early() ? kCopiedDataBytes : kDataBytes;
}

std::uint32_t Engine::operations_of(std::size_t bytes) const noexcept {
  return sends_data() ? static_cast<std::uint32_t>((bytes + data_bytes() - 1) / data_bytes()) : 1;
}

void Engine::send_data(std::uint32_t rank, ucx::Endpoint endpoint, std::uint64_t address,
                       std::span<const std::byte> source, const TicketPtr& ticket, Done done) {
  // The last part is done after all others: they are sent in order.
  for (std::size_t at = 0; at < source.size() && !peers_[rank].why; at += data_bytes()) {
    const auto part = source.subspan(at, std::min(data_bytes(), source.size() - at));
    const bool last = at + part.size() == source.size();
    auto operation = std::make_unique<Operation>(Operation{this, rank, ticket, {}, {}});
    if (last) operation->done = std::exchange(done, {});
    operation->kept =
        encode(Message{.kind = Kind::kData, .from = options_.rank, .to = rank, .numbers = {address + at}}, sealer_);
    ucx::RequestParams send = params(operation.get());
    send.fields |= ucx::kOperationFlags;
    send.flags = ucx::kSendEager;
    const auto started = ucx_->am_send_nbx(endpoint, kMessageId, operation->kept.data(), operation->kept.size(),
                                           part.data(), part.size(), &send);
    track(started, std::move(operation), "am_send_nbx");
  }
  if (done) done(false);
}

void Engine::flush(std::uint32_t rank, Done done) {
  Peer& peer = peers_[rank];
  if (is_flushed(rank)) return done(!peer.why);
  const auto endpoint = this->endpoint(rank);
  if (!endpoint) return done(false);
  auto flushed = [this, rank, upto = peer.puts, done = std::move(done)](bool succeeded) {
    mutex.assert_held();
    if (succeeded) peers_[rank].flushed = std::max(peers_[rank].flushed, upto);
    done(succeeded);
  };
  if (sends_data())
    return ask(rank, {.kind = Kind::kFlush},
               [flushed = std::move(flushed)](const Result<Message>& answer) mutable { flushed(answer.has_value()); });
  flush_endpoint(peer, std::move(flushed));
}

void Engine::flush_endpoint(Peer& peer, Done done) {
  auto operation = std::make_unique<Operation>(Operation{this, peer.rank, nullptr, std::move(done), {}});
  const ucx::RequestParams flush = params(operation.get());
  const auto started = ucx_->ep_flush_nbx(peer.endpoint, &flush);
  track(started, std::move(operation), "ep_flush_nbx");
}

// --- Memory ---

Result<Mapping> Engine::map(std::byte* address, std::size_t bytes, bool lazily) {
  Mapping mapping;
  const bool fresh = address == nullptr;
  const ucx::MapParams params{.fields = ucx::kMapAddress | ucx::kMapLength | ucx::kMapFlags,
                              .address = address,
                              .length = bytes,
                              .flags = (fresh ? ucx::kMapAllocate : 0u) | (lazily ? ucx::kMapLazily : 0u)};
  if (const ucx::Status status = ucx_->mem_map(context_, &params, &mapping.memory); status != ucx::kOk)
    return ucx_->error(status, "mem_map");
  ucx::MemoryAttributes found{.fields = ucx::kMemoryAddress | ucx::kMemoryLength};
  ucx::Status status = ucx_->mem_query(mapping.memory, &found);
  void* key = nullptr;
  std::size_t key_bytes = 0;
  if (status == ucx::kOk) status = ucx_->rkey_pack(context_, mapping.memory, &key, &key_bytes);
  if (status != ucx::kOk) {
    ucx_->mem_unmap(context_, mapping.memory);
    return ucx_->error(status, "rkey_pack");
  }
  const auto* const first = static_cast<const std::byte*>(key);
  mapping.key.assign(first, first + key_bytes);
  ucx_->rkey_buffer_release(key);
  mapping.address = fresh ? static_cast<std::byte*>(found.address) : address;
  mapping.bytes = bytes;
  return mapping;
}

void Engine::unmap(const Mapping& mapping) noexcept {
  if (mapping.memory != nullptr) ucx_->mem_unmap(context_, mapping.memory);
}

Result<ucx::Key> Engine::unpack(std::uint32_t rank, Bytes packed) {
  BERTH_TRY_ASSIGN(const ucx::Endpoint endpoint, this->endpoint(rank));
  // UCX reads a key without knowing its size.
  packed.resize(packed.size() + 256);
  ucx::Key key = nullptr;
  if (const ucx::Status status = ucx_->ep_rkey_unpack(endpoint, packed.data(), &key); status != ucx::kOk)
    return ucx_->error(status, "ep_rkey_unpack");
  return key;
}

void Engine::destroy(ucx::Key key) noexcept {
  if (key != nullptr) ucx_->rkey_destroy(key);
}

// --- Progress ---

bool Engine::progress() {
  const bool events = ucx_->worker_progress(worker_) != 0;
  const bool handled = handle_noted();
  if (handled) changed();
  return events || handled;
}

bool Engine::handle_noted() {
  bool handled = false;
  while (!completed_.empty() || !failed_.empty() || !inbox_.empty() || !to_close_.empty()) {
    handled = true;
    for (const auto& [rank, status] : std::exchange(failed_, {}))
      lose(rank, lost_error(rank, fmt::format("the connection ended: {}", ucx_->words(status))));
    for (const auto& [raw, status] : std::exchange(completed_, {})) {
      const std::unique_ptr<Operation> operation(raw);
      end(peers_[operation->rank]);
      if (operation->ticket) --operation->ticket->in_flight;
      finish(*operation, status, "request");
    }
    if (!inbox_.empty()) {
      const Bytes bytes = std::move(inbox_.front());
      inbox_.pop_front();
      handle_message(bytes);
    }
    for (const std::uint32_t rank : std::exchange(to_close_, {}))
      if (ucx::Endpoint endpoint = std::exchange(peers_[rank].endpoint, nullptr)) close_endpoint(endpoint);
  }
  return handled;
}

void Engine::handle_message(const Bytes& bytes) {
  auto decoded = decode_message(bytes, sealer_);
  if (!decoded || decoded->to != options_.rank || decoded->from == options_.rank || decoded->from >= peers_.size()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Message message = *std::move(decoded);
  Peer& peer = peers_[message.from];
  if (peer.why) return;  // an answer that comes too late
  peer.quiet_since = Clock::now();
  peer.heard = true;
  if (message.kind == Kind::kGoodbye)
    return lose(message.from, lost_error(message.from, message.numbers[0] == 0
                                                           ? "it left the cluster"
                                                           : "it gave up on this process, which was silent for long"));
  // Data is in its place as soon as it is received.
  if (message.kind == Kind::kFlush) return reply(message, {.numbers = {kOkReply}});
  if (message.kind != Kind::kReply) return handler_(std::move(message));
  const auto found = questions_.find(message.request);
  if (found == questions_.end() || found->second.rank != message.from) return;
  const Question question = std::move(found->second);
  questions_.erase(found);
  end(peer);
  if (message.numbers[0] == kOkReply) return question.done(std::move(message));
  const auto code = message.numbers[0] > static_cast<std::uint64_t>(Code::kCycle)
                        ? Code::kInvalidData
                        : static_cast<Code>(message.numbers[0]);
  std::string text(message.payload.size(), '\0');
  std::transform(message.payload.begin(), message.payload.end(), text.begin(),
                 [](std::byte each) { return static_cast<char>(each); });
  question.done(Error::with_text(code, Layer::kDevice, fmt::format("rank {}: {}", message.from, text)));
}

void Engine::close_endpoint(ucx::Endpoint endpoint) {
  const ucx::RequestParams close{
      .fields = ucx::kOperationCallback | ucx::kOperationUser | ucx::kOperationFlags,
      .flags = ucx::kCloseForced,
      .callback = [](void* request, ucx::Status,
                     void* user) { static_cast<const ucx::Driver*>(user)->request_free(request); },
      .user = const_cast<ucx::Driver*>(ucx_)};
  static_cast<void>(ucx_->ep_close_nbx(endpoint, &close));
}

void Engine::check_deadlines() {
  const Clock::time_point now = Clock::now();
  if (now < next_check_) return;
  next_check_ =
      now + std::clamp<Clock::duration>(options_.give_up_after / 50, std::chrono::milliseconds(1), kLongestSleep);
  if (outstanding_ == 0) return;
  for (Peer& peer : peers_)
    if (peer.outstanding > 0 && !peer.why && now - peer.quiet_since > options_.give_up_after) give_up(peer);
}

void Engine::give_up(Peer& peer) {
  // It may live on: then this is how it learns of it, if the message still gets through.
  if (peer.endpoint != nullptr) send(peer.rank, {.kind = Kind::kGoodbye, .numbers = {1}});
  lose(peer.rank, lost_error(peer.rank, fmt::format("it gave no sign of life for {}; a slow link needs a longer "
                                                    "ClusterOptions::give_up_after",
                                                    seconds(options_.give_up_after))));
}

void Engine::wait(const std::function<bool()>& condition) {
  static_cast<void>(wait_until(condition, Clock::time_point::max()));
}

bool Engine::wait_until(const std::function<bool()>& condition, Clock::time_point until) {
  int idle = 0;
  ++spinning_;
  bool holds = condition();
  while (!holds && (until == Clock::time_point::max() || Clock::now() < until)) {
    if (progress()) {
      idle = 0;
    } else if (++idle > kSpins) {
      // The progress thread goes on, and wakes this one.
      idle = 0;
      --spinning_;
      nudge();
      changed_.wait_until(mutex, std::min(until, Clock::now() + kLongestSleep));
      ++spinning_;
    } else {
      mutex.unlock();
      mutex.lock();
    }
    holds = condition();
  }
  --spinning_;
  if (outstanding_ > 0) nudge();
  return holds;
}

void Engine::run() noexcept {
  mutex.lock();
  while (!stop_) {
    check_deadlines();
    if (spinning_ > 0) {
      calm_.wait_until(mutex, Clock::now() + kLongestSleep);
      continue;
    }
    const bool busy = progress();
    mutex.unlock();
    tell_lost();
    mutex.lock();
    if (busy || spinning_ > 0 || stop_) continue;
    if (ucx_->worker_arm(worker_) != ucx::kOk) continue;  // there are events
    sleeps_ = true;
    const auto longest = outstanding_ == 0
                             ? 10 * kLongestSleep
                             : std::chrono::duration_cast<std::chrono::milliseconds>(std::clamp<Clock::duration>(
                                   options_.give_up_after / 50, std::chrono::milliseconds(1), kLongestSleep));
    mutex.unlock();
    pollfd wanted{.fd = descriptor_, .events = POLLIN, .revents = 0};
    static_cast<void>(::poll(&wanted, 1, static_cast<int>(longest.count())));
    mutex.lock();
    sleeps_ = false;
  }
  mutex.unlock();
}

// --- Lost ranks ---

void Engine::on_lost(LostCallback callback) {
  auto listener = std::make_shared<Listener>();
  listener->call = std::move(callback);
  {
    const MutexLock lock(callbacks_mutex_);
    listeners_.push_back(std::move(listener));
  }
  const MutexLock lock(mutex);
  nudge();
}

std::vector<std::uint32_t> Engine::lost() {
  const MutexLock lock(mutex);
  return lost_;
}

void Engine::tell_lost() {
  std::vector<std::shared_ptr<Listener>> listeners;
  {
    const MutexLock lock(callbacks_mutex_);
    listeners = listeners_;
  }
  for (const auto& listener : listeners)
    while (true) {
      std::uint32_t rank = 0;
      std::optional<Error> why;
      {
        const MutexLock lock(mutex);
        if (listener->told == lost_.size()) break;
        rank = lost_[listener->told++];
        why = peers_[rank].why;
      }
      try {
        listener->call(rank, *why);
      } catch (...) {
        // The progress thread serves all ranks; the callback's failure is its own.
        continue;
      }
    }
}

}  // namespace berth::internal::remote
