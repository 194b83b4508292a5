// Families of planning problems, each a pure function of its arguments. A tiling cuts a full rectangle of time and
// bytes into buffers, so it has a plan of the rectangle's height by construction; the other families imitate the
// lifetimes of programs, and whether their bound can be met is not known.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "berth/plan/plan.h"
#include "support/plan_instances.h"

namespace berth::bench {

struct Tile {
  std::int64_t first, last;
  std::int64_t low, high;
};

// What a rectangle is made of, chosen by the seed: programs have few distinct sizes or many, few steps or many.
struct Sheet {
  std::int64_t levels = 10'000;
  std::int64_t height = 1024;
  std::uint64_t unit = 1024;  // bytes
};
inline Sheet draw_sheet(std::size_t count, std::mt19937_64& random) {
  const auto fine = static_cast<std::int64_t>(4 * std::sqrt(static_cast<double>(count)));
  constexpr std::int64_t kHeights[] = {1024, 1024, 4096, 65'536};
  const std::int64_t levels[] = {10'000, 1000, 2 * fine, fine};
  const std::int64_t height = kHeights[random() % 4];
  return {levels[random() % 4], height, static_cast<std::uint64_t>(1'048'576 / height)};
}

// Drops a share of the tiles and makes a problem of the rest, in random order.
inline PlanProblem problem_of_tiles(std::vector<Tile> tiles, const Sheet& sheet, double dropped,
                                    std::mt19937_64& random) {
  for (std::size_t i = tiles.size(); i > 1; --i) std::swap(tiles[i - 1], tiles[random() % i]);
  PlanProblem problem;
  for (const Tile& tile : tiles) {
    if (unit(random) < dropped) continue;
    problem.lifetimes.push_back({.bytes = static_cast<std::uint64_t>(tile.high - tile.low) * sheet.unit,
                                 .first = tile.first,
                                 .last = tile.last});
  }
  problem.capacity = static_cast<std::uint64_t>(sheet.height) * sheet.unit;
  return problem;
}

// Takes tiles apart until there are `count`: by guillotine cuts, and with chance `pinwheel` into five that turn around
// the one in the middle, which no cut separates.
inline PlanProblem cut_tiling(std::size_t count, double dropped, double pinwheel, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Sheet sheet = draw_sheet(count, random);
  std::vector<Tile> tiles{{0, sheet.levels, 0, sheet.height}};
  const auto area = [&](const Tile& tile) {
    return static_cast<double>(tile.last - tile.first) / static_cast<double>(sheet.levels) *
           static_cast<double>(tile.high - tile.low) / static_cast<double>(sheet.height);
  };
  // A point inside (low, high), not too near to either.
  const auto between = [&](std::int64_t low, std::int64_t high) {
    const double where = 0.15 + 0.7 * unit(random);
    return std::clamp(low + static_cast<std::int64_t>(where * static_cast<double>(high - low)), low + 1, high - 1);
  };
  for (std::size_t tries = 0; tiles.size() < count && tries < 1000 * count; ++tries) {
    std::size_t at = random() % tiles.size();
    for (int i = 0; i < 2; ++i) {  // mostly the larger of a few, so that sizes stay comparable
      const std::size_t other = random() % tiles.size();
      if (area(tiles[other]) > area(tiles[at])) at = other;
    }
    const Tile tile = tiles[at];
    const bool across = random() % 2 == 0;
    if (unit(random) < pinwheel && tile.last - tile.first >= 3 && tile.high - tile.low >= 3) {
      const std::int64_t x = between(tile.first, tile.last - 1), y = between(tile.low, tile.high - 1);
      const std::int64_t x2 = between(x, tile.last), y2 = between(y, tile.high);
      if (across) {
        tiles[at] = {tile.first, x2, tile.low, y};
        tiles.push_back({x2, tile.last, tile.low, y2});
        tiles.push_back({x, tile.last, y2, tile.high});
        tiles.push_back({tile.first, x, y, tile.high});
      } else {
        tiles[at] = {x, tile.last, tile.low, y};
        tiles.push_back({x2, tile.last, y, tile.high});
        tiles.push_back({tile.first, x2, y2, tile.high});
        tiles.push_back({tile.first, x, tile.low, y2});
      }
      tiles.push_back({x, x2, y, y2});
    } else if (across && tile.high - tile.low >= 2) {
      const std::int64_t cut = between(tile.low, tile.high);
      tiles[at].high = cut;
      tiles.push_back({tile.first, tile.last, cut, tile.high});
    } else if (!across && tile.last - tile.first >= 2) {
      const std::int64_t cut = between(tile.first, tile.last);
      tiles[at].last = cut;
      tiles.push_back({cut, tile.last, tile.low, tile.high});
    }
  }
  return problem_of_tiles(std::move(tiles), sheet, dropped, random);
}

// Covers a grid of uneven rows and columns, from the first cell that is free, with rectangles of random extent. Nothing
// about it is recursive.
inline PlanProblem grid_tiling(std::size_t count, double dropped, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Sheet sheet = draw_sheet(count, random);
  const auto side = static_cast<std::size_t>(1.9 * std::sqrt(static_cast<double>(count)));
  const auto lines = [&](std::int64_t most) {
    std::vector<std::int64_t> at{0, most};
    while (at.size() < side + 1)
      at.push_back(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)));
    std::sort(at.begin(), at.end());
    at.erase(std::unique(at.begin(), at.end()), at.end());
    return at;
  };
  const std::vector<std::int64_t> x = lines(sheet.levels), y = lines(sheet.height);
  const std::size_t columns = x.size() - 1, rows = y.size() - 1;
  std::vector<char> taken(columns * rows, 0);
  std::vector<Tile> tiles;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      if (taken[row * columns + column]) continue;
      const auto extent = [&] { return 1 + static_cast<std::size_t>(exponential(random, 1.6)); };
      const std::size_t wide = extent(), high = std::min(rows - row, extent());
      std::size_t last = column + 1;
      while (last < columns && last < column + wide && !taken[row * columns + last]) ++last;
      for (std::size_t r = row; r < row + high; ++r) {
        for (std::size_t c = column; c < last; ++c) taken[r * columns + c] = 1;
      }
      tiles.push_back({x[column], x[last], y[row], y[row + high]});
    }
  }
  return problem_of_tiles(std::move(tiles), sheet, dropped, random);
}

// One step of training: activations live from their forward step to their backward step, gradients from one backward
// step to the next, those of weights until the end; some steps have a workspace. Layers come in groups of equal shape.
// `scale` is the length of the sequence or batch: it changes sizes, some in proportion and some with its square, and
// nothing else.
inline PlanProblem training_step(std::size_t count, std::uint64_t seed, double scale = 1.0) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  const auto bytes = [](double size) { return 512 * (1 + static_cast<std::uint64_t>(size / 512)); };
  const auto add = [&](double size, std::int64_t first, std::int64_t last) {
    problem.lifetimes.push_back({.bytes = bytes(size), .first = first, .last = std::max(first + 1, last)});
  };
  struct Tensor {
    double size;
    std::int64_t made;
  };
  std::vector<Tensor> saved;
  double width = 65'536.0 * static_cast<double>(1 + random() % 16);
  const double quadratic = unit(random) * 0.5;
  const std::size_t groups = 1 + random() % 6, each = std::max<std::size_t>(2, count * 2 / (9 * groups));
  std::int64_t now = 0;
  for (std::size_t group = 0; group < groups; ++group) {
    const double grow = 0.5 + unit(random);
    const double attention = unit(random) < 0.5 ? 0.0 : quadratic;
    for (std::size_t layer = 0; layer < each; ++layer) {
      const double out = width * scale;
      saved.push_back({out, now});
      if (layer % 3 == 1) saved.push_back({out / 4, now});            // a mask or statistics
      if (layer % 4 == 2) add(2 * out * unit(random), now, now + 1);  // a workspace
      if (attention > 0 && layer % 2 == 0) saved.push_back({width * attention * scale * scale, now});
      add(out * (0.5 + unit(random)), now, now + 2);  // what the next layer reads and nobody keeps
      now += 2;
    }
    width *= grow;
  }
  const std::int64_t turn = now, end = 2 * turn + 2;
  for (std::size_t i = saved.size(); i-- > 0;) {
    const std::int64_t back = turn + (turn - saved[i].made);
    add(saved[i].size, saved[i].made, back + 1);
    add(saved[i].size * (0.6 + 0.4 * unit(random)), back, back + 2);                   // the gradient of it
    if (i % 3 == 0) add(65'536.0 * static_cast<double>(1 + random() % 8), back, end);  // of the weights
    if (i % 5 == 0) add(saved[i].size * unit(random), back, back + 1);
  }
  return problem;
}

// Inference with branches that join again and skips from a shrinking half to a growing one.
inline PlanProblem branches(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  const auto add = [&](double size, std::int64_t first, std::int64_t last) {
    problem.lifetimes.push_back({.bytes = 256 * (1 + static_cast<std::uint64_t>(size / 256)),
                                 .first = first,
                                 .last = std::max(first + 1, last)});
  };
  const bool pyramid = random() % 2 == 0;
  double size = 4e6 * (1 + unit(random));
  std::int64_t now = 0;
  struct Skip {
    double size;
    std::int64_t made;
  };
  std::vector<Skip> skips;
  const std::size_t floors = 3 + random() % 3;
  for (std::size_t stage = 0; problem.lifetimes.size() + skips.size() < count; ++stage) {
    const bool up = pyramid && (stage / floors) % 2 == 1;
    if (up && !skips.empty()) {
      add(skips.back().size, skips.back().made, now + 2);
      size = skips.back().size;
      skips.pop_back();
    }
    const std::size_t arms = 1 + random() % 4;
    const std::int64_t begin = now;
    add(size, now, now + static_cast<std::int64_t>(arms) * 3 + 1);  // read by every arm
    std::vector<Skip> ends;
    for (std::size_t arm = 0; arm < arms; ++arm) {
      double inner = size * (0.2 + unit(random));
      const std::size_t depth = 1 + random() % 3;
      for (std::size_t d = 0; d < depth; ++d) {
        ++now;
        if (random() % 4 == 0) add(inner * 2, now, now + 1);
        if (d + 1 < depth) add(inner, now, now + 2);
        if (d + 1 < depth) inner *= 0.5 + unit(random);
      }
      ends.push_back({inner, now});
    }
    now = std::max(now, begin + static_cast<std::int64_t>(arms) * 3 - 1) + 1;
    for (const Skip& end : ends) add(end.size, end.made, now + 1);
    if (pyramid && !up) {
      skips.push_back({size, begin});
      size *= 0.35 + 0.3 * unit(random);
    } else {
      size = std::clamp(size * (0.6 + 0.8 * unit(random)), 1e4, 1e7);
    }
  }
  for (const Skip& skip : skips) add(skip.size, skip.made, now + 1);
  return problem;
}

// A chain of steps with workspaces that dwarf what they compute, over a bed of small values that live long.
inline PlanProblem workspaces(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  const auto steps = static_cast<std::int64_t>(count / 2);
  double size = 1e6;
  for (std::int64_t step = 0; step < steps; ++step) {
    size = std::clamp(size * (0.5 + unit(random)), 1e4, 4e6);
    const auto round = [](double bytes) { return 64 * (1 + static_cast<std::uint64_t>(bytes / 64)); };
    problem.lifetimes.push_back({.bytes = round(size), .first = step, .last = step + 2});
    if (random() % 3 == 0)
      problem.lifetimes.push_back({.bytes = round(size * (2 + 6 * unit(random))), .first = step, .last = step + 1});
    if (random() % 2 == 0) {
      const auto length = 2 + static_cast<std::int64_t>(exponential(random, static_cast<double>(steps) / 5));
      problem.lifetimes.push_back({.bytes = round(exponential(random, 3e4)), .first = step, .last = step + length});
    }
  }
  return problem;
}

// One huge node among thousands of small ones whose loads rise and fall.
inline PlanProblem one_huge(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  const auto levels = static_cast<std::int64_t>(count / 2 + 10);
  double total = 0;
  for (std::size_t i = 1; i < count; ++i) {
    const double wave = unit(random) + 0.2 * std::sin(12.0 * static_cast<double>(i) / static_cast<double>(count));
    const auto first =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(wave * static_cast<double>(levels)), 0, levels - 1);
    const auto length = 1 + static_cast<std::int64_t>(exponential(random, static_cast<double>(levels) / 40));
    const auto size = 256 * (1 + static_cast<std::uint64_t>(exponential(random, 40)));
    problem.lifetimes.push_back({.bytes = size, .first = first, .last = first + length});
    total += static_cast<double>(size);
  }
  const std::int64_t first = levels / 4 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(levels / 4));
  problem.lifetimes.push_back({.bytes = 4096 * (1 + static_cast<std::uint64_t>(total * (0.05 + unit(random)) / 4096)),
                               .first = first,
                               .last = first + levels / 8 + 1});
  return problem;
}

// A problem like another: sizes a little different, a few lifetimes shifted or gone. What held for the other about
// feasibility does not hold any more.
inline PlanProblem perturbed(PlanProblem problem, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  problem.capacity.reset();
  std::vector<Lifetime> kept;
  for (Lifetime& it : problem.lifetimes) {
    if (random() % 50 == 0) continue;
    const double factor = 1.0 + 0.1 * (unit(random) - 0.5);
    const std::uint64_t rounding = it.bytes % 1024 == 0 ? 1024 : it.bytes % 64 == 0 ? 64 : 1;
    it.bytes =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(it.bytes) * factor) / rounding) *
        rounding;
    if (random() % 20 == 0) it.last += 1;
    kept.push_back(std::move(it));
  }
  problem.lifetimes = std::move(kept);
  return problem;
}

// A compiled graph of a large model before it is sharded: long chains of equal layers, most sizes from a short list,
// many tiny scalars, some tensors alive across many layers.
inline PlanProblem compiled_graph(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  std::vector<double> sizes;
  for (std::size_t i = 0; i < 6 + random() % 20; ++i) sizes.push_back(std::exp(8 + 9 * unit(random)));
  const std::size_t per_layer = 40 + random() % 200, layers = count / per_layer + 1;
  struct Step {
    double size;
    std::int64_t offset, length;
    bool kept;
  };
  std::vector<Step> layer;
  for (std::size_t i = 0; i < per_layer; ++i) {
    const bool tiny = random() % 3 == 0;
    const double size = tiny ? 4.0 * static_cast<double>(1 + random() % 64) : sizes[random() % sizes.size()];
    layer.push_back({size, static_cast<std::int64_t>(i), 1 + static_cast<std::int64_t>(exponential(random, 6)),
                     random() % 12 == 0});
  }
  const auto period = static_cast<std::int64_t>(per_layer);
  const auto turn = static_cast<std::int64_t>(layers / 2);
  for (std::int64_t l = 0; l < static_cast<std::int64_t>(layers); ++l) {
    for (const Step& step : layer) {
      const std::int64_t first = l * period + step.offset;
      std::int64_t last = first + step.length;
      if (step.kept && l < turn) last = (2 * turn - l) * period + period - step.offset;  // until its backward layer
      problem.lifetimes.push_back({.bytes = 4 * (1 + static_cast<std::uint64_t>(step.size / 4)),
                                   .first = first,
                                   .last = std::max(last, first + 1)});
    }
  }
  return problem;
}

}  // namespace berth::bench
