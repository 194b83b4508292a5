// Captures, and graphs made of them. The rules follow the documentation of cuThreadExchangeStreamCaptureMode and of the
// errors of captures. A graph is its operations in the order captured; a launch runs them one by one on its stream, as
// one operation that uses everything they use.
#include <algorithm>

#include "entry.h"

namespace {

using cuda_double::CaptureState;
using cuda_double::GraphState;
using cuda_double::Node;
using cuda_double::Range;
using cuda_double::State;
using namespace berth::internal::cuda;  // NOLINT

template <class Handle>
Handle new_handle(State& state) {
  state.next_object += 16;
  return reinterpret_cast<Handle>(state.next_object);
}

}  // namespace

namespace berth::internal::cuda {
extern "C" {

Status cuStreamBeginCapture_v2(Stream handle, CaptureMode mode) {
  DOUBLE_ENTER_CONTEXT("cuStreamBeginCapture");
  auto stream = state.stream_of(handle);
  if (stream == nullptr || stream->context != context)
    return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  if (mode > kCaptureRelaxed) return state.misuse(kCall, "unknown mode", kErrorInvalidValue);
  if (stream->capture != nullptr)
    return state.conflict(kCall, "the stream captures already", *stream->capture, kErrorIllegalState);
  auto capture = std::make_shared<CaptureState>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  stream->capture = capture;
  stream->capture_clock = {};
  state.captures.push_back(std::move(capture));
  return kSuccess;
}

Status cuStreamEndCapture(Stream handle, Graph* graph) {
  DOUBLE_ENTER_CONTEXT("cuStreamEndCapture");
  *graph = nullptr;
  auto stream = state.stream_of(handle);
  if (stream == nullptr || stream->context != context)
    return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  const auto capture = stream->capture;
  if (capture == nullptr) return state.misuse(kCall, "the stream does not capture", kErrorIllegalState);
  if (capture->origin != stream.get())
    return state.conflict(kCall, "the capture began on another stream", *capture, kErrorCaptureUnmatched);
  if (capture->mode != kCaptureRelaxed && capture->thread != std::this_thread::get_id())
    return state.conflict(kCall, "the capture began on another thread", *capture, kErrorCaptureWrongThread);
  bool joined = true;
  for (const auto& other : state.all_streams) {
    if (other->capture != capture) continue;
    if (stream->capture_clock.at(other->number) < other->capture_clock.at(other->number)) joined = false;
    other->capture = nullptr;
  }
  capture->active = false;
  std::erase(state.captures, capture);
  if (capture->invalid) return kErrorCaptureInvalidated;
  if (!joined) return state.misuse(kCall, "a stream of the capture was not joined", kErrorCaptureUnjoined);
  *graph = new_handle<Graph>(state);
  state.graphs[*graph] = {context, std::make_shared<const std::vector<Node>>(std::move(capture->nodes)), 0, 0};
  return kSuccess;
}

Status cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  DOUBLE_ENTER("cuThreadExchangeStreamCaptureMode");
  if (*mode > kCaptureRelaxed) return state.misuse(kCall, "unknown mode", kErrorInvalidValue);
  const auto me = std::this_thread::get_id();
  const CaptureMode wanted = *mode;
  const auto found = state.capture_modes.find(me);
  *mode = found == state.capture_modes.end() ? kCaptureGlobal : found->second;
  // A thread that is back in the mode that all begin with leaves nothing behind.
  if (wanted == kCaptureGlobal)
    state.capture_modes.erase(me);
  else
    state.capture_modes[me] = wanted;
  return kSuccess;
}

Status cuGraphInstantiateWithFlags(GraphExec* exec, Graph handle, unsigned long long flags) {
  DOUBLE_ENTER_CONTEXT("cuGraphInstantiate");
  auto found = state.graphs.find(handle);
  if (found == state.graphs.end()) return state.misuse(kCall, "unknown graph", kErrorInvalidHandle);
  if (flags != 0) return state.misuse(kCall, "bad flags", kErrorInvalidValue);
  *exec = new_handle<GraphExec>(state);
  state.graph_execs[*exec] = found->second;
  return kSuccess;
}

Status cuGraphDestroy(Graph graph) {
  DOUBLE_ENTER("cuGraphDestroy");
  if (state.graphs.erase(graph) == 0) return state.misuse(kCall, "unknown graph", kErrorInvalidHandle);
  return kSuccess;
}

Status cuGraphExecDestroy(GraphExec exec) {
  DOUBLE_ENTER("cuGraphExecDestroy");
  auto found = state.graph_execs.find(exec);
  if (found == state.graph_execs.end()) return state.misuse(kCall, "unknown graph", kErrorInvalidHandle);
  const GraphState& graph = found->second;
  if (graph.tick != 0 && !state.is_over({graph.stream, graph.tick, 0, 0, false, false}))
    state.violation("race: cuGraphExecDestroy before the last launch was waited for");
  state.graph_execs.erase(found);
  return kSuccess;
}

Status cuGraphLaunch(GraphExec exec, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuGraphLaunch");
  auto stream = state.stream_of(handle);
  if (stream == nullptr || stream->context != context)
    return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  if (stream->capture != nullptr)
    return state.conflict(kCall, "the double's graphs have no child graphs", *stream->capture, kErrorNotSupported);
  auto found = state.graph_execs.find(exec);
  if (found == state.graph_execs.end() || found->second.context != context)
    return state.misuse(kCall, "unknown graph", kErrorInvalidHandle);
  GraphState& graph = found->second;
  std::vector<Range> ranges;
  for (const Node& node : *graph.nodes)
    for (const Range& range : node.ranges) {
      const bool there = std::any_of(ranges.begin(), ranges.end(), [&](const Range& other) {
        return other.begin == range.begin && other.bytes == range.bytes && other.writes == range.writes;
      });
      if (!there) ranges.push_back(range);
      if (!state.usable(range.begin, range.bytes, nullptr, false))
        state.violation("misuse: cuGraphLaunch: memory of the graph is gone: " +
                        cuda_double::spell(range.begin, range.bytes));
    }
  state.submit(kCall, stream, std::move(ranges), [nodes = graph.nodes](auto& held, bool raced) {
    for (const Node& node : *nodes)
      if (const Status status = node.run(held, raced); status != kSuccess) return status;
    return kSuccess;
  });
  graph.stream = stream->number;
  graph.tick = stream->clock.at(stream->number);
  return kSuccess;
}

}  // extern "C"
}  // namespace berth::internal::cuda
