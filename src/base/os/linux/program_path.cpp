#include "base/os/program_path.h"

#include <system_error>

namespace berth::internal {

std::filesystem::path program_path() {
  constexpr const char* kSelf = "/proc/self/exe";
  std::error_code error;
  auto path = std::filesystem::read_symlink(kSelf, error);
  // A file that was replaced while it runs has no path any more, and can still be run through this one.
  if (!error && !std::filesystem::exists(path, error)) return kSelf;
  return error ? std::filesystem::path{} : path;
}

}  // namespace berth::internal
