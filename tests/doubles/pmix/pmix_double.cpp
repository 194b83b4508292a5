// A PMIx server and client for one process. BERTH_PMIX_DOUBLE says what goes wrong: "init", "put", "commit" and "get"
// fail; "silent" answers when the client ends; "late" answers after 50 ms on another thread; "string" and "large"
// answer with data that Berth did not publish; "size" answers with a job of no ranks.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "remote/pmix_abi.h"

#define BERTH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace berth::internal::pmix;

constexpr Status kFailed = -1, kNotFound = -46;
constexpr std::uint32_t kRanks = 3;
constexpr DataType kString = 3;

std::map<std::string, std::string> values;
std::vector<std::pair<ValueCallback, void*>> unanswered;  // answered when the client ends

bool goes_wrong(std::string_view what) {
  const char* mode = std::getenv("BERTH_PMIX_DOUBLE");
  return mode != nullptr && mode == what;
}

Rank own_rank() {
  return static_cast<Rank>(std::atoi(std::getenv("PMIX_RANK")));
}

}  // namespace

BERTH_EXPORT Status PMIx_Init(Process* process, Info*, std::size_t) {
  if (goes_wrong("init")) return kFailed;
  std::strcpy(process->nspace, std::getenv("PMIX_NAMESPACE"));
  process->rank = own_rank();
  return kSuccess;
}

BERTH_EXPORT Status PMIx_Finalize(const Info*, std::size_t) {
  values.clear();
  for (const auto& [callback, data] : std::exchange(unanswered, {})) callback(kFailed, nullptr, data);
  return kSuccess;
}

BERTH_EXPORT Status PMIx_Put(Scope, const char* key, Value* value) {
  if (goes_wrong("put")) return kFailed;
  values[key] = std::string(value->data.bytes.bytes, value->data.bytes.size);
  return kSuccess;
}

BERTH_EXPORT Status PMIx_Commit() {
  return goes_wrong("commit") ? kFailed : kSuccess;
}

BERTH_EXPORT Status PMIx_Get_nb(const Process* process, const char* key, const Info* info, std::size_t count,
                                ValueCallback callback, void* data) {
  if (goes_wrong("get")) return kFailed;
  if (count != 1 || std::strcmp(info->key, kTimeout) != 0 || info->value.type != kInt) std::abort();
  Value value{};
  if (process->rank == kAllRanks && std::strcmp(key, kJobSize) == 0) {
    value.type = kUint32;
    value.data.uint32 = goes_wrong("size") ? 0 : kRanks;
    callback(kSuccess, &value, data);
    return kSuccess;
  }
  if (goes_wrong("silent")) {
    unanswered.emplace_back(callback, data);
    return kSuccess;
  }
  if (goes_wrong("string")) {
    value.type = kString;
    callback(kSuccess, &value, data);
    return kSuccess;
  }
  value.type = kByteObject;
  if (goes_wrong("large")) {
    std::string large((std::size_t{1} << 20) + 1, 'x');
    value.data.bytes = {large.data(), large.size()};
    callback(kSuccess, &value, data);
    return kSuccess;
  }
  const auto found = values.find(key);
  if (process->rank != own_rank() || found == values.end()) {
    callback(kNotFound, nullptr, data);
    return kSuccess;
  }
  if (goes_wrong("late")) {
    std::thread([callback, data, text = found->second]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      Value late{};
      late.type = kByteObject;
      late.data.bytes = {text.data(), text.size()};
      callback(kSuccess, &late, data);
    }).detach();
    return kSuccess;
  }
  value.data.bytes = {found->second.data(), found->second.size()};
  callback(kSuccess, &value, data);
  return kSuccess;
}

BERTH_EXPORT const char* PMIx_Error_string(Status status) {
  return status == kSuccess ? "SUCCESS" : "ERROR OF THE DOUBLE";
}
