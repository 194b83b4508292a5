#include "weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace berth::internal::formats {
namespace {

using ::testing::HasSubstr;

// Builds a file byte by byte.
class File {
 public:
  explicit File(std::uint32_t version = 3, std::uint64_t tensors = 0, std::uint64_t entries = 0) {
    bytes = "GGUF";
    put(version).put(tensors).put(entries);
  }
  template <class T>
  File& put(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  File& text(std::string_view value) {
    put<std::uint64_t>(value.size());
    bytes += value;
    return *this;
  }
  File& tensor(std::string_view name, std::initializer_list<std::uint64_t> shape, std::uint32_t type,
               std::uint64_t offset) {
    text(name).put<std::uint32_t>(static_cast<std::uint32_t>(shape.size()));
    for (const std::uint64_t extent : shape) put(extent);
    return put(type).put(offset);
  }
  File& data(std::size_t count, std::size_t alignment = 32) {
    bytes.append((alignment - bytes.size() % alignment) % alignment + count, '\0');
    return *this;
  }
  Result<GgufHeader> read() const { return read_gguf(MemorySource(std::as_bytes(std::span(bytes)))); }
  std::string refusal(Code code = Code::kInvalidData) const {
    const auto header = read();
    EXPECT_FALSE(header.has_value());
    if (header) return "";
    EXPECT_EQ(header.error().code(), code);
    return header.error().message();
  }
  std::string bytes;
};

TEST(Gguf, ListsTensorsWithTheOutermostDimensionFirst) {
  File file(3, 2, 0);
  file.tensor("a", {32, 2}, 8, 0).tensor("b", {3}, 0, 96).data(96 + 12);
  const auto header = file.read().value();
  ASSERT_EQ(header.table.tensors().size(), 2u);
  const TensorInfo& a = header.table.tensors()[0];
  EXPECT_EQ(a.dtype, DType::kQ8_0);
  EXPECT_EQ(a.bytes, 68u);
  EXPECT_THAT(a.shape, ::testing::ElementsAre(2, 32));
  EXPECT_EQ(header.table.tensors()[1].offset, header.data_begin + 96);
  EXPECT_EQ(header.data_begin % 32, 0u);
}

TEST(Gguf, ReadsValuesOfEveryType) {
  File file(2, 0, 14);
  file.text("u8").put(0u).put<std::uint8_t>(200);
  file.text("i8").put(1u).put<std::int8_t>(-3);
  file.text("u16").put(2u).put<std::uint16_t>(60000);
  file.text("i16").put(3u).put<std::int16_t>(-300);
  file.text("u32").put(4u).put<std::uint32_t>(4000000000u);
  file.text("i32").put(5u).put<std::int32_t>(-5);
  file.text("f32").put(6u).put(0.5f);
  file.text("bool").put(7u).put<std::uint8_t>(1);
  file.text("string").put(8u).text("text");
  file.text("u64").put(10u).put<std::uint64_t>(1ull << 63);
  file.text("i64").put(11u).put<std::int64_t>(-7);
  file.text("f64").put(12u).put(0.25);
  file.text("numbers").put(9u).put(5u).put<std::uint64_t>(3).put(1).put(2).put(3);
  file.text("nested").put(9u).put(9u).put<std::uint64_t>(2);
  file.put(8u).put<std::uint64_t>(1).text("x").put(0u).put<std::uint64_t>(2).put<std::uint8_t>(8).put<std::uint8_t>(9);
  const auto header = file.read().value();
  const auto get = [&](std::string_view key) { return *header.table.find_metadata(key); };
  EXPECT_EQ(get("u8").as_int().value(), 200);
  EXPECT_EQ(get("i8").as_int().value(), -3);
  EXPECT_EQ(get("u16").as_uint().value(), 60000u);
  EXPECT_EQ(get("i16").as_int().value(), -300);
  EXPECT_EQ(get("u32").as_int().value(), 4000000000);
  EXPECT_EQ(get("i32").as_int().value(), -5);
  EXPECT_EQ(get("f32").as_double().value(), 0.5);
  EXPECT_TRUE(get("bool").as_bool().value());
  EXPECT_EQ(get("string").as_string().value(), "text");
  EXPECT_EQ(get("u64").as_uint().value(), 1ull << 63);
  EXPECT_EQ(get("u64").as_int().error().code(), Code::kTypeMismatch);
  EXPECT_EQ(get("i64").as_int().value(), -7);
  EXPECT_EQ(get("i64").as_uint().error().code(), Code::kTypeMismatch);
  EXPECT_EQ(get("f64").as_double().value(), 0.25);
  EXPECT_EQ(get("numbers").at(2).value().as_int().value(), 3);
  EXPECT_EQ(get("numbers").at(3).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(get("numbers").to_string(), "[1, 2, 3]");
  EXPECT_EQ(get("numbers").to_string(1), "[1, ... 3 elements]");
  EXPECT_EQ(get("nested").to_string(), "[[\"x\"], [8, 9]]");
  EXPECT_EQ(get("nested").at(1).value().at(1).value().as_int().value(), 9);
  EXPECT_EQ(get("nested").elements().size(), 2u);
  EXPECT_EQ(get("string").at(0).error().code(), Code::kTypeMismatch);
  EXPECT_EQ(get("string").as_int().error().code(), Code::kTypeMismatch);
  EXPECT_EQ(get("string").as_bool().error().code(), Code::kTypeMismatch);
  EXPECT_EQ(get("string").as_double().error().code(), Code::kTypeMismatch);
  EXPECT_EQ(get("u8").as_string().error().code(), Code::kTypeMismatch);
}

TEST(Gguf, KnowsTheNumberOfEveryTypeAndNoWithdrawnOne) {
  std::size_t known = 0;
  for (std::uint32_t type = 0; type < 100; ++type) {
    const auto dtype = dtype_of_gguf(type);
    if (!dtype) continue;
    ++known;
    EXPECT_EQ(gguf_type(*dtype), type);
  }
  EXPECT_EQ(known, 35u);
  for (const std::uint32_t withdrawn : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u})
    EXPECT_EQ(dtype_of_gguf(withdrawn), std::nullopt);
  EXPECT_EQ(gguf_type(DType::kBool), std::nullopt);
}

TEST(Gguf, HonoursItsAlignment) {
  File file(3, 1, 1);
  file.text("general.alignment").put(4u).put(256u).tensor("a", {1}, 0, 0).data(4, 256);
  const auto header = file.read().value();
  EXPECT_EQ(header.alignment, 256u);
  EXPECT_EQ(header.table.tensors()[0].offset % 256, 0u);
  File odd(3, 0, 1);
  odd.text("general.alignment").put(4u).put(48u);
  EXPECT_THAT(odd.refusal(), HasSubstr("general.alignment is 48 of type u32"));
  File wrong(3, 0, 1);
  wrong.text("general.alignment").put(5u).put(64);
  EXPECT_THAT(wrong.refusal(), HasSubstr("of type i32"));
}

TEST(Gguf, ReadsAHeaderLongerThanItsFirstGuess) {
  File file(3, 1, 1);
  file.text("tokens").put(9u).put(8u).put<std::uint64_t>(100'000);
  for (int i = 0; i < 100'000; ++i) file.text("token");
  file.tensor("a", {4}, 24, 0).data(4);
  const auto header = file.read().value();
  EXPECT_EQ(header.table.find_metadata("tokens")->size(), 100'000u);
  EXPECT_EQ(header.table.find_metadata("tokens")->at(99'999).value().as_string().value(), "token");
  EXPECT_EQ(header.table.find("a"), 0u);
}

TEST(Gguf, RefusesOtherVersionsAndByteOrders) {
  EXPECT_THAT(File(1).refusal(Code::kUnsupported), HasSubstr("version 1"));
  EXPECT_THAT(File(4).refusal(Code::kUnsupported), HasSubstr("version 4"));
  EXPECT_THAT(File(0x03000000).refusal(Code::kUnsupported), HasSubstr("big-endian"));
  File magic;
  magic.bytes[0] = 'X';
  EXPECT_THAT(magic.refusal(), HasSubstr("magic"));
}

TEST(Gguf, RefusesCountsAndLengthsThatCannotBe) {
  EXPECT_THAT(File(3, ~0ull, 0).refusal(), HasSubstr("18446744073709551615 tensors"));
  EXPECT_THAT(File(3, 0, ~0ull).refusal(), HasSubstr("metadata entries need more"));
  EXPECT_THAT(File(3, 1, 0).put<std::uint64_t>(~0ull).refusal(), HasSubstr("longer than 65535"));
  File string(3, 0, 1);
  string.text("k").put(8u).put<std::uint64_t>(~0ull);
  EXPECT_THAT(string.refusal(), HasSubstr("past the end of the file"));
  File array(3, 0, 1);
  array.text("k").put(9u).put(5u).put<std::uint64_t>(1ull << 62);
  EXPECT_THAT(array.refusal(), HasSubstr("longer than the file"));
  File strings(3, 0, 1);
  strings.text("k").put(9u).put(8u).put<std::uint64_t>(1ull << 60);
  EXPECT_THAT(strings.refusal(), HasSubstr("longer than the file"));
}

TEST(Gguf, RefusesUnknownTypesDeepArraysAndBadNames) {
  File value(3, 0, 1);
  value.text("k").put(13u).put(0u);
  EXPECT_THAT(value.refusal(), HasSubstr("unknown metadata type 13"));
  File deep(3, 0, 1);
  deep.text("k").put(9u);
  for (int i = 0; i < 100; ++i) deep.put(9u).put<std::uint64_t>(1);
  EXPECT_THAT(deep.refusal(), HasSubstr("nested more than 4 deep"));
  EXPECT_THAT(File(3, 1, 0).tensor("a", {1}, 4, 0).data(4).refusal(), HasSubstr("type 4, which is unknown"));
  EXPECT_THAT(File(3, 1, 0).tensor("a\xff", {1}, 0, 0).data(4).refusal(), HasSubstr("at byte 33: a tensor's name is"));
  EXPECT_THAT(File(3, 1, 0).text("a").put(9u).data(200).refusal(), HasSubstr("9 dimensions"));
  File twice(3, 0, 2);
  twice.text("k").put(0u).put<std::uint8_t>(1).text("k").put(0u).put<std::uint8_t>(1);
  EXPECT_THAT(twice.refusal(), HasSubstr("the key \"k\" twice"));
}

TEST(Gguf, RefusesTensorsThatOverflowOverlapOrLeaveTheFile) {
  EXPECT_THAT(File(3, 1, 0).tensor("a", {1ull << 32, 1ull << 32}, 0, 0).data(4).refusal(), HasSubstr("does not fit"));
  EXPECT_THAT(File(3, 1, 0).tensor("a", {31}, 2, 0).data(18).refusal(), HasSubstr("not whole blocks of 32"));
  EXPECT_THAT(File(3, 1, 0).tensor("a", {16, 2}, 2, 0).data(18).refusal(), HasSubstr("16 elements are not whole"));
  EXPECT_THAT(File(3, 1, 0).tensor("a", {1}, 0, 4).data(8).refusal(), HasSubstr("not a multiple of the alignment 32"));
  EXPECT_THAT(File(3, 1, 0).tensor("a", {1}, 0, 1ull << 63).data(8).refusal(),
              HasSubstr("offset 9223372036854775808, which is past the end of the file at 72"));
  EXPECT_THAT(File(3, 1, 0).tensor("a", {2}, 0, 0).data(7).refusal(), HasSubstr("but the file ends at"));
  EXPECT_THAT(File(3, 2, 0).tensor("a", {9}, 0, 0).tensor("b", {1}, 0, 32).data(40).refusal(), HasSubstr("overlaps"));
  EXPECT_THAT(File(3, 2, 0).tensor("a", {1}, 0, 0).tensor("a", {1}, 0, 32).data(40).refusal(),
              HasSubstr("named \"a\""));
}

TEST(Gguf, SaysWhetherAnOffsetIsPastTheEndOrTheTensorIs) {
  File file(3, 1, 0);
  file.tensor("a", {1}, 0, 0).data(32);
  const std::uint64_t end = file.bytes.size();
  ASSERT_EQ(end % 32, 0u);
  const auto at = [](std::uint64_t offset) { return File(3, 1, 0).tensor("a", {1}, 0, offset).data(32).refusal(); };
  EXPECT_THAT(at(end + 32), HasSubstr("past the end of the file at " + std::to_string(end)));
  EXPECT_THAT(at(end + 1), HasSubstr("past the end of the file at " + std::to_string(end)));
  EXPECT_THAT(at(end), HasSubstr("but the file ends at " + std::to_string(end)));
  EXPECT_THAT(at(33), HasSubstr("offset 33, which is not a multiple of the alignment 32"));
}

TEST(Gguf, RefusesAnOverlapBehindATensorWithoutBytes) {
  // "b" begins inside "a"; the empty "e" at the same place must not hide that.
  for (const std::uint64_t empty : {0u, 32u, 64u}) {
    File file(3, 3, 0);
    file.tensor("a", {17}, 0, 0).tensor("e", {0}, 0, empty).tensor("b", {1}, 0, 64).data(100);
    EXPECT_THAT(file.refusal(), HasSubstr("tensor \"b\" at bytes")) << empty;
    EXPECT_THAT(file.refusal(), HasSubstr("overlaps tensor \"a\"")) << empty;
  }
  File apart(3, 3, 0);
  apart.tensor("a", {16}, 0, 0).tensor("e", {0}, 0, 32).tensor("b", {1}, 0, 64).data(100);
  EXPECT_TRUE(apart.read());
}

// --- Limits: the last that is accepted and the first that is not ---

TEST(Gguf, TakesEightDimensionsAndNoMore) {
  EXPECT_EQ(File(3, 1, 0).tensor("a", {1, 1, 1, 1, 1, 1, 1, 2}, 0, 0).data(8).read().value().table.tensors()[0].bytes,
            8u);
  EXPECT_THAT(File(3, 1, 0).tensor("a", {1, 1, 1, 1, 1, 1, 1, 1, 2}, 0, 0).data(8).refusal(),
              HasSubstr("9 dimensions, more than 8"));
}

TEST(Gguf, TakesArraysFourDeepAndNoMore) {
  const auto nested = [](int depth) {
    File file(3, 0, 1);
    file.text("k").put(9u);
    for (int i = 1; i < depth; ++i) file.put(9u).put<std::uint64_t>(1);
    return file.put(0u).put<std::uint64_t>(1).put<std::uint8_t>(7);
  };
  EXPECT_EQ(nested(4).read().value().table.find_metadata("k")->to_string(), "[[[[7]]]]");
  EXPECT_THAT(nested(5).refusal(), HasSubstr("nested more than 4 deep"));
}

TEST(Gguf, TakesNamesOf65535BytesAndNoMore) {
  EXPECT_EQ(File(3, 1, 0).tensor(std::string(65'535, 'n'), {1}, 0, 0).data(4).read().value().table.tensors().size(),
            1u);
  EXPECT_THAT(File(3, 1, 0).tensor(std::string(65'536, 'n'), {1}, 0, 0).data(4).refusal(),
              HasSubstr("65536 bytes is longer than 65535"));
  EXPECT_TRUE(File(3, 0, 1).text(std::string(65'535, 'k')).put(0u).put<std::uint8_t>(1).read());
  EXPECT_THAT(File(3, 0, 1).text(std::string(65'536, 'k')).put(0u).put<std::uint8_t>(1).refusal(),
              HasSubstr("longer than 65535"));
}

TEST(Gguf, RefusesACountThatTheFileIsTooSmallForAtOnce) {
  // The smallest tensor description takes 24 bytes and the smallest entry 13.
  const std::size_t padding = 24 * 13 * 40 - 24;
  const auto with = [&](std::uint64_t tensors, std::uint64_t entries) {
    File file(3, tensors, entries);
    file.bytes.append(padding, '\xff');
    return file.refusal();
  };
  EXPECT_THAT(with(13 * 40, 0), HasSubstr("longer than 65535"));
  EXPECT_THAT(with(13 * 40 + 1, 0), HasSubstr("521 tensors need more than the file's 12480 bytes"));
  EXPECT_THAT(with(0, 24 * 40), HasSubstr("longer than 65535"));
  EXPECT_THAT(with(0, 24 * 40 + 1), HasSubstr("961 metadata entries need more than the file's 12480 bytes"));
}

TEST(Gguf, RefusesAnArrayThatTheFileIsTooSmallForAtOnce) {
  const auto array = [](std::uint32_t type, std::uint64_t count) {
    File file(3, 0, 1);
    file.text("k").put(9u).put(type).put(count).data(0, 64);
    return file.refusal();
  };
  EXPECT_THAT(array(5, 16), HasSubstr("past the end of the file at 64"));
  EXPECT_THAT(array(5, 17), HasSubstr("an array of 17 elements is longer than the file"));
  EXPECT_THAT(array(8, 8), HasSubstr("past the end of the file"));
  EXPECT_THAT(array(8, 9), HasSubstr("an array of 9 elements is longer than the file"));
}

TEST(Gguf, TakesAMillionEntriesAndNoMore) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 20;
  File file(3, 0, kMost);
  file.bytes.reserve(20 * kMost);
  for (std::uint32_t i = 0; i < kMost; ++i) {
    // Six bits a character, so that every key is UTF-8 and its own.
    std::string key;
    for (int shift = 0; shift < 24; shift += 6) key += static_cast<char>(' ' + (i >> shift & 63));
    file.text(key).put(0u).put<std::uint8_t>(1);
  }
  EXPECT_EQ(file.read().value().table.metadata().size(), kMost);
  const std::uint64_t more = kMost + 1;
  file.bytes.replace(16, 8, reinterpret_cast<const char*>(&more), 8);
  EXPECT_THAT(file.refusal(Code::kUnsupported), HasSubstr("1048577 metadata entries are more than 1048576"));
}

// A file whose header is one long string, made as it is read.
class LongHeader final : public ByteSource {
 public:
  explicit LongHeader(std::uint64_t header) : size_(header) {
    File file(3, 0, 1);
    file.text("k").put(8u);
    start_ = file.put<std::uint64_t>(header - file.bytes.size() - 8).bytes;
  }
  std::uint64_t size() const noexcept override { return size_; }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) const override {
    if (offset != 0) return Error(Code::kInvalidData, Layer::kFormat, "only the header is read");
    std::memcpy(into.data(), start_.data(), std::min(into.size(), start_.size()));
    return {};
  }

 private:
  std::uint64_t size_;
  std::string start_;
};

TEST(Gguf, TakesAHeaderOf256MiBAndNoMore) {
  const auto header = read_gguf(LongHeader(kMaxGgufHeader));
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->table.metadata().size(), 1u);
  const auto longer = read_gguf(LongHeader(kMaxGgufHeader + 1));
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code(), Code::kUnsupported);
  EXPECT_THAT(longer.error().message(), HasSubstr("longer than 256.0 MiB"));
}

TEST(Gguf, RefusesAFileCutAnywhere) {
  File file(3, 1, 2);
  file.text("k").put(8u).text("value").text("n").put(9u).put(2u).put<std::uint64_t>(2).put<std::uint32_t>(7);
  file.tensor("a", {2}, 0, 0).data(8);
  ASSERT_TRUE(file.read());
  const std::string whole = file.bytes;
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    file.bytes = whole.substr(0, cut);
    EXPECT_FALSE(file.read()) << cut;
  }
}

TEST(Gguf, OpensWithTextThatIsNotUtf8AndRefusesItWhenItIsRead) {
  File file(3, 0, 1);
  file.text("k").put(8u).text("ab\xff");
  const auto header = file.read().value();
  EXPECT_EQ(header.table.find_metadata("k")->as_string().error().code(), Code::kInvalidData);
  EXPECT_EQ(header.table.find_metadata("k")->text(), "ab\xff");
  EXPECT_EQ(header.table.find_metadata("k")->to_string(), "\"ab\\xff\"");
}

}  // namespace
}  // namespace berth::internal::formats
