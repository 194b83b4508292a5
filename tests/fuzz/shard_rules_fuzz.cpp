// Any text is either refused with a line, or read such that writing and reading it again changes nothing. A pattern
// fits or does not fit any name.
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "berth/remote/sharding.h"
#include "remote/shard_rules.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "shard_rules_fuzz: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto rules = berth::parse_shard_rules(text);
  if (!rules) {
    require(rules.error().code() == berth::Code::kInvalidData, "a refusal has the wrong code");
    require(rules.error().message().starts_with("line "), "a refusal names no line");
    return 0;
  }
  const auto again = berth::parse_shard_rules(berth::to_string(std::span(*rules)));
  require(again.has_value() && *again == *rules, "writing and reading them again changes the rules");
  for (const berth::ShardRule& rule : *rules) {
    std::optional<std::uint64_t> number;
    berth::internal::fits(rule.pattern, text.substr(0, 100), number);
    if (rule.pattern.find_first_of("#") == std::string::npos)
      require(berth::internal::fits(rule.pattern, rule.pattern, number),
              "a pattern without numbers does not fit itself");
  }
  return 0;
}
