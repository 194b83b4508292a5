// The number of heap allocations of the program so far. A program counts if count_allocations.cpp is among its sources.
#pragma once

#include <atomic>
#include <cstddef>

namespace berth::test {

extern std::atomic<std::size_t> allocations;

}  // namespace berth::test
