// Any text is either refused with a place in the file, or read such that writing and reading it again changes nothing.
#include <cstdio>
#include <cstdlib>

#include "berth/plan/plan_files.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "plan_csv_fuzz: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto table = berth::parse_plan_csv(text, "f");
  if (!table) {
    require(table.error().code() == berth::Code::kInvalidData, "a refusal has the wrong code");
    require(table.error().message().starts_with("f:"), "a refusal names no place");
    return 0;
  }
  const std::string written = berth::format_plan_csv(*table);
  const auto again = berth::parse_plan_csv(written, "f");
  require(again.has_value(), "what was written cannot be read");
  require(berth::format_plan_csv(*again) == written, "writing it again changes it");
  require(again->ids == table->ids, "the ids changed");
  return 0;
}
