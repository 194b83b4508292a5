// Saved replay plans from anywhere: decoding must neither crash nor hand on a plan that a replay could trip over. The
// checksum at the end of the file would turn nearly every input away before it is read, so it is put right first; the
// input as it came is decoded too.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "run/replay_plan.h"

namespace {

constexpr std::string_view kStamp = "stamp";

std::string with_checksum(std::string_view body) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const char c : body) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3;
  std::string whole(body);
  for (int i = 0; i < 8; ++i) whole += static_cast<char>(hash >> (8 * i) & 0xff);
  return whole;
}

void decode(std::string_view bytes) {
  using namespace berth::internal::replay;
  auto plans = decode_plans(bytes, kStamp);
  if (!plans) return;
  std::vector<ReplayPlan> kept;
  kept.reserve(plans->size());
  std::vector<NamedPlan> named;
  for (DecodedPlan& plan : *plans) {
    if (!check(plan.trace, plan.memory)) std::abort();
    const std::size_t requests = plan.trace.requests.size();
    const ReplayPlan& replay = kept.emplace_back(std::move(plan.trace), std::move(plan.memory));
    named.push_back({plan.key, plan.dimensions, &replay});
    if (replay.steps.size() != requests + replay.trace.releases.size()) std::abort();
    for (std::size_t i = 0; i < requests; ++i) {
      const std::uint64_t offset = replay.offsets[i];
      const std::uint64_t bytes_of = replay.trace.requests[i].bytes;
      if (offset != kNoOffset && (offset > replay.memory.size || bytes_of > replay.memory.size - offset)) std::abort();
      if (replay.find_class(bytes_of) == nullptr) std::abort();
    }
  }
  // What was read can be written, and reads the same.
  const auto again = decode_plans(encode_plans(named, kStamp), kStamp);
  if (!again || again->size() != kept.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  decode(bytes);
  if (size >= 8) decode(with_checksum(bytes.substr(0, size - 8)));
  return 0;
}
