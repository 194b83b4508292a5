// Plans as JSON.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/try.h"
#include "berth/plan/plan_files.h"

namespace berth {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "berth-plan";
constexpr int kVersion = 1;

Error not_a_plan(const std::string& what) {
  return Error::with_text(Code::kInvalidData, Layer::kFormat, "this is not a plan: " + what);
}

Result<std::uint64_t> whole_number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned())
    return not_a_plan(fmt::format("expected a whole number for \"{}\"", key));
  return found->get<std::uint64_t>();
}

Result<std::uint64_t> fingerprint_of(const Json& document) {
  const auto found = document.find("fingerprint");
  if (found == document.end() || !found->is_string())
    return not_a_plan("expected \"fingerprint\" to be 16 hexadecimal digits");
  const auto& text = found->get_ref<const std::string&>();
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (failure != std::errc{} || end != text.data() + text.size() || text.size() != 16)
    return not_a_plan("expected \"fingerprint\" to be 16 hexadecimal digits");
  return value;
}

Result<void> read_blocks(const Json& document, MemoryPlan& plan) {
  const auto blocks = document.find("blocks");
  if (blocks == document.end() || !blocks->is_array()) return not_a_plan("expected a list \"blocks\"");
  for (const Json& block : *blocks) {
    if (!block.is_object()) return not_a_plan("expected a block to be an object with bytes, bank and lane");
    PlanBlock out;
    BERTH_TRY_ASSIGN(out.bytes, whole_number(block, "bytes"));
    BERTH_TRY_ASSIGN(const std::uint64_t bank, whole_number(block, "bank"));
    BERTH_TRY_ASSIGN(const std::uint64_t lane, whole_number(block, "lane"));
    if (bank > kNoBlock || lane > kNoBlock) return not_a_plan("a bank or lane is out of range");
    out.bank = static_cast<std::uint32_t>(bank);
    out.lane = static_cast<std::uint32_t>(lane);
    plan.blocks.push_back(out);
  }
  return {};
}

Result<void> read_slots(const Json& document, MemoryPlan& plan) {
  const auto slots = document.find("slots");
  if (slots == document.end() || !slots->is_array()) return not_a_plan("expected a list \"slots\"");
  for (const Json& slot : *slots) {
    if (slot.is_null()) {
      plan.slots.push_back({});
      continue;
    }
    if (!slot.is_array() || slot.size() != 3 || !slot[0].is_number_unsigned() || !slot[1].is_number_unsigned() ||
        !slot[2].is_number_unsigned() || slot[0].get<std::uint64_t>() > kNoBlock)
      return not_a_plan("expected a slot to be [block, offset, bytes] or null");
    plan.slots.push_back({.offset = slot[1].get<std::uint64_t>(),
                          .bytes = slot[2].get<std::uint64_t>(),
                          .block = slot[0].get<std::uint32_t>()});
  }
  return {};
}

}  // namespace

std::string plan_to_json(const MemoryPlan& plan) {
  std::size_t count = 0;
  for (std::size_t node = 0; node < plan.slots.size(); ++node) count += plan.has(node) ? 1 : 0;
  fmt::memory_buffer out;
  const auto put = [&]<class... Arguments>(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Arguments>(arguments)...);
  };
  put("{{\n  \"format\": \"{}\",\n  \"version\": {},\n  \"size\": {},\n  \"lower_bound\": {},\n  \"gap\": {},\n",
      kFormat, kVersion, plan.size, plan.lower_bound, plan.gap());
  put("  \"optimal\": {},\n  \"seconds\": {},\n  \"strategy\": {},\n  \"count\": {},\n  \"work\": {},\n", plan.optimal,
      plan.seconds, Json(plan.strategy).dump(-1, ' ', true, Json::error_handler_t::replace), count, plan.work);
  put("  \"fingerprint\": \"{:016x}\",\n  \"blocks\": [", plan.fingerprint);
  for (std::size_t i = 0; i < plan.blocks.size(); ++i)
    put("{}{{\"bytes\": {}, \"bank\": {}, \"lane\": {}}}", i == 0 ? "" : ", ", plan.blocks[i].bytes,
        plan.blocks[i].bank, plan.blocks[i].lane);
  put("],\n  \"slots\": [");
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    if (i > 0) put("{}", i % 8 == 0 ? ",\n    " : ", ");
    if (plan.has(i))
      put("[{}, {}, {}]", plan.slots[i].block, plan.slots[i].offset, plan.slots[i].bytes);
    else
      put("null");
  }
  put("]\n}}\n");
  return fmt::to_string(out);
}

Result<MemoryPlan> plan_from_json(std::string_view json, const PlanProblem& problem) {
  const Json document = Json::parse(json, nullptr, false);
  if (document.is_discarded()) return not_a_plan("it is not JSON");
  if (!document.is_object() || document.value("format", Json()) != kFormat)
    return not_a_plan(fmt::format("expected an object whose \"format\" is \"{}\"", kFormat));
  if (document.value("version", Json()) != kVersion)
    return not_a_plan(fmt::format("expected \"version\" {}", kVersion));

  MemoryPlan plan;
  BERTH_TRY_ASSIGN(plan.fingerprint, fingerprint_of(document));
  if (const std::uint64_t wanted = fingerprint(problem); plan.fingerprint != wanted)
    return Error::with_text(
        Code::kSizeMismatch, Layer::kFormat,
        fmt::format("this plan is for another problem: its fingerprint is {:016x}, the problem's is "
                    "{:016x}; plan the problem again",
                    plan.fingerprint, wanted));
  BERTH_TRY_ASSIGN(plan.size, whole_number(document, "size"));
  BERTH_TRY_ASSIGN(plan.lower_bound, whole_number(document, "lower_bound"));
  BERTH_TRY_ASSIGN(plan.work, whole_number(document, "work"));
  const auto optimal = document.find("optimal");
  if (optimal == document.end() || !optimal->is_boolean())
    return not_a_plan("expected \"optimal\" to be true or false");
  plan.optimal = optimal->get<bool>();
  const auto strategy = document.find("strategy");
  if (strategy == document.end() || !strategy->is_string()) return not_a_plan("expected \"strategy\" to be a name");
  plan.strategy = strategy->get<std::string>();
  const auto seconds = document.find("seconds");
  if (seconds == document.end() || !seconds->is_number()) return not_a_plan("expected \"seconds\" to be a number");
  plan.seconds = seconds->get<double>();
  BERTH_TRY(read_blocks(document, plan));
  BERTH_TRY(read_slots(document, plan));
  // The offsets in the file will be used to write memory, so nothing in it is trusted.
  if (const Violation found = validate(problem, plan))
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            "the plan does not hold: " + describe(found, problem, plan));
  return plan;
}

}  // namespace berth
