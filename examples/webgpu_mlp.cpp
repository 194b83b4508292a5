// A small network on WEBGPU: three dense layers whose weights and activations live in one planned arena. The matrix
// kernel reads f32 activations and takes the weights either as f32 or from the arena's f16 shadow, which halves the
// bytes it reads. Both results are checked against a reference on the CPU: to the accuracy of f32 sums for the same
// weights, and within the error that rounding the weights to f16 allows, bounded layer by layer. Exits with 77 where
// there is no WEBGPU.
#include <berth/berth.h>
#include <berth/plan/plan.h>
#include <berth/run/arena.h>
#include <berth/tensor/f16.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace berth;

constexpr std::uint32_t kBatch = 64;
constexpr std::uint32_t kTile = 16;

struct Layer {
  std::uint32_t inputs;
  std::uint32_t outputs;
  bool relu;
};
constexpr std::array<Layer, 3> kLayers = {{{256, 512, true}, {512, 512, true}, {512, 64, false}}};

// outputs = relu(inputs x weights + bias), in tiles that a work group keeps in its own memory.
std::string dense_kernel(bool half_weights) {
  std::string code = half_weights ? "enable f16;\nalias Weight = f16;\n" : "alias Weight = f32;\n";
  return code + R"(
struct Sizes { rows: u32, inner: u32, columns: u32, relu: u32 }
@group(0) @binding(0) var<storage, read> inputs: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<Weight>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> outputs: array<f32>;
@group(0) @binding(4) var<uniform> sizes: Sizes;

var<workgroup> input_tile: array<array<f32, 16>, 16>;
var<workgroup> weight_tile: array<array<f32, 16>, 16>;

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(local_invocation_id) here: vec3<u32>) {
  let row = at.y;
  let column = at.x;
  var sum = 0.0;
  for (var tile = 0u; tile < sizes.inner; tile += 16u) {
    let k_input = tile + here.x;
    let k_weight = tile + here.y;
    var a = 0.0;
    if (row < sizes.rows && k_input < sizes.inner) { a = inputs[row * sizes.inner + k_input]; }
    var w = 0.0;
    if (column < sizes.columns && k_weight < sizes.inner) { w = f32(weights[k_weight * sizes.columns + column]); }
    input_tile[here.y][here.x] = a;
    weight_tile[here.y][here.x] = w;
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) { sum += input_tile[here.y][k] * weight_tile[k][here.x]; }
    workgroupBarrier();
  }
  if (row < sizes.rows && column < sizes.columns) {
    sum += bias[column];
    if (sizes.relu == 1u) { sum = max(sum, 0.0); }
    outputs[row * sizes.columns + column] = sum;
  }
}
)";
}

struct Network {
  std::vector<float> input;
  std::array<std::vector<float>, 3> weights;
  std::array<std::vector<float>, 3> bias;
};

Network make_network() {
  std::mt19937 random(20'26);
  const auto normal = [&](std::size_t count, float scale) {
    std::normal_distribution<float> distribution(0.0F, scale);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random);
    return values;
  };
  Network network{.input = normal(std::size_t{kBatch} * kLayers[0].inputs, 1.0F), .weights = {}, .bias = {}};
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    const Layer& layer = kLayers[i];
    network.weights[i] =
        normal(std::size_t{layer.inputs} * layer.outputs, std::sqrt(2.0F / static_cast<float>(layer.inputs)));
    network.bias[i] = normal(layer.outputs, 0.1F);
  }
  return network;
}

// The same with every weight as the f16 nearest to it.
Network with_half_weights(Network network) {
  for (std::vector<float>& weights : network.weights)
    for (float& weight : weights) weight = to_f32(to_f16(weight));
  return network;
}

// What the network should give, and how far off rounding may take it: `weight_error` is the relative error of each
// weight; sums in f32 add a little of their own. ReLU makes no error larger.
struct Reference {
  std::vector<double> values;
  std::vector<double> bounds;
};

Reference reference(const Network& network, double weight_error) {
  constexpr double kF32 = 0x1p-24;
  Reference current{std::vector<double>(network.input.begin(), network.input.end()),
                    std::vector<double>(network.input.size(), 0.0)};
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    const Layer& layer = kLayers[i];
    Reference next{std::vector<double>(std::size_t{kBatch} * layer.outputs), {}};
    next.bounds.resize(next.values.size());
    for (std::size_t row = 0; row < kBatch; ++row)
      for (std::size_t column = 0; column < layer.outputs; ++column) {
        double sum = network.bias[i][column], size = std::abs(sum), bound = 0;
        for (std::size_t k = 0; k < layer.inputs; ++k) {
          const double a = current.values[row * layer.inputs + k], e = current.bounds[row * layer.inputs + k];
          const double w = network.weights[i][k * layer.outputs + column];
          sum += a * w;
          size += std::abs(a * w);
          bound += std::abs(a * w) * weight_error + e * std::abs(w) * (1 + weight_error);
        }
        bound += (size + bound) * kF32 * (layer.inputs + 2);
        const std::size_t at = row * layer.outputs + column;
        next.values[at] = layer.relu ? std::max(sum, 0.0) : sum;
        next.bounds[at] = bound;
      }
    current = std::move(next);
  }
  return current;
}

void check(const Result<void>& result) {
  if (!result) throw BadResult(result.error());
}

// Nodes of the plan: the input, then weights, bias and output of each layer.
constexpr NodeId kInput = 0;
constexpr NodeId weights_of(std::size_t layer) {
  return static_cast<NodeId>(1 + 3 * layer);
}
constexpr NodeId bias_of(std::size_t layer) {
  return weights_of(layer) + 1;
}
constexpr NodeId output_of(std::size_t layer) {
  return weights_of(layer) + 2;
}

// Parameters stay; an activation lives from the level that writes it to the level that reads it.
PlanProblem problem_for(const DeviceLimits& limits) {
  PlanProblem problem;
  // Half a slot's offset, where its shadow starts, must be bindable too.
  problem.alignment = 2 * limits.binding_alignment;
  problem.max_block_bytes = limits.max_block_bytes;
  problem.lifetimes.push_back(
      {.bytes = std::uint64_t{kBatch} * kLayers[0].inputs * 4, .first = 0, .last = 1, .label = "input"});
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    const Layer& layer = kLayers[i];
    const auto level = static_cast<std::int64_t>(i);
    const bool last = i + 1 == kLayers.size();
    problem.lifetimes.push_back(
        {.bytes = std::uint64_t{layer.inputs} * layer.outputs * 4, .pinned = true, .label = "weights"});
    problem.lifetimes.push_back({.bytes = std::uint64_t{layer.outputs} * 4, .pinned = true, .label = "bias"});
    problem.lifetimes.push_back({.bytes = std::uint64_t{kBatch} * layer.outputs * 4,
                                 .first = level,
                                 .last = level + 2,
                                 .pinned = last,
                                 .label = "activation"});
  }
  return problem;
}

struct Run {
  std::vector<float> output;
  std::size_t weight_bytes = 0;  // that the kernels read
};

Run run_network(Device& device, Queue& queue, const Arena& arena, const Network& network, bool half_weights) {
  const std::string code = dense_kernel(half_weights);
  const Kernel kernel = device.make_kernel({.code = std::as_bytes(std::span(code))}).value();
  check(arena.write_f32(queue, kInput, network.input));
  Run run;
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    const Layer& layer = kLayers[i];
    const Buffer inputs = arena.buffer(i == 0 ? kInput : output_of(i - 1), Access::kRead).value();
    const Buffer weights =
        half_weights ? arena.shadow(queue, weights_of(i)).value() : arena.buffer(weights_of(i), Access::kRead).value();
    const Buffer bias = arena.buffer(bias_of(i), Access::kRead).value();
    const Buffer outputs = arena.buffer(output_of(i)).value();
    const std::array<KernelArgument, 4> arguments = {
        KernelArgument{inputs.window().value(), Access::kRead}, KernelArgument{weights.window().value(), Access::kRead},
        KernelArgument{bias.window().value(), Access::kRead}, KernelArgument{outputs.window().value(), Access::kWrite}};
    const std::array<std::uint32_t, 4> sizes = {kBatch, layer.inputs, layer.outputs, layer.relu ? 1U : 0U};
    const Grid grid{.groups = {(layer.outputs + kTile - 1) / kTile, (kBatch + kTile - 1) / kTile, 1},
                    .threads = {kTile, kTile, 1}};
    check(queue.launch(kernel, arguments, grid, std::as_bytes(std::span(sizes))));
    // Every row of tiles reads all weights once.
    run.weight_bytes += weights.size() * grid.groups[1];
  }
  run.output = arena.read_f32(queue, output_of(kLayers.size() - 1)).value();
  return run;
}

// The largest difference and the smallest share of the bound that was left.
struct Comparison {
  double worst = 0;
  double worst_share = 0;
};

Comparison compare(const std::vector<float>& output, const Reference& expected) {
  Comparison result;
  if (output.size() != expected.values.size()) return {.worst = INFINITY, .worst_share = INFINITY};
  for (std::size_t i = 0; i < output.size(); ++i) {
    const double off = std::abs(output[i] - expected.values[i]);
    if (!(off <= result.worst)) result.worst = off;
    if (!(off / expected.bounds[i] <= result.worst_share)) result.worst_share = off / expected.bounds[i];
  }
  return result;
}

int show() {
  auto opened = device("WEBGPU");
  if (!opened) {
    fmt::print("skipped: no WEBGPU: {}\n", opened.error().message());
    return 77;
  }
  const DevicePtr gpu = *opened;
  if (!gpu->limits().f16_kernels) {
    fmt::print("skipped: {} has no shader-f16\n", gpu->description());
    return 77;
  }
  const QueuePtr queue = gpu->make_queue().value();
  const Network network = make_network();

  const PlanProblem problem = problem_for(gpu->limits());
  const MemoryPlan planned = plan(problem).value();
  std::size_t apart = 0;
  for (const Lifetime& lifetime : problem.lifetimes) apart += lifetime.bytes;
  const Arena arena = Arena::from_plan(gpu, planned, {.label = "mlp"}).value();
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    check(arena.write_f32(*queue, weights_of(i), network.weights[i]));
    check(arena.write_f32(*queue, bias_of(i), network.bias[i]));
  }
  fmt::print("{}\n", gpu->description());
  fmt::print("{} nodes, {} one by one, {} planned ({}), f16 shadow {}\n", problem.lifetimes.size(), format_bytes(apart),
             format_bytes(arena.total_size()), planned.optimal ? "optimal" : "best found",
             format_bytes(arena.shadow_size()));

  const Run whole = run_network(*gpu, *queue, arena, network, false);
  const Run halves = run_network(*gpu, *queue, arena, network, true);
  const Comparison exact = compare(whole.output, reference(network, 0.0));
  const Comparison same = compare(halves.output, reference(with_half_weights(network), 0.0));
  const Comparison rounded = compare(halves.output, reference(network, 0x1p-11));
  const auto row = [](const char* kernel, const char* against, const Run& run, const Comparison& found) {
    fmt::print("{:<12} {:<20} {:>13} {:>13.2e} {:>14.2f} %\n", kernel, against, format_bytes(run.weight_bytes),
               found.worst, found.worst_share * 100);
  };
  fmt::print("\n{:<12} {:<20} {:>13} {:>13} {:>16}\n", "weights as", "CPU's weights", "weights read", "worst error",
             "of the bound");
  row("f32", "f32", whole, exact);
  row("f16 shadow", "rounded to f16", halves, same);
  row("f16 shadow", "f32", halves, rounded);

  const bool good = exact.worst_share <= 1 && same.worst_share <= 1 && rounded.worst_share <= 1 &&
                    halves.weight_bytes * 2 == whole.weight_bytes && rounded.worst > same.worst;
  fmt::print("\n{}\n", good ? "both match the reference on the CPU" : "THE RESULTS ARE WRONG");
  return good ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return show();
  } catch (const std::exception& failed) {
    fmt::print(stderr, "{}\n", failed.what());
    return 1;
  }
}
