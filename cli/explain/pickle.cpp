#include "explain/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/try.h"

namespace berth::cli {

using Kind = PickleValue::Kind;

std::uint64_t PickleTexts::number_of(std::string_view text) {
  if (const auto known = numbers_.find(text); known != numbers_.end()) return known->second;
  const std::string& kept = texts_.emplace_back(text);
  numbers_.emplace(kept, texts_.size() - 1);
  return texts_.size() - 1;
}

std::span<const PickleValue> Pickle::items_of(const PickleValue& list) const {
  const std::uint32_t at = lists[list.bits].items;
  return at == 0 ? std::span<const PickleValue>() : item_lists[at - 1];
}

std::span<const PickleValue> Pickle::dict_items(const PickleValue& dict) const {
  const Dict& entry = dicts[dict.bits];
  return entry.is_record || entry.index == 0 ? std::span<const PickleValue>() : item_lists[entry.index - 1];
}

const PickleValue* Pickle::find(const PickleValue& dict, std::string_view key) const {
  const std::span<const PickleValue> items = dict_items(dict);
  // A key that is stored again has its last value.
  for (std::size_t i = items.size(); i >= 2; i -= 2)
    if (items[i - 2].is(Kind::kText) && text(items[i - 2]) == key) return &items[i - 1];
  return nullptr;
}

namespace {

// The bytes of a file or of memory, through a window.
class Source {
 public:
  explicit Source(std::FILE* file) : file_(file), window_(std::size_t{1} << 20), at_(window_.data()), end_(at_) {}
  explicit Source(std::span<const std::byte> bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // The next `count` bytes as one piece, valid until the next call; null if the source ends before.
  const std::byte* take(std::size_t count) {
    if (static_cast<std::size_t>(end_ - at_) < count && !fill(count)) return nullptr;
    const std::byte* piece = at_;
    at_ += count;
    offset_ += count;
    return piece;
  }
  std::uint64_t offset() const noexcept { return offset_; }
  int error() const noexcept { return error_; }

 private:
  // Grows the window step by step, so that a wrong length costs no more memory than the file has bytes.
  bool fill(std::size_t count) {
    if (file_ == nullptr) return false;
    std::size_t kept = static_cast<std::size_t>(end_ - at_);
    std::memmove(window_.data(), at_, kept);
    while (kept < count) {
      if (kept == window_.size()) window_.resize(window_.size() * 2);
      const std::size_t got = std::fread(window_.data() + kept, 1, window_.size() - kept, file_);
      if (got == 0) {
        if (std::ferror(file_) != 0) error_ = errno != 0 ? errno : EIO;
        break;
      }
      kept += got;
    }
    at_ = window_.data();
    end_ = at_ + kept;
    return kept >= count;
  }

  std::FILE* file_ = nullptr;
  std::vector<std::byte> window_{};
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  std::uint64_t offset_ = 0;
  int error_ = 0;
};

enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kAppend = 'a',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kSetItems = 'u',
  kTuple = 't',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kMemoize = 0x94,
  kFrame = 0x95,
};

constexpr std::uint64_t kMostText = std::uint64_t{1} << 30;

class Machine {
 public:
  Machine(Source source, PickleRecords& records, Pickle& pickle)
      : source_(std::move(source)), records_(records), pickle_(pickle) {}

  Result<void> run() {
    while (true) {
      BERTH_TRY_ASSIGN(const std::uint64_t opcode, number(1));
      if (opcode == kStop) {
        if (stack_.size() != 1 || !marks_.empty()) return broken("it ends before its value is complete");
        pickle_.root = resolved(stack_.back());
        return {};
      }
      BERTH_TRY(execute(static_cast<std::uint8_t>(opcode)));
    }
  }

 private:
  Error broken(std::string_view what) const {
    if (source_.error() != 0)
      return Error::with_text(Code::kIo, Layer::kFormat,
                              fmt::format("the file cannot be read: {}", std::strerror(source_.error())));
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("pickle, byte {}: {}", source_.offset(), what));
  }

  // An unsigned number of up to 8 bytes, little-endian.
  Result<std::uint64_t> number(std::size_t bytes) {
    const std::byte* piece = source_.take(bytes);
    if (piece == nullptr) return broken("the file is cut off");
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value |= static_cast<std::uint64_t>(piece[i]) << (8 * i);
    return value;
  }

  void push(Kind kind, std::uint64_t bits) { stack_.push_back({kind, bits}); }

  Result<void> execute(std::uint8_t opcode) {
    switch (opcode) {
      case kProto: return protocol();
      case kFrame: return ignore(8);
      case kMark: marks_.push_back(stack_.size()); return {};
      case kNone: push(Kind::kNone, 0); return {};
      case kNewTrue: push(Kind::kBool, 1); return {};
      case kNewFalse: push(Kind::kBool, 0); return {};
      case kBinInt: {
        BERTH_TRY_ASSIGN(const std::uint64_t value, number(4));
        push(Kind::kInteger, static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(value))));
        return {};
      }
      case kBinInt1: return integer(1);
      case kBinInt2: return integer(2);
      case kLong1: return long_integer();
      case kBinFloat: return real();
      case kShortBinUnicode: return text(1);
      case kBinUnicode: return text(4);
      case kBinUnicode8: return text(8);
      case kEmptyList:
      case kEmptyTuple: new_list(); return {};
      case kEmptyDict:
        push(Kind::kDict, pickle_.dicts.size());
        pickle_.dicts.emplace_back();
        return {};
      case kTuple: {
        BERTH_TRY_ASSIGN(const std::size_t first, take_mark());
        return tuple(stack_.size() - first);
      }
      case kTuple1: return tuple(1);
      case kTuple2: return tuple(2);
      case kTuple3: return tuple(3);
      case kAppend: return append(stack_.size() - std::min<std::size_t>(1, stack_.size()));
      case kAppends: {
        BERTH_TRY_ASSIGN(const std::size_t first, take_mark());
        return append(first);
      }
      case kSetItem: return set_items(stack_.size() - std::min<std::size_t>(2, stack_.size()));
      case kSetItems: {
        BERTH_TRY_ASSIGN(const std::size_t first, take_mark());
        return set_items(first);
      }
      case kMemoize: return memoize(memo_.size());
      case kBinPut: {
        BERTH_TRY_ASSIGN(const std::uint64_t index, number(1));
        return memoize(index);
      }
      case kLongBinPut: {
        BERTH_TRY_ASSIGN(const std::uint64_t index, number(4));
        return memoize(index);
      }
      case kBinGet: return recall(1);
      case kLongBinGet: return recall(4);
      default:
        return broken(
            fmt::format("opcode 0x{:02x} is refused: a memory snapshot is made of dicts, lists, numbers and text, "
                        "written with protocol 2 or newer",
                        opcode));
    }
  }

  Result<void> protocol() {
    BERTH_TRY_ASSIGN(const std::uint64_t version, number(1));
    if (version < 2 || version > 5) return broken(fmt::format("protocol {} is not one of 2 to 5", version));
    return {};
  }

  Result<void> ignore(std::size_t bytes) {
    BERTH_TRY(number(bytes));
    return {};
  }

  Result<void> integer(std::size_t bytes) {
    BERTH_TRY_ASSIGN(const std::uint64_t value, number(bytes));
    push(Kind::kInteger, value);
    return {};
  }

  Result<void> long_integer() {
    BERTH_TRY_ASSIGN(const std::uint64_t length, number(1));
    const std::byte* piece = source_.take(length);
    if (piece == nullptr) return broken("the file is cut off");
    // Nine bytes hold an unsigned number of 64 bits.
    if (length > 9 || (length == 9 && piece[8] != std::byte{0})) return broken("a number has more than 64 bits");
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < std::min<std::uint64_t>(length, 8); ++i)
      value |= static_cast<std::uint64_t>(piece[i]) << (8 * i);
    const bool is_negative = length > 0 && length < 8 && (piece[length - 1] & std::byte{0x80}) != std::byte{0};
    if (is_negative) value |= ~std::uint64_t{0} << (8 * length);
    push(Kind::kInteger, value);
    return {};
  }

  Result<void> real() {
    const std::byte* piece = source_.take(8);
    if (piece == nullptr) return broken("the file is cut off");
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) bits = bits << 8 | static_cast<std::uint64_t>(piece[i]);
    push(Kind::kReal, bits);
    return {};
  }

  Result<void> text(std::size_t length_bytes) {
    BERTH_TRY_ASSIGN(const std::uint64_t length, number(length_bytes));
    if (length > kMostText) return broken("a text is longer than 1 GiB");
    const std::byte* piece = source_.take(length);
    if (piece == nullptr) return broken("the file is cut off in a text");
    push(Kind::kText, pickle_.texts.number_of({reinterpret_cast<const char*>(piece), length}));
    return {};
  }

  void new_list() {
    push(Kind::kList, pickle_.lists.size());
    pickle_.lists.emplace_back();
  }

  Result<std::size_t> take_mark() {
    if (marks_.empty()) return broken("items end that never began");
    const std::size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  // A dict that became a record is that record.
  PickleValue resolved(PickleValue value) const {
    if (!value.is(Kind::kDict)) return value;
    const Pickle::Dict& dict = pickle_.dicts[value.bits];
    return dict.is_record ? PickleValue{Kind::kRecord, dict.index} : value;
  }

  // The number of values that belong to no open mark.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  Result<void> tuple(std::size_t count) {
    if (stack_.size() < floor() + count) return broken("a tuple has too few items");
    const std::vector<PickleValue> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    new_list();
    for (const PickleValue& item : items) add_item(stack_.back().bits, item);
    return {};
  }

  void add_item(std::uint64_t list, const PickleValue& item) {
    const PickleValue value = resolved(item);
    if (!records_.take_item(pickle_.lists[list].note, value)) keep(pickle_.lists[list].items).push_back(value);
  }

  std::vector<PickleValue>& keep(std::uint32_t& items) {
    if (items == 0) {
      pickle_.item_lists.emplace_back();
      items = static_cast<std::uint32_t>(pickle_.item_lists.size());
    }
    return pickle_.item_lists[items - 1];
  }

  Result<void> append(std::size_t first) {
    if (first == 0 || first > stack_.size() || first <= floor() || !stack_[first - 1].is(Kind::kList))
      return broken("items are appended to something that is not a list");
    const std::uint64_t list = stack_[first - 1].bits;
    for (std::size_t i = first; i < stack_.size(); ++i) add_item(list, stack_[i]);
    stack_.resize(first);
    return {};
  }

  Result<void> set_items(std::size_t first) {
    if (first == 0 || first > stack_.size() || first <= floor() || !stack_[first - 1].is(Kind::kDict) ||
        (stack_.size() - first) % 2 != 0)
      return broken("items are stored in something that is not a dict");
    const std::uint64_t index = stack_[first - 1].bits;
    for (std::size_t i = first; i < stack_.size(); ++i) stack_[i] = resolved(stack_[i]);
    const std::span<const PickleValue> items(stack_.data() + first, stack_.size() - first);
    if (pickle_.dicts[index].is_record) return broken("a record grows after it was complete");
    const auto record = pickle_.dicts[index].index == 0 ? records_.take_dict(items) : std::nullopt;
    if (record) {
      pickle_.dicts[index] = {true, *record};
    } else {
      auto at = static_cast<std::uint32_t>(pickle_.dicts[index].index);
      std::vector<PickleValue>& kept = keep(at);
      kept.insert(kept.end(), items.begin(), items.end());
      pickle_.dicts[index].index = at;
    }
    stack_.resize(first);
    return {};
  }

  Result<void> memoize(std::uint64_t index) {
    if (stack_.size() <= floor()) return broken("there is nothing to remember");
    // Picklers number what they remember one after another; anything else would only take memory.
    if (index > memo_.size()) return broken("the numbers of remembered values do not count up");
    if (index == memo_.size())
      memo_.push_back(stack_.back());
    else
      memo_[index] = stack_.back();
    return {};
  }

  Result<void> recall(std::size_t bytes) {
    BERTH_TRY_ASSIGN(const std::uint64_t index, number(bytes));
    if (index >= memo_.size()) return broken("a value is recalled that was never remembered");
    stack_.push_back(memo_[index]);
    return {};
  }

  Source source_;
  PickleRecords& records_;
  Pickle& pickle_;
  std::vector<PickleValue> stack_{};
  std::vector<std::size_t> marks_{};
  std::vector<PickleValue> memo_{};
};

}  // namespace

Result<void> read_pickle(std::FILE* file, PickleRecords& records, Pickle& pickle) {
  return Machine(Source(file), records, pickle).run();
}

Result<void> read_pickle(std::span<const std::byte> bytes, PickleRecords& records, Pickle& pickle) {
  return Machine(Source(bytes), records, pickle).run();
}

}  // namespace berth::cli
