// The seed of everything that tests draw at random. Each process draws a new one and prints it; the environment
// variable BERTH_TEST_SEED takes it back. Any thread may call.
#pragma once

#include <cstdint>
#include <vector>

namespace berth::test {

// The seed of this process.
std::uint32_t seed();

// `count` seeds that follow from it: for tests that repeat themselves with another one each time.
std::vector<std::uint32_t> seeds(std::size_t count);

}  // namespace berth::test
