#include "explain/torch_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>

#include "base/try.h"
#include "explain/pickle.h"

namespace berth::cli {
namespace {

using Kind = PickleValue::Kind;

// Texts that mean something in a snapshot. Their numbers in the pickle are their positions here.
enum Word : std::uint8_t {
  kAction,
  kAddr,
  kSize,
  kStream,
  kTime,
  kFrames,
  kFilename,
  kLine,
  kName,
  kAddress,
  kTotalSize,
  kState,
  kBlocks,
  kRequestedSize,
  kSegmentType,
  kSegmentPoolId,
  kIsExpandable,
  kDevice,
  kAlloc,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSmall,
  kActiveAllocated,
  kActivePendingFree,
  kActiveAwaitingFree,
  kWords,
};
constexpr std::array<std::string_view, kWords> kTexts = {"action",
                                                         "addr",
                                                         "size",
                                                         "stream",
                                                         "time_us",
                                                         "frames",
                                                         "filename",
                                                         "line",
                                                         "name",
                                                         "address",
                                                         "total_size",
                                                         "state",
                                                         "blocks",
                                                         "requested_size",
                                                         "segment_type",
                                                         "segment_pool_id",
                                                         "is_expandable",
                                                         "device",
                                                         "alloc",
                                                         "free_completed",
                                                         "segment_alloc",
                                                         "segment_free",
                                                         "segment_map",
                                                         "segment_unmap",
                                                         "small",
                                                         "active_allocated",
                                                         "active_pending_free",
                                                         "active_awaiting_free"};

struct Event {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::int64_t time_us = 0;
  std::uint32_t place = 0;
  std::uint16_t stream = 0;
  std::uint8_t trace = 0;
  std::uint8_t action = kWords;  // a Word
};
static_assert(sizeof(Event) == 32, "a snapshot has millions of them");

struct Block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;   // requested
  std::uint64_t length = 0;  // rounded up
  std::uint32_t place = 0;
  bool is_live = false;
  bool has_address = false;
};

struct Segment {
  RecordedSegment segment{};
  std::uint32_t device = 0;
  std::uint16_t stream = 0;
  bool is_private = false;
  std::uint32_t first_block = 0, block_count = 0;
};

enum RecordType : std::uint64_t { kEventRecord = 1, kFrameRecord, kBlockRecord, kSegmentRecord };
constexpr unsigned kTypeShift = 56;
constexpr std::uint64_t record(RecordType type, std::uint64_t index) {
  return std::uint64_t{type} << kTypeShift | index;
}
constexpr std::uint64_t kIndexBits = (std::uint64_t{1} << kTypeShift) - 1;
// A size beyond all devices, which a file is refused for. It keeps sums of sizes within 64 bits.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 44;
// A time beyond all clocks. It keeps differences of times from a broken file within 64 bits.
constexpr std::uint64_t kMostTime = std::uint64_t{1} << 60;

// How well a frame names the place of an allocation. Frames come innermost first; the first of the best rank is taken.
enum Rank : std::uint8_t { kNoFrame, kNative, kFramework, kProgram };

Rank rank_of(std::string_view file) {
  if (!file.ends_with(".py")) return file.starts_with('<') || file.ends_with(".ipynb") ? kProgram : kNative;
  return file.find("/torch/") == std::string_view::npos && !file.starts_with("torch/") ? kProgram : kFramework;
}

class Records final : public PickleRecords {
 public:
  explicit Records(Pickle& pickle) : pickle_(pickle) {
    for (const std::string_view text : kTexts) static_cast<void>(pickle.texts.number_of(text));
    places.emplace_back("(no place recorded)");
    ranks_.push_back(kNoFrame);
  }

  std::optional<std::uint64_t> take_dict(std::span<const PickleValue> items) override {
    std::array<const PickleValue*, kWords> found{};
    for (std::size_t i = 0; i < items.size(); i += 2)
      if (items[i].is(Kind::kText) && items[i].bits < kWords) found[items[i].bits] = &items[i + 1];
    if (found[kAction] != nullptr && found[kSize] != nullptr) return take_event(found);
    if (found[kFilename] != nullptr && found[kLine] != nullptr) return take_frame(found);
    if (found[kTotalSize] != nullptr && found[kAddress] != nullptr) return take_segment(found);
    if (found[kState] != nullptr && found[kSize] != nullptr) return take_block(found);
    return std::nullopt;
  }

  bool take_item(std::uint64_t& note, const PickleValue& item) override {
    if (!item.is(Kind::kRecord)) return false;
    const std::uint64_t index = item.bits & kIndexBits;
    const auto type = static_cast<RecordType>(item.bits >> kTypeShift);
    // A note begins with the type of the items, so that a list of one type is never read as a list of another.
    const bool is_first = note == 0;
    if (!is_first && note >> kTypeShift != type) return false;
    const std::uint64_t known = note & kIndexBits;
    switch (type) {
      case kFrameRecord: {
        // The note of a list of frames: the place, and its rank in the low bits.
        const std::uint64_t rank = ranks_[index];
        if (is_first || rank > (known & 0xff)) note = record(type, index << 8 | rank);
        return true;
      }
      case kEventRecord: {
        // The note of a trace: its number from 1.
        if (is_first) note = record(type, ++traces);
        has_shared_event = has_shared_event || events[index].trace != 0;
        events[index].trace = static_cast<std::uint8_t>(std::min<std::uint64_t>(note & kIndexBits, 255));
        return true;
      }
      case kBlockRecord: {
        // The note of a list of blocks: the first block, and their number. They follow each other.
        if (is_first && index <= kCountBits) note = record(type, index << kCountShift);
        if (note == 0 || ((note & kIndexBits) >> kCountShift) + (note & kCountBits) != index) return false;
        ++note;
        return true;
      }
      case kSegmentRecord: return false;
    }
    return false;
  }

  static bool is_record(const PickleValue& value, RecordType type) {
    return value.is(Kind::kRecord) && value.bits >> kTypeShift == type;
  }
  // The note of a list of one type of records, without the type; nothing if the value is not such a list.
  static std::optional<std::uint64_t> note_of(const Pickle& pickle, const PickleValue* list, RecordType type) {
    if (list == nullptr || !list->is(Kind::kList)) return std::nullopt;
    const std::uint64_t note = pickle.note_of(*list);
    if (note >> kTypeShift != type) return std::nullopt;
    return note & kIndexBits;
  }

  std::vector<Event> events{};
  std::vector<Block> blocks{};
  std::vector<Segment> segments{};
  std::vector<std::string> places{};
  std::vector<std::uint64_t> streams{};
  std::uint64_t traces = 0;
  bool has_wrong_size = false;    // some size is no number of bytes
  bool has_shared_event = false;  // some event is in two lists, or twice in one
  bool has_lost_event = false;    // some allocation or release has no address

 private:
  static constexpr unsigned kCountShift = 28;
  static constexpr std::uint64_t kCountBits = (std::uint64_t{1} << kCountShift) - 1;
  using Found = std::array<const PickleValue*, kWords>;

  static std::uint64_t number(const PickleValue* value) {
    return value != nullptr && (value->is(Kind::kInteger) || value->is(Kind::kBool)) ? value->bits : 0;
  }
  std::uint64_t size(const PickleValue* value) {
    const bool is_size = value->is(Kind::kInteger) && value->bits <= kMostBytes;  // a negative one has high bits
    has_wrong_size = has_wrong_size || !is_size;
    return is_size ? value->bits : 0;
  }
  static bool is_word(const PickleValue* value, Word word) {
    return value != nullptr && value->is(Kind::kText) && value->bits == word;
  }

  // The pool of everybody has the number (0, 0).
  bool is_pool(const PickleValue* value) const {
    if (value == nullptr || !value->is(Kind::kList)) return false;
    const auto parts = pickle_.items_of(*value);
    return std::any_of(parts.begin(), parts.end(), [](const PickleValue& part) { return number(&part) != 0; });
  }

  std::uint16_t stream_number(const PickleValue* value) {
    const std::uint64_t stream = number(value);
    const auto known = std::find(streams.begin(), streams.end(), stream);
    if (known != streams.end()) return static_cast<std::uint16_t>(known - streams.begin());
    if (streams.size() == 0xffff) return 0xffff;
    streams.push_back(stream);
    return static_cast<std::uint16_t>(streams.size() - 1);
  }

  std::uint32_t place_of(const PickleValue* frames) const {
    return static_cast<std::uint32_t>(note_of(pickle_, frames, kFrameRecord).value_or(0) >> 8);
  }

  std::uint64_t take_event(const Found& found) {
    Event event{.address = number(found[kAddr]),
                .bytes = size(found[kSize]),
                .time_us = static_cast<std::int64_t>(std::min(number(found[kTime]), kMostTime)),
                .place = place_of(found[kFrames]),
                .stream = stream_number(found[kStream])};
    if (found[kAction]->is(Kind::kText) && found[kAction]->bits < kWords)
      event.action = static_cast<std::uint8_t>(found[kAction]->bits);
    // Who is freed is known by its address alone.
    has_lost_event = has_lost_event || ((event.action == kAlloc || event.action == kFreeCompleted) &&
                                        (found[kAddr] == nullptr || !found[kAddr]->is(Kind::kInteger)));
    events.push_back(event);
    return record(kEventRecord, events.size() - 1);
  }

  std::uint64_t take_frame(const Found& found) {
    const std::string file = found[kFilename]->is(Kind::kText) ? pickle_.text(*found[kFilename]) : "?";
    std::string text = fmt::format("{}:{}", file, number(found[kLine]));
    if (found[kName] != nullptr && found[kName]->is(Kind::kText)) text += " " + pickle_.text(*found[kName]);
    const auto [at, is_new] = place_numbers_.try_emplace(text, places.size());
    if (is_new) {
      places.push_back(std::move(text));
      ranks_.push_back(rank_of(file));
    }
    return record(kFrameRecord, at->second);
  }

  std::uint64_t take_block(const Found& found) {
    const PickleValue* state = found[kState];
    Block block{.address = number(found[kAddress]),
                .bytes = size(found[found[kRequestedSize] != nullptr ? kRequestedSize : kSize]),
                .length = size(found[kSize]),
                .place = place_of(found[kFrames]),
                .is_live = is_word(state, kActiveAllocated) || is_word(state, kActivePendingFree) ||
                           is_word(state, kActiveAwaitingFree),
                .has_address = found[kAddress] != nullptr};
    blocks.push_back(block);
    return record(kBlockRecord, blocks.size() - 1);
  }

  std::uint64_t take_segment(const Found& found) {
    Segment segment{.segment = {.address = number(found[kAddress]),
                                .bytes = size(found[kTotalSize]),
                                .small = is_word(found[kSegmentType], kSmall),
                                .expandable = number(found[kIsExpandable]) != 0},
                    .device = static_cast<std::uint32_t>(number(found[kDevice])),
                    .stream = stream_number(found[kStream]),
                    .is_private = is_pool(found[kSegmentPoolId])};
    if (const auto note = note_of(pickle_, found[kBlocks], kBlockRecord)) {
      segment.first_block = static_cast<std::uint32_t>(*note >> kCountShift);
      segment.block_count = static_cast<std::uint32_t>(*note & kCountBits);
    }
    segments.push_back(segment);
    return record(kSegmentRecord, segments.size() - 1);
  }

  Pickle& pickle_;
  std::vector<std::uint8_t> ranks_{};
  std::unordered_map<std::string, std::uint64_t> place_numbers_{};
};

Error not_a_snapshot(const char* what) {
  return Error::with_text(
      Code::kInvalidData, Layer::kFormat,
      fmt::format("this pickle is not a memory snapshot of PyTorch: {}. torch.cuda.memory._dump_snapshot() writes one",
                  what));
}

// The trace of each device: 0 if the device has none.
Result<std::vector<std::uint64_t>> traces_of(const Pickle& pickle) {
  std::vector<std::uint64_t> traces;
  if (!pickle.root.is(Kind::kDict)) return not_a_snapshot("it is not a dict");
  const PickleValue* segments = pickle.find(pickle.root, "segments");
  if (segments == nullptr) return not_a_snapshot("it has no \"segments\"");
  // What is left out would be missing in every figure.
  if (!segments->is(Kind::kList)) return not_a_snapshot("its \"segments\" are no list");
  for (const PickleValue& each : pickle.items_of(*segments))
    if (!Records::is_record(each, kSegmentRecord))
      return not_a_snapshot("one of its \"segments\" is not a dict with an address and a total_size");
  const PickleValue* list = pickle.find(pickle.root, "device_traces");
  if (list == nullptr || list->is(Kind::kNone)) return traces;
  if (!list->is(Kind::kList)) return not_a_snapshot("its \"device_traces\" are no list");
  for (const PickleValue& each : pickle.items_of(*list)) {
    // The events themselves were taken in; what is left of the list, or was taken in as something else, is no event.
    const auto trace = Records::note_of(pickle, &each, kEventRecord);
    if (!each.is(Kind::kList) || !pickle.items_of(each).empty() || (!trace && pickle.note_of(each) != 0))
      return not_a_snapshot("an event of its \"device_traces\" is not a dict with an action and a size");
    traces.push_back(trace.value_or(0));
  }
  if (traces.size() > 254) return not_a_snapshot("it has more than 254 devices");
  return traces;
}

void read_settings(const Pickle& pickle, RecordedAllocator& recorded) {
  const PickleValue* settings = pickle.find(pickle.root, "allocator_settings");
  if (settings == nullptr || !settings->is(Kind::kDict)) return;
  recorded.has_settings = true;
  const PickleValue* split = pickle.find(*settings, "max_split_size");
  // Without a limit the setting is the largest number, or -1.
  if (split != nullptr && split->is(Kind::kInteger) && split->bits < (std::uint64_t{1} << 62))
    recorded.max_split_bytes = split->bits;
  const PickleValue* expandable = pickle.find(*settings, "expandable_segments");
  recorded.expandable = expandable != nullptr && expandable->is(Kind::kBool) && expandable->bits != 0;
  const PickleValue* rounding = pickle.find(*settings, "roundup_power2_divisions");
  if (rounding == nullptr || !rounding->is(Kind::kDict)) return;
  // By the size in MiB from which on it holds, as text: "1", "2", "4" and so on.
  for (std::size_t i = 0; i < recorded.parts.size(); ++i) {
    const PickleValue* parts = pickle.find(*rounding, std::to_string(std::uint64_t{1} << i));
    if (parts != nullptr && parts->is(Kind::kInteger) && parts->bits <= kMostBytes) recorded.parts[i] = parts->bits;
  }
}

// Turns addresses into requests.
class TraceMaker {
 public:
  TraceMaker(const Records& records, std::uint32_t device) : records_(records), device_(device) {}

  void add_events(std::uint8_t trace) {
    for (const Event& event : records_.events)
      if (event.trace == trace && trace != 0) add(event);
  }

  RequestTrace finish(std::vector<std::string> places, RecordedAllocator recorded) {
    // What is live at the end and was not made in the trace was there before it.
    for (const Segment& segment : records_.segments) {
      if (segment.device != device_) continue;
      recorded.segments.push_back(segment.segment);
      recorded.expandable = recorded.expandable || segment.segment.expandable;
      recorded.has_private_pools = recorded.has_private_pools || segment.is_private;
      std::uint64_t address = segment.segment.address;
      for (std::uint32_t i = 0; i < segment.block_count; ++i) {
        const Block& block = records_.blocks[segment.first_block + i];
        if (block.has_address) address = block.address;
        if (block.is_live && !live_.contains(address))
          before_.push_back(request(block.bytes, block.place, segment.stream));
        address += block.length;
      }
    }
    recorded.made = std::move(made_);
    recorded.is_complete = before_.empty();
    std::uint64_t held = 0;
    for (const RecordedSegment& segment : recorded.segments) held += segment.bytes;
    // The changes of the trace lead to what is there at the end.
    recorded.peak_held = static_cast<std::uint64_t>(
        std::max<std::int64_t>(static_cast<std::int64_t>(held), static_cast<std::int64_t>(held) + highest_ - change_));
    trace_.recorded = std::move(recorded);
    // torch 2.1 writes no times.
    const bool has_times =
        std::any_of(trace_.steps.begin(), trace_.steps.end(), [](auto& step) { return step.time != 0; });
    for (std::size_t i = 0; i < trace_.steps.size() && !has_times; ++i)
      trace_.steps[i].time = static_cast<std::int64_t>(i);
    const std::int64_t begin = trace_.steps.empty() ? 0 : trace_.steps.front().time;
    std::vector<TraceStep> first;
    for (const std::uint32_t each : before_) first.push_back({.time = begin, .request = each});
    trace_.steps.insert(trace_.steps.begin(), first.begin(), first.end());
    for (TraceStep& step : trace_.steps) step.time -= begin;
    trace_.kind = "PyTorch snapshot";
    trace_.seconds_per_tick = has_times ? 1e-6 : 0;
    trace_.device = device_;
    trace_.places = std::move(places);
    return std::move(trace_);
  }

 private:
  std::uint32_t request(std::uint64_t bytes, std::uint32_t place, std::uint32_t stream) {
    trace_.requests.push_back({bytes, place, stream});
    return static_cast<std::uint32_t>(trace_.requests.size() - 1);
  }

  void add(const Event& event) {
    using Step = TraceStep::Kind;
    switch (event.action) {
      case kAlloc: {
        const std::uint32_t made = request(event.bytes, event.place, event.stream);
        live_[event.address] = made;
        trace_.steps.push_back({event.time_us, made, Step::kAllocate});
        return;
      }
      case kFreeCompleted: {
        const auto at = live_.find(event.address);
        std::uint32_t gone = 0;
        if (at != live_.end()) {
          gone = at->second;
          live_.erase(at);
        } else {
          gone = request(event.bytes, event.place, event.stream);
          before_.push_back(gone);
        }
        trace_.steps.push_back({event.time_us, gone, Step::kRelease});
        return;
      }
      case kSegmentAlloc:
        number_of_made_[event.address] = static_cast<std::uint32_t>(made_.size());
        made_.push_back({.address = event.address, .bytes = event.bytes});
        return change(event.bytes, true);
      case kSegmentMap: return change(event.bytes, true);
      case kSegmentFree:
      case kSegmentUnmap:
        if (trace_.steps.empty() || trace_.steps.back().is_of_a_request())
          trace_.steps.push_back({event.time_us, 0, Step::kEmptyCache});
        if (const auto at = number_of_made_.find(event.address); at != number_of_made_.end())
          trace_.steps.push_back({event.time_us, at->second, Step::kGiveSegmentBack});
        return change(event.bytes, false);
      default: return;
    }
  }

  void change(std::uint64_t bytes, bool up) {
    const auto amount = static_cast<std::int64_t>(std::min(bytes, std::uint64_t{1} << 50));
    change_ += up ? amount : -amount;
    highest_ = std::max(highest_, change_);
  }

  const Records& records_;
  const std::uint32_t device_;
  RequestTrace trace_{};
  std::unordered_map<std::uint64_t, std::uint32_t> live_{};
  std::vector<std::uint32_t> before_{};
  std::vector<RecordedSegment> made_{};
  std::unordered_map<std::uint64_t, std::uint32_t> number_of_made_{};  // the latest, by address
  std::int64_t change_ = 0, highest_ = 0;
};

Result<RequestTrace> make_trace(Records& records, RecordedAllocator recorded, const std::vector<std::uint64_t>& traces,
                                std::optional<std::uint32_t> wanted) {
  if (records.has_lost_event) return not_a_snapshot("an allocation or a release in it has no address");
  if (records.has_shared_event) return not_a_snapshot("an event is in two places");
  if (records.has_wrong_size) return not_a_snapshot("a size in it is not a number of bytes, or larger than any memory");
  std::vector<std::uint64_t> held(traces.size());
  for (const Segment& segment : records.segments) {
    if (segment.device > 254) return not_a_snapshot("a segment names a device beyond 254");
    if (segment.device >= held.size()) held.resize(segment.device + 1);
    held[segment.device] += segment.segment.bytes;
  }
  // A device whose memory is all gone again still has its trace.
  std::vector<std::uint64_t> events(256);
  for (const Event& event : records.events) ++events[event.trace];
  std::uint32_t device = 0;
  for (std::uint32_t i = 0; i < held.size(); ++i) {
    const auto weight = [&](std::uint32_t d) {
      return std::pair(held[d], d < traces.size() ? events[std::min<std::uint64_t>(traces[d], 255)] : 0);
    };
    if (traces.size() > i && traces[i] == 0 && held[i] == 0) continue;
    if (weight(i) > weight(device)) device = i;
  }
  if (wanted) {
    if (*wanted >= held.size())
      return Error::with_text(
          Code::kNotFound, Layer::kFormat,
          fmt::format("the snapshot has {} devices, and device {} was asked for", held.size(), *wanted));
    device = *wanted;
  }
  TraceMaker maker(records, device);
  if (device < traces.size()) maker.add_events(static_cast<std::uint8_t>(std::min<std::uint64_t>(traces[device], 255)));
  RequestTrace trace = maker.finish(std::move(records.places), std::move(recorded));
  trace.devices = static_cast<std::uint32_t>(std::max<std::size_t>(1, held.size()));
  return trace;
}

template <class Input>
Result<RequestTrace> read_any(Input input, std::optional<std::uint32_t> device) {
  auto pickle = std::make_unique<Pickle>();
  Records records(*pickle);
  BERTH_TRY(read_pickle(input, records, *pickle));
  BERTH_TRY_ASSIGN(const std::vector<std::uint64_t> traces, traces_of(*pickle));
  RecordedAllocator recorded;
  read_settings(*pickle, recorded);
  // The lists and texts of the file are not needed any more.
  *pickle = Pickle{};
  return make_trace(records, std::move(recorded), traces, device);
}

}  // namespace

Result<RequestTrace> read_torch_snapshot(std::FILE* file, std::optional<std::uint32_t> device) {
  return read_any(file, device);
}

Result<RequestTrace> parse_torch_snapshot(std::span<const std::byte> bytes, std::optional<std::uint32_t> device) {
  return read_any(bytes, device);
}

}  // namespace berth::cli
