// Where the program that runs this code lies. Any thread may call.
#pragma once

#include <filesystem>

namespace berth {

// The program's file, without links in its path; empty where the system does not say.
std::filesystem::path program_path();

}  // namespace berth
