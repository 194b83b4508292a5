// Compares our own declarations of PMIx's interface with its headers, where these are present.
#include "remote/pmix_abi.h"

#include <gtest/gtest.h>

#ifdef BERTH_HAS_PMIX_H

#include <pmix.h>

#include <cstddef>
#include <string_view>

namespace berth::internal::pmix {
namespace {

static_assert(sizeof(Process) == sizeof(pmix_proc_t) && offsetof(Process, rank) == offsetof(pmix_proc_t, rank));
static_assert(sizeof(ByteObject) == sizeof(pmix_byte_object_t));
static_assert(offsetof(ByteObject, size) == offsetof(pmix_byte_object_t, size));
static_assert(sizeof(Value) == sizeof(pmix_value_t) && alignof(Value) == alignof(pmix_value_t));
static_assert(offsetof(Value, data) == offsetof(pmix_value_t, data));
static_assert(sizeof(Info) == sizeof(pmix_info_t) && offsetof(Info, flags) == offsetof(pmix_info_t, flags));
static_assert(offsetof(Info, value) == offsetof(pmix_info_t, value));
static_assert(kSuccess == PMIX_SUCCESS && kAllRanks == PMIX_RANK_WILDCARD && kGlobal == PMIX_GLOBAL);
static_assert(kInt == PMIX_INT && kUint32 == PMIX_UINT32 && kByteObject == PMIX_BYTE_OBJECT);
static_assert(std::string_view(kJobSize) == PMIX_JOB_SIZE && std::string_view(kTimeout) == PMIX_TIMEOUT);
static_assert(sizeof(Status) == sizeof(pmix_status_t) && sizeof(Scope) == sizeof(pmix_scope_t));

TEST(PmixAbi, MatchesTheHeadersOfPmix) {
  SUCCEED() << "the compiler compared them";
}

}  // namespace
}  // namespace berth::internal::pmix

#else

TEST(PmixAbi, MatchesTheHeadersOfPmix) {
  GTEST_SKIP() << "needs pmix.h: apt-get install libpmix-dev, then configure again";
}

#endif
