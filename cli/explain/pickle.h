// Reads a Python pickle without running anything of it. Only None, booleans, numbers, text, lists, tuples and dicts are
// built; an opcode that names a class, a function or anything else is refused. The file is read as a stream and in one
// pass. What a pickle repeats millions of times need not be kept: a PickleRecords object is shown every dict and every
// list item and can take it in. Plain values; a Pickle belongs to one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "berth/base/result.h"

namespace berth::cli {

struct PickleValue {
  enum class Kind : std::uint8_t { kNone, kBool, kInteger, kReal, kText, kList, kDict, kRecord };
  Kind kind = Kind::kNone;
  std::uint64_t bits = 0;  // an integer modulo 2^64, the bits of a real, or an index

  bool is(Kind other) const noexcept { return kind == other; }
};

// Texts by number; equal texts have one number.
class PickleTexts {
 public:
  std::uint64_t number_of(std::string_view text);
  // Requires: a number that number_of() returned.
  const std::string& text(std::uint64_t number) const { return texts_[number]; }

 private:
  std::deque<std::string> texts_;  // deque: the keys of numbers_ point into it
  std::unordered_map<std::string_view, std::uint64_t> numbers_;
};

class PickleRecords {
 public:
  virtual ~PickleRecords() = default;
  // A dict with these items (key, value, key, value, ...) was read. Returns a number if the items were taken in: the
  // dict is then a value of kind kRecord with this number, and its items are not kept.
  virtual std::optional<std::uint64_t> take_dict(std::span<const PickleValue> items) = 0;
  // A list received an item. Returns true if it was taken in; the item is then not kept. `note` is one number per list,
  // 0 at first, in which to keep what the list means.
  virtual bool take_item(std::uint64_t& note, const PickleValue& item) = 0;
};

// A pickle that was read: what the records did not take in.
class Pickle {
 public:
  PickleValue root{};

  // Requires: the value is of this kind.
  const std::string& text(const PickleValue& value) const { return texts.text(value.bits); }
  std::uint64_t note_of(const PickleValue& list) const { return lists[list.bits].note; }
  std::span<const PickleValue> items_of(const PickleValue& list) const;
  // key, value, key, value, ...
  std::span<const PickleValue> dict_items(const PickleValue& dict) const;
  // The value of a key, or null.
  const PickleValue* find(const PickleValue& dict, std::string_view key) const;

  struct List {
    std::uint64_t note = 0;
    std::uint32_t items = 0;  // 0: none; otherwise an index into item_lists, from 1
  };
  struct Dict {
    bool is_record = false;
    std::uint64_t index = 0;  // the record, or as in List
  };
  PickleTexts texts{};
  std::vector<List> lists{};
  std::vector<Dict> dicts{};
  std::vector<std::vector<PickleValue>> item_lists{};
};

// Reads one pickle. `pickle` may already have texts, so that the records know their numbers.
//   kInvalidData  with the offset: a truncated file, an opcode that is refused, an operand that does not fit
//   kIo           the file cannot be read
// O(bytes) time. Memory: 16 bytes for each list and dict, and what is kept.
Result<void> read_pickle(std::FILE* file, PickleRecords& records, Pickle& pickle);
Result<void> read_pickle(std::span<const std::byte> bytes, PickleRecords& records, Pickle& pickle);

}  // namespace berth::cli
