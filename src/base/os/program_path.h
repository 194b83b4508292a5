// The path of the running program. Any thread may call.
#pragma once

#include <filesystem>

namespace berth::internal {

// The program's file, without links in its path; empty if the system does not provide it.
std::filesystem::path program_path();

}  // namespace berth::internal
