// The part of UCX's binary interface (UCP 1.13 and later) that Berth calls, in our own words: handle types, the few
// structures, the codes, and one list of functions. No UCX package is needed to build. Where ucp.h is present,
// tests/devices/remote/ucx_abi_test.cpp compares every size, offset, value and signature here with it. UCX grows its
// structures at the end and says in a mask which fields are set, so that these serve newer libraries too.
// Nothing here is installed or has state; any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::internal::ucx {

// Handles are opaque. Distinct incomplete types keep a key from being passed as an endpoint.
struct ConfigTag;
struct ContextTag;
struct WorkerTag;
struct EndpointTag;
struct MemoryTag;
struct KeyTag;
struct AddressTag;
using Config = ConfigTag*;
using Context = ContextTag*;
using Worker = WorkerTag*;
using Endpoint = EndpointTag*;
using Memory = MemoryTag*;
using Key = KeyTag*;
using Address = AddressTag*;

// One byte, as the packed enumeration of UCX.
enum Status : std::int8_t {
  kOk = 0,
  kInProgress = 1,
  kNoMemory = -4,
  kUnreachable = -6,
  kBusy = -15,
  kCanceled = -16,
  kTimedOut = -20,
  kUnsupported = -22,
  kConnectionReset = -25,
  kEndpointTimeout = -80,
  kLastStatus = -100,
};

// What a call that may not be complete returns: null (complete), a status, or a request.
using StatusOrRequest = void*;
inline bool is_request(StatusOrRequest value) noexcept {
  return reinterpret_cast<std::uintptr_t>(value) - 1 < static_cast<std::uintptr_t>(std::intptr_t{kLastStatus}) - 1;
}
// Requires: it is no request.
inline Status status_of(StatusOrRequest value) noexcept {
  return static_cast<Status>(reinterpret_cast<std::intptr_t>(value));
}

// --- Making a context and a worker ---
inline constexpr std::uint64_t kParamsFeatures = 1 << 0;
inline constexpr std::uint64_t kFeatureRma = 1 << 1, kFeatureWakeup = 1 << 4, kFeatureMessages = 1 << 6;
struct Params {
  std::uint64_t fields = 0;
  std::uint64_t features = 0;
  std::size_t request_size = 0;
  void* request_init = nullptr;
  void* request_cleanup = nullptr;
  std::uint64_t tag_sender_mask = 0;
  int shared_by_threads = 0;
  std::size_t estimated_endpoints = 0;
  std::size_t estimated_per_node = 0;
  const char* name = nullptr;
};

inline constexpr std::uint64_t kWorkerThreadMode = 1 << 0;
enum ThreadMode : unsigned { kThreadSingle = 0, kThreadSerialized = 1 };
struct WorkerParams {
  std::uint64_t fields = 0;
  ThreadMode thread_mode = kThreadSingle;
  unsigned long cpu_mask[16] = {};
  unsigned events = 0;
  void* user_data = nullptr;
  int event_fd = 0;
  std::uint64_t flags = 0;
  const char* name = nullptr;
  std::size_t message_alignment = 0;
  std::uint64_t client_id = 0;
};

// --- Endpoints ---
inline constexpr std::uint64_t kEndpointAddress = 1 << 0, kEndpointErrorMode = 1 << 1, kEndpointErrorHandler = 1 << 2;
enum ErrorMode : unsigned { kErrorsNone = 0, kErrorsOfPeers = 1 };
using ErrorCallback = void (*)(void* user, Endpoint endpoint, Status status);
struct ErrorHandler {
  ErrorCallback call = nullptr;
  void* user = nullptr;
};
struct SocketAddress {
  const void* address = nullptr;
  unsigned length = 0;
};
struct EndpointParams {
  std::uint64_t fields = 0;
  const AddressTag* address = nullptr;
  ErrorMode error_mode = kErrorsNone;
  ErrorHandler error_handler{};
  void* user_data = nullptr;
  unsigned flags = 0;
  SocketAddress socket_address{};
  void* connection_request = nullptr;
  const char* name = nullptr;
  SocketAddress local_address{};
};

// --- Operations ---
inline constexpr std::uint32_t kOperationCallback = 1 << 1, kOperationUser = 1 << 2, kOperationFlags = 1 << 4;
inline constexpr std::uint32_t kCloseForced = 1 << 0;
inline constexpr std::uint32_t kSendEager = 1 << 1;
using SendCallback = void (*)(void* request, Status status, void* user);
struct RequestParams {
  std::uint32_t fields = 0;
  std::uint32_t flags = 0;
  void* request = nullptr;
  SendCallback callback = nullptr;
  std::uint64_t datatype = 0;
  void* user = nullptr;
  void* reply_buffer = nullptr;
  unsigned memory_type = 0;
  void* received = nullptr;
  Memory memory = nullptr;
};

// --- Messages ---
inline constexpr std::uint64_t kHandlerId = 1 << 0, kHandlerFlags = 1 << 1, kHandlerCall = 1 << 2,
                               kHandlerUser = 1 << 3;
inline constexpr std::uint32_t kWholeMessages = 1 << 0;
inline constexpr std::uint64_t kReceivedRendezvous = 1 << 17;
struct MessageParams {
  std::uint64_t attributes = 0;
  Endpoint reply = nullptr;
};
using MessageCallback = Status (*)(void* user, const void* header, std::size_t header_bytes, void* data,
                                   std::size_t bytes, const MessageParams* params);
struct MessageHandler {
  std::uint64_t fields = 0;
  unsigned id = 0;
  std::uint32_t flags = 0;
  MessageCallback call = nullptr;
  void* user = nullptr;
};

// --- Memory ---
inline constexpr std::uint64_t kMapAddress = 1 << 0, kMapLength = 1 << 1, kMapFlags = 1 << 2;
inline constexpr unsigned kMapLazily = 1 << 0, kMapAllocate = 1 << 1;
struct MapParams {
  std::uint64_t fields = 0;
  void* address = nullptr;
  std::size_t length = 0;
  unsigned flags = 0;
  unsigned protection = 0;
  unsigned memory_type = 0;
};
inline constexpr std::uint64_t kMemoryAddress = 1 << 0, kMemoryLength = 1 << 1;
struct MemoryAttributes {
  std::uint64_t fields = 0;
  void* address = nullptr;
  std::size_t length = 0;
  unsigned memory_type = 0;
  char room[64] = {};  // newer libraries have more fields here, which are not asked for
};

// Every function that is called: BERTH_UCX_FUNCTIONS(X) expands X(name, result, parameters), where the library's symbol
// is "ucp_" and the name.
#define BERTH_UCX_FUNCTIONS(X)                                                                                     \
  X(get_version, void, (unsigned* major, unsigned* minor, unsigned* release))                                      \
  X(config_read, Status, (const char* prefix, const char* file, Config* config))                                   \
  X(config_modify, Status, (Config config, const char* name, const char* value))                                   \
  X(config_release, void, (Config config))                                                                         \
  X(init_version, Status, (unsigned major, unsigned minor, const Params* params, Config config, Context* context)) \
  X(cleanup, void, (Context context))                                                                              \
  X(worker_create, Status, (Context context, const WorkerParams* params, Worker* worker))                          \
  X(worker_destroy, void, (Worker worker))                                                                         \
  X(worker_get_address, Status, (Worker worker, Address * address, std::size_t * bytes))                           \
  X(worker_release_address, void, (Worker worker, Address address))                                                \
  X(worker_progress, unsigned, (Worker worker))                                                                    \
  X(worker_get_efd, Status, (Worker worker, int* descriptor))                                                      \
  X(worker_arm, Status, (Worker worker))                                                                           \
  X(worker_signal, Status, (Worker worker))                                                                        \
  X(worker_set_am_recv_handler, Status, (Worker worker, const MessageHandler* handler))                            \
  X(ep_create, Status, (Worker worker, const EndpointParams* params, Endpoint* endpoint))                          \
  X(ep_close_nbx, StatusOrRequest, (Endpoint endpoint, const RequestParams* params))                               \
  X(ep_flush_nbx, StatusOrRequest, (Endpoint endpoint, const RequestParams* params))                               \
  X(am_send_nbx, StatusOrRequest,                                                                                  \
    (Endpoint endpoint, unsigned id, const void* header, std::size_t header_bytes, const void* data,               \
     std::size_t bytes, const RequestParams* params))                                                              \
  X(put_nbx, StatusOrRequest,                                                                                      \
    (Endpoint endpoint, const void* data, std::size_t bytes, std::uint64_t address, Key key,                       \
     const RequestParams* params))                                                                                 \
  X(request_check_status, Status, (void* request))                                                                 \
  X(request_free, void, (void* request))                                                                           \
  X(mem_map, Status, (Context context, const MapParams* params, Memory* memory))                                   \
  X(mem_unmap, Status, (Context context, Memory memory))                                                           \
  X(mem_query, Status, (Memory memory, MemoryAttributes * attributes))                                             \
  X(rkey_pack, Status, (Context context, Memory memory, void** key, std::size_t* bytes))                           \
  X(rkey_buffer_release, void, (void* key))                                                                        \
  X(ep_rkey_unpack, Status, (Endpoint endpoint, const void* packed, Key* key))                                     \
  X(rkey_destroy, void, (Key key))

}  // namespace berth::internal::ucx
