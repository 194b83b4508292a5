// Compares our declarations with the real ucp.h, where one is installed when the tests are compiled.
#include "devices/remote/ucx_abi.h"

#include <gtest/gtest.h>

#if __has_include(<ucp/api/ucp.h>)

#include <ucp/api/ucp.h>

#include <type_traits>
#include <utility>

// g++ warns of its own treatment of packed enumerations in constant expressions.
#pragma GCC diagnostic ignored "-Wattributes"

namespace mine = berth::internal::ucx;

#define SAME_SIZE(ours, theirs) \
  static_assert(sizeof(mine::ours) == sizeof(theirs) && alignof(mine::ours) == alignof(theirs))
// Newer headers have more fields at the end.
#define SAME_START(ours, theirs) \
  static_assert(sizeof(mine::ours) <= sizeof(theirs) && alignof(mine::ours) == alignof(theirs))
#define SAME_PLACE(ours, ours_member, theirs, theirs_member)                            \
  static_assert(offsetof(mine::ours, ours_member) == offsetof(theirs, theirs_member) && \
                sizeof(std::declval<mine::ours>().ours_member) == sizeof(std::declval<theirs>().theirs_member))
#define SAME_VALUE(ours, theirs) \
  static_assert(static_cast<std::int64_t>(mine::ours) == static_cast<std::int64_t>(theirs))

SAME_SIZE(Status, ucs_status_t);
SAME_VALUE(kOk, UCS_OK);
SAME_VALUE(kInProgress, UCS_INPROGRESS);
SAME_VALUE(kNoMemory, UCS_ERR_NO_MEMORY);
SAME_VALUE(kUnreachable, UCS_ERR_UNREACHABLE);
SAME_VALUE(kBusy, UCS_ERR_BUSY);
SAME_VALUE(kCanceled, UCS_ERR_CANCELED);
SAME_VALUE(kTimedOut, UCS_ERR_TIMED_OUT);
SAME_VALUE(kUnsupported, UCS_ERR_UNSUPPORTED);
SAME_VALUE(kConnectionReset, UCS_ERR_CONNECTION_RESET);
SAME_VALUE(kEndpointTimeout, UCS_ERR_ENDPOINT_TIMEOUT);
SAME_VALUE(kLastStatus, UCS_ERR_LAST);

SAME_START(Params, ucp_params_t);
SAME_PLACE(Params, fields, ucp_params_t, field_mask);
SAME_PLACE(Params, features, ucp_params_t, features);
SAME_VALUE(kParamsFeatures, UCP_PARAM_FIELD_FEATURES);
SAME_VALUE(kFeatureRma, UCP_FEATURE_RMA);
SAME_VALUE(kFeatureWakeup, UCP_FEATURE_WAKEUP);
SAME_VALUE(kFeatureMessages, UCP_FEATURE_AM);

SAME_START(WorkerParams, ucp_worker_params_t);
SAME_PLACE(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
SAME_VALUE(kWorkerThreadMode, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME_VALUE(kThreadSingle, UCS_THREAD_MODE_SINGLE);
SAME_VALUE(kThreadSerialized, UCS_THREAD_MODE_SERIALIZED);

SAME_START(EndpointParams, ucp_ep_params_t);
SAME_PLACE(EndpointParams, address, ucp_ep_params_t, address);
SAME_PLACE(EndpointParams, error_mode, ucp_ep_params_t, err_mode);
SAME_PLACE(EndpointParams, error_handler, ucp_ep_params_t, err_handler);
SAME_PLACE(EndpointParams, flags, ucp_ep_params_t, flags);
SAME_SIZE(ErrorHandler, ucp_err_handler_t);
SAME_PLACE(ErrorHandler, user, ucp_err_handler_t, arg);
SAME_VALUE(kEndpointAddress, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME_VALUE(kEndpointErrorMode, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME_VALUE(kEndpointErrorHandler, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME_VALUE(kErrorsNone, UCP_ERR_HANDLING_MODE_NONE);
SAME_VALUE(kErrorsOfPeers, UCP_ERR_HANDLING_MODE_PEER);

SAME_START(RequestParams, ucp_request_param_t);
SAME_PLACE(RequestParams, fields, ucp_request_param_t, op_attr_mask);
SAME_PLACE(RequestParams, flags, ucp_request_param_t, flags);
SAME_PLACE(RequestParams, callback, ucp_request_param_t, cb);
SAME_PLACE(RequestParams, user, ucp_request_param_t, user_data);
SAME_PLACE(RequestParams, memory_type, ucp_request_param_t, memory_type);
SAME_PLACE(RequestParams, memory, ucp_request_param_t, memh);
SAME_VALUE(kOperationCallback, UCP_OP_ATTR_FIELD_CALLBACK);
SAME_VALUE(kOperationUser, UCP_OP_ATTR_FIELD_USER_DATA);
SAME_VALUE(kOperationFlags, UCP_OP_ATTR_FIELD_FLAGS);
SAME_VALUE(kCloseForced, UCP_EP_CLOSE_FLAG_FORCE);
SAME_VALUE(kSendEager, UCP_AM_SEND_FLAG_EAGER);

SAME_SIZE(MessageHandler, ucp_am_handler_param_t);
SAME_PLACE(MessageHandler, id, ucp_am_handler_param_t, id);
SAME_PLACE(MessageHandler, flags, ucp_am_handler_param_t, flags);
SAME_PLACE(MessageHandler, call, ucp_am_handler_param_t, cb);
SAME_PLACE(MessageHandler, user, ucp_am_handler_param_t, arg);
SAME_PLACE(MessageParams, attributes, ucp_am_recv_param_t, recv_attr);
SAME_VALUE(kHandlerId, UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME_VALUE(kHandlerFlags, UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
SAME_VALUE(kHandlerCall, UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME_VALUE(kHandlerUser, UCP_AM_HANDLER_PARAM_FIELD_ARG);
SAME_VALUE(kWholeMessages, UCP_AM_FLAG_WHOLE_MSG);
SAME_VALUE(kReceivedRendezvous, UCP_AM_RECV_ATTR_FLAG_RNDV);

SAME_START(MapParams, ucp_mem_map_params_t);
SAME_PLACE(MapParams, address, ucp_mem_map_params_t, address);
SAME_PLACE(MapParams, length, ucp_mem_map_params_t, length);
SAME_PLACE(MapParams, flags, ucp_mem_map_params_t, flags);
SAME_VALUE(kMapAddress, UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
SAME_VALUE(kMapLength, UCP_MEM_MAP_PARAM_FIELD_LENGTH);
SAME_VALUE(kMapFlags, UCP_MEM_MAP_PARAM_FIELD_FLAGS);
SAME_VALUE(kMapLazily, UCP_MEM_MAP_NONBLOCK);
SAME_VALUE(kMapAllocate, UCP_MEM_MAP_ALLOCATE);
SAME_PLACE(MemoryAttributes, address, ucp_mem_attr_t, address);
SAME_PLACE(MemoryAttributes, length, ucp_mem_attr_t, length);
SAME_VALUE(kMemoryAddress, UCP_MEM_ATTR_FIELD_ADDRESS);
SAME_VALUE(kMemoryLength, UCP_MEM_ATTR_FIELD_LENGTH);
static_assert(sizeof(mine::MemoryAttributes) >= sizeof(ucp_mem_attr_t));

// Two functions agree if they take the same number of arguments of the same sizes and kinds.
template <class Ours, class Theirs>
constexpr bool alike() {
  return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
}
template <class Ours, class... OurArguments, class Theirs, class... TheirArguments>
constexpr bool same_call(Ours (*)(OurArguments...), Theirs (*)(TheirArguments...)) {
  if constexpr (sizeof...(OurArguments) != sizeof...(TheirArguments)) {
    return false;
  } else {
    if constexpr (!std::is_void_v<Ours>) {
      if (!alike<Ours, Theirs>()) return false;
    } else if (!std::is_void_v<Theirs>) {
      return false;
    }
    return (alike<OurArguments, TheirArguments>() && ...);
  }
}
#define SAME_FUNCTION(name, result, parameters) \
  static_assert(same_call(static_cast<mine::name##_type*>(nullptr), &ucp_##name), #name);
namespace berth::internal::ucx {
#define BERTH_TYPE(name, result, parameters) using name##_type = result parameters;
BERTH_UCX_FUNCTIONS(BERTH_TYPE)
}  // namespace berth::internal::ucx
BERTH_UCX_FUNCTIONS(SAME_FUNCTION)

TEST(UcxAbi, AgreesWithTheRealHeader) {
  SUCCEED() << "compared at compile time with UCP " << UCP_API_MAJOR << "." << UCP_API_MINOR;
}

#else

TEST(UcxAbi, AgreesWithTheRealHeader) {
  GTEST_SKIP() << "ucp/api/ucp.h is not installed: apt install libucx-dev";
}

#endif

namespace berth::internal::ucx {
namespace {

TEST(UcxAbi, TellsRequestsFromStatuses) {
  int object = 0;
  EXPECT_FALSE(is_request(nullptr));
  EXPECT_TRUE(is_request(&object));
  for (int status = kLastStatus; status < 0; ++status) {
    void* const value = reinterpret_cast<void*>(static_cast<std::intptr_t>(status));
    EXPECT_FALSE(is_request(value)) << status;
    EXPECT_EQ(static_cast<int>(status_of(value)), status);
  }
}

}  // namespace
}  // namespace berth::internal::ucx
