// Problems for the planner's bench and tests: made here from a seed, or read from a CSV file. Every generator is a pure
// function of its arguments.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "berth/plan/plan.h"

namespace berth::bench {

// In [0, 1), the same on every machine, unlike the standard distributions.
inline double unit(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}
inline double exponential(std::mt19937_64& random, double mean) {
  return -mean * std::log1p(-unit(random));
}

// `count` lifetimes that begin at random, last about 1000 levels and take about 64 KiB, both exponentially distributed:
// about 1000 are alive at a time.
inline PlanProblem exponential_problem(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  problem.lifetimes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::int64_t>(random() % count);
    const auto length = 1 + static_cast<std::int64_t>(exponential(random, 1000));
    const auto bytes = 64 * (1 + static_cast<std::uint64_t>(exponential(random, 1024)));
    problem.lifetimes.push_back({.bytes = bytes, .first = first, .last = first + length});
  }
  return problem;
}

// The same with Pareto-distributed sizes and lengths: most are small and short, a few are neither.
inline PlanProblem heavy_tailed_problem(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  problem.lifetimes.reserve(count);
  const auto pareto = [&](double shape, double most) {
    return std::min(most, std::pow(1.0 - unit(random), -1.0 / shape));
  };
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::int64_t>(random() % count);
    const auto length = 1 + static_cast<std::int64_t>(20 * pareto(1.1, 1e4));
    const auto bytes = 64 * (1 + static_cast<std::uint64_t>(16 * pareto(1.1, 1e6)));
    problem.lifetimes.push_back({.bytes = bytes, .first = first, .last = first + length});
  }
  return problem;
}

// A rectangle of 1 MiB by 10,000 levels, cut at random by guillotine cuts into `count` buffers, of which a share of
// `dropped` is left out: feasible at 1 MiB by construction, and with no slack where nothing was dropped.
inline PlanProblem guillotine_problem(std::size_t count, double dropped, std::uint64_t seed) {
  struct Rectangle {
    std::int64_t first, last;
    std::uint64_t low, high;
  };
  constexpr std::uint64_t kUnit = 1024;
  std::mt19937_64 random(seed);
  std::vector<Rectangle> pieces{{0, 10'000, 0, 1024}};
  while (pieces.size() < count) {
    // Mostly the larger of two, so that sizes stay comparable.
    const auto area = [&](std::size_t i) {
      return static_cast<double>(pieces[i].last - pieces[i].first) *
             static_cast<double>(pieces[i].high - pieces[i].low);
    };
    std::size_t at = random() % pieces.size();
    for (int i = 0; i < 2; ++i) {
      const std::size_t other = random() % pieces.size();
      if (area(other) > area(at)) at = other;
    }
    Rectangle& piece = pieces[at];
    const auto length = static_cast<std::uint64_t>(piece.last - piece.first), height = piece.high - piece.low;
    const bool across = unit(random) < 0.5;
    const double where = 0.15 + 0.7 * unit(random);
    Rectangle rest = piece;
    if (across && height >= 2) {
      const std::uint64_t cut =
          piece.low +
          std::clamp<std::uint64_t>(static_cast<std::uint64_t>(where * static_cast<double>(height)), 1, height - 1);
      piece.high = rest.low = cut;
    } else if (!across && length >= 2) {
      const auto cut =
          piece.first + static_cast<std::int64_t>(std::clamp<std::uint64_t>(
                            static_cast<std::uint64_t>(where * static_cast<double>(length)), 1, length - 1));
      piece.last = rest.first = cut;
    } else {
      continue;
    }
    pieces.push_back(rest);
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  PlanProblem problem;
  for (const Rectangle& piece : pieces) {
    if (unit(random) < dropped) continue;
    problem.lifetimes.push_back({.bytes = (piece.high - piece.low) * kUnit, .first = piece.first, .last = piece.last});
  }
  problem.capacity = 1024 * kUnit;
  return problem;
}

// Every level is full to `height`: at each, about a third of what lives ends and other sizes take its place, with no
// thought of where it lay. The live load is `height` throughout, but many of these have no plan of that size.
inline PlanProblem full_load_problem(std::uint64_t height, std::uint64_t alive, std::int64_t levels,
                                     std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  std::vector<std::size_t> live;
  const auto fill = [&](std::uint64_t room, std::int64_t level) {
    while (room > 0) {
      const std::uint64_t bytes = std::min<std::uint64_t>(room, 1 + random() % (2 * height / alive));
      live.push_back(problem.lifetimes.size());
      problem.lifetimes.push_back({.bytes = bytes, .first = level, .last = levels});
      room -= bytes;
    }
  };
  fill(height, 0);
  for (std::int64_t level = 1; level < levels; ++level) {
    std::uint64_t room = 0;
    std::vector<std::size_t> staying;
    for (const std::size_t node : live) {
      if (random() % 3 == 0) {
        room += problem.lifetimes[node].bytes;
        problem.lifetimes[node].last = level;
      } else {
        staying.push_back(node);
      }
    }
    live = std::move(staying);
    fill(room, level);
  }
  return problem;
}

// The activations of densely connected blocks: every layer reads the concatenation of all before it in its block, and a
// transition halves what a block made. Sizes vary with the block as channels grow and images shrink.
inline PlanProblem densenet_problem(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  std::int64_t level = 0;
  std::uint64_t image = 56 * 56, channels = 64;
  const int layers[] = {6, 12, 24, 16};
  const std::uint64_t growth = 24 + 8 * (random() % 3);
  for (const int count : layers) {
    std::uint64_t width = channels;
    const std::int64_t begin = level;
    problem.lifetimes.push_back({.bytes = 4 * image * width, .first = begin, .last = begin + 2});
    for (int layer = 0; layer < count; ++layer) {
      // concat (level), bottleneck (level + 1), new features (level + 2) which live until the next concat has read them
      problem.lifetimes.push_back({.bytes = 4 * image * width, .first = level + 1, .last = level + 3});
      problem.lifetimes.push_back({.bytes = 4 * image * 4 * growth, .first = level + 2, .last = level + 4});
      problem.lifetimes.push_back({.bytes = 4 * image * growth, .first = level + 3, .last = begin + 3 * count + 2});
      width += growth;
      level += 3;
    }
    problem.lifetimes.push_back({.bytes = 4 * image * width, .first = level + 1, .last = level + 3});
    channels = width / 2;
    image /= 4;
    level += 2;
  }
  return problem;
}

// Reads `id,lower,upper,size`. Nothing if the file is not there or not of that form.
inline std::optional<PlanProblem> read_problem(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line) || line.rfind("id,lower,upper,size", 0) != 0) return std::nullopt;
  PlanProblem problem;
  while (std::getline(in, line)) {
    long long id = 0, lower = 0, upper = 0;
    unsigned long long size = 0;
    if (std::sscanf(line.c_str(), "%lld,%lld,%lld,%llu", &id, &lower, &upper, &size) != 4) return std::nullopt;
    problem.lifetimes.push_back({.bytes = size, .first = lower, .last = upper});
  }
  return problem;
}

}  // namespace berth::bench
