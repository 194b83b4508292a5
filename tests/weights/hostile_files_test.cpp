// Files made to harm, one of each kind for each parser: a header's length that is a lie, tensors that overlap or leave
// the file, names that come twice, shapes that overflow, text that is not UTF-8, nesting without end, a file cut
// anywhere, the other byte order, unknown types. Each is refused with the place in the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

#include "support/support.h"
#include "weights/gguf.h"
#include "weights/npy.h"
#include "weights/safetensors.h"

namespace berth::internal::formats {
namespace {

template <class T>
std::string number(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

MemorySource source_of(const std::string& bytes) {
  return MemorySource(std::as_bytes(std::span(bytes)));
}

using Parser = std::function<Result<void>(const std::string&)>;

template <class Read>
Parser parser(Read read) {
  return [read](const std::string& bytes) -> Result<void> {
    auto parsed = read(source_of(bytes));
    if (!parsed) return parsed.error();
    return {};
  };
}

// Refused as a file that is wrong or of a kind not read here, with `words` and a byte offset in the message.
void expect_refused(const Parser& parse, const std::string& bytes, const std::string& words) {
  const auto parsed = parse(bytes);
  ASSERT_FALSE(parsed) << "accepted, but: " << words;
  EXPECT_TRUE(parsed.error().code() == Code::kInvalidData || parsed.error().code() == Code::kUnsupported);
  const std::string message = parsed.error().message();
  EXPECT_NE(message.find(words), std::string::npos) << message;
  EXPECT_THAT(message, ::testing::ContainsRegex(R"((at byte |bytes at |bytes \[)[0-9]+)"));
}

void expect_refused_when_cut(const Parser& parse, const std::string& whole) {
  ASSERT_TRUE(parse(whole)) << parse(whole).error().message();
  for (std::size_t cut = 0; cut < whole.size(); ++cut) expect_refused(parse, whole.substr(0, cut), "");
}

std::string safetensors(const std::string& header, std::size_t data = 0) {
  return number<std::uint64_t>(header.size()) + header + std::string(data, 'x');
}

TEST(HostileFiles, AreRefusedBySafetensors) {
  const Parser parse = parser(read_safetensors);
  const std::string u8 = R"({"dtype":"U8","shape":[2],"data_offsets":)";
  expect_refused(parse, number(~0ull >> 1) + "{}", "a header of 9223372036854775807 bytes");
  expect_refused(parse, number<std::uint64_t>(99'000'000) + "{}", "a header of 99000000 bytes");
  expect_refused(parse, safetensors(R"({"a":)" + u8 + R"([0,2]},"b":)" + u8 + "[1,3]}}", 3), "overlaps tensor \"a\"");
  expect_refused(parse, safetensors(R"({"a":)" + u8 + "[0,2]}}", 1), "but the file ends at");
  expect_refused(parse, safetensors(R"({"a":)" + u8 + R"([0,2]},"a":)" + u8 + "[2,4]}}", 4), "two tensors are named");
  const std::string wide = R"({"a":{"dtype":"F32","shape":[)";
  expect_refused(parse, safetensors(wide + R"(4294967296,4294967296],"data_offsets":[0,0]}})"), "does not fit 64 bits");
  expect_refused(parse, safetensors(wide + R"(4611686018427387904],"data_offsets":[0,0]}})"), "does not fit 63 bits");
  expect_refused(parse, safetensors(wide + R"(99999999999999999999],"data_offsets":[0,0]}})"), "does not fit 64 bits");
  expect_refused(parse, safetensors("{\"a\xc3(\":{}}"), "not UTF-8");
  expect_refused(parse, safetensors(R"({"a":{"x":)" + std::string(100'000, '[')), "nested more than 64 deep");
  expect_refused(parse, safetensors(R"({"a":{"x":)" + std::string(100'000, '{')), "expected a string");
  expect_refused(parse, std::string(7, '\0') + "\2{}", "byte-swapped, 2 if read the other way round");
  expect_refused(parse, safetensors(R"({"a":{"dtype":"F33","shape":[],"data_offsets":[0,0]}})"),
                 "unknown dtype \"F33\"");
  expect_refused_when_cut(parse, safetensors(R"({"__metadata__":{"k":"v"},"a":)" + u8 + "[0,2]}}", 2));
}

TEST(HostileFiles, AreReadTheSameInTheUsualAndInAnyOtherForm) {
  // The writer's own form has a way of its own through the parser; white space or another order of keys goes the long
  // way.
  const Parser parse = parser(read_safetensors);
  const std::pair<const char*, const char*> bad[] = {
      {R"("U8","shape":[2],"data_offsets":[0,3]})", "2 bytes by its dtype and shape has data_offsets [0, 3]"},
      {R"("U8","shape":[02],"data_offsets":[0,2]})", "begins with 0"},
      {R"("U8","shape":[2,],"data_offsets":[0,2]})", "expected a non-negative integer"},
      {R"("U8","shape":[2],"data_offsets":[0,2,3]})", "expected ']'"},
      {R"("U8","shape":[2],"data_offsets":[0,2],"dtype":"U8"})", "dtype twice"},
      {R"("U8x","shape":[2],"data_offsets":[0,2]})", "unknown dtype \"U8x\""},
      {R"("U8","shape":[1000000000000000000000],"data_offsets":[0,2]})", "does not fit 64 bits"},
      {R"("U8","shape":[2],"data_offsets":[0,2]]})", "expected '}'"},
  };
  for (const auto& [rest, words] : bad) {
    expect_refused(parse, safetensors(std::string(R"({"a":{"dtype":)") + rest + "}", 2), words);
    expect_refused(parse, safetensors(std::string(R"({"a":{ "dtype":)") + rest + "}", 2), words);
  }
  for (const char* good : {R"({"dtype":"U8","shape":[1,2,1],"data_offsets":[0,2]})",
                           R"({"dtype": "U8","shape":[1,2,1],"data_offsets":[0,2]})",
                           R"({"shape":[1,2,1],"data_offsets":[0,2],"dtype":"U8"})",
                           R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,2]})",
                           R"({"dtype":"U8","shape":[00000000000000000002],"data_offsets":[0,2]})"}) {
    const std::string bytes = safetensors(std::string(R"({"a":)") + good + "}", 2);
    const auto table = read_safetensors(source_of(bytes));
    if (std::string_view(good).find("[000") != std::string_view::npos) {
      EXPECT_FALSE(table) << good;
      continue;
    }
    ASSERT_TRUE(table) << table.error().message();
    EXPECT_EQ(table->tensors()[0].bytes, 2u);
    EXPECT_EQ(table->tensors()[0].shape.back() * table->tensors()[0].shape[1], 2u) << good;
  }
}

TEST(HostileFiles, AreRefusedByTheIndexOfShards) {
  const Parser parse = parser(read_safetensors_index);
  expect_refused(parse, R"({"weight_map":{"a":"1.s","b":"2.s","a":"1.s"}})",
                 "at byte 35: tensor \"a\" is placed twice");
  expect_refused(parse, "{\"weight_map\":{\"a\xff\":\"1.s\"}}", "not UTF-8");
  expect_refused(parse, R"({"metadata":)" + std::string(100'000, '['), "nested more than 64 deep");
  expect_refused(parse, R"({"weight_map":{"a":"../../secret"}})", "not the name of a file beside the index");
  expect_refused_when_cut(parse, R"({"metadata":{"total_size":1},"weight_map":{"a":"1.s"}})");
}

std::string text(std::string_view value) {
  return number<std::uint64_t>(value.size()) + std::string(value);
}
std::string gguf(std::uint64_t tensors, std::uint64_t entries, const std::string& rest, std::uint32_t version = 3) {
  return "GGUF" + number(version) + number(tensors) + number(entries) + rest;
}
std::string tensor(std::string_view name, std::initializer_list<std::uint64_t> shape, std::uint32_t type,
                   std::uint64_t offset) {
  std::string bytes = text(name) + number(static_cast<std::uint32_t>(shape.size()));
  for (const std::uint64_t extent : shape) bytes += number(extent);
  return bytes + number(type) + number(offset);
}
std::string with_data(std::string header, std::size_t data) {
  return header + std::string((32 - header.size() % 32) % 32 + data, '\0');
}

TEST(HostileFiles, AreRefusedByGguf) {
  const Parser parse = parser(read_gguf);
  expect_refused(parse, gguf(1ull << 62, 0, ""), "4611686018427387904 tensors need more");
  expect_refused(parse, gguf(0, 1ull << 62, ""), "4611686018427387904 metadata entries need more");
  expect_refused(parse, gguf(0, 1, text("k") + number(8u) + number(~0ull)), "past the end of the file");
  expect_refused(parse, gguf(0, 1, text("k") + number(9u) + number(0u) + number(~0ull)), "longer than the file");
  expect_refused(parse, with_data(gguf(2, 0, tensor("a", {9}, 0, 0) + tensor("b", {1}, 0, 32)), 40), "overlaps");
  expect_refused(parse, with_data(gguf(1, 0, tensor("a", {9}, 0, 0)), 35), "but the file ends at");
  expect_refused(parse, with_data(gguf(1, 0, tensor("a", {1}, 0, ~0ull << 5)), 4), "past the end of the file");
  expect_refused(parse, with_data(gguf(2, 0, tensor("a", {1}, 0, 0) + tensor("a", {1}, 0, 32)), 36), "named \"a\"");
  expect_refused(parse, with_data(gguf(1, 0, tensor("a", {1ull << 32, 1ull << 32}, 0, 0)), 4), "does not fit 64 bits");
  expect_refused(parse, with_data(gguf(1, 0, tensor("a", {1ull << 62}, 0, 0)), 4), "does not fit 63 bits");
  expect_refused(parse, with_data(gguf(1, 0, tensor("a\xff", {1}, 0, 0)), 4), "not UTF-8");
  std::string deep = text("k") + number(9u);
  for (int i = 0; i < 1000; ++i) deep += number(9u) + number<std::uint64_t>(1);
  expect_refused(parse, gguf(0, 1, deep), "nested more than 4 deep");
  expect_refused(parse, gguf(0, 0, "", 0x03000000), "big-endian");
  expect_refused(parse, with_data(gguf(1, 0, tensor("a", {1}, 77, 0)), 4), "type 77, which is unknown");
  expect_refused(parse, gguf(0, 1, text("k") + number(13u) + number(0u)), "unknown metadata type 13");
  expect_refused_when_cut(parse, with_data(gguf(1, 1, text("k") + number(8u) + text("v") + tensor("a", {2}, 0, 0)), 8));
}

std::string npy(const std::string& header, std::size_t data, char major = 1) {
  const auto length = static_cast<std::uint32_t>(header.size());
  return std::string("\x93NUMPY", 6) + major + '\0' + number(length).substr(0, major == 1 ? 2 : 4) + header +
         std::string(data, '\0');
}
std::string array(const std::string& descr, const std::string& shape, std::size_t data) {
  return npy("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }", data);
}

TEST(HostileFiles, AreRefusedByNpy) {
  const Parser parse = parser(read_npy);
  std::string bomb = npy("", 0, 2);
  bomb.replace(8, 4, "\xff\xff\xff\xff");
  expect_refused(parse, bomb, "a header of 4294967295 bytes");
  expect_refused(parse, array("<f4", "(3,)", 11), "12 bytes by its dtype and shape, but 11");
  expect_refused(parse, npy("{'descr': '<f4', 'descr': '<f4'}", 0), "the key \"descr\" comes twice");
  expect_refused(parse, array("<f4", "(4294967296, 4294967296)", 0), "does not fit 64 bits");
  expect_refused(parse, array("<f4", "(4611686018427387904,)", 0), "does not fit 63 bits");
  expect_refused(parse, array("<f4", "(99999999999999999999,)", 0), "does not fit 64 bits");
  expect_refused(parse, npy("{'\xff': 1}", 0), "unknown key \"\\xff\"");
  expect_refused(parse, array("<f4", std::string(10'000, '('), 0), "expected a non-negative integer in shape");
  expect_refused(parse, array(">f4", "(1,)", 4), "big-endian");
  expect_refused(parse, array("<q9", "(1,)", 4), "not a type Berth holds");
  expect_refused_when_cut(parse, array("<f4", "(2, 1)", 8));
}

struct Member {
  std::string name;
  std::string content;
  std::uint32_t at = 0;  // of its local header
  std::string extra{};   // in the directory
  bool wide = false;     // the directory says that its sizes and its place are in the zip64 extra field
};

// A stored zip archive; the directory says what `listed` says, true or not.
std::string npz(std::string bytes, const std::vector<Member>& listed, std::uint32_t count = 0) {
  const auto half = [](std::size_t value) { return number(static_cast<std::uint16_t>(value)); };
  const auto full = [](std::size_t value) { return number(static_cast<std::uint32_t>(value)); };
  const std::size_t directory = bytes.size();
  for (const Member& member : listed)
    bytes += full(0x02014b50) + half(20) + half(20) + half(0) + half(0) + full(0) + full(0) +
             full(member.wide ? ~0u : member.content.size()) + full(member.wide ? ~0u : member.content.size()) +
             half(member.name.size()) + half(member.extra.size()) + half(0) + half(0) + half(0) + full(0) +
             full(member.wide ? ~0u : member.at) + member.name + member.extra;
  const std::size_t end = bytes.size();
  const std::size_t members = count == 0 ? listed.size() : count;
  return bytes + full(0x06054b50) + half(0) + half(0) + half(members) + half(members) + full(end - directory) +
         full(directory) + half(0);
}
std::string local(const Member& member) {
  const auto half = [](std::size_t value) { return number(static_cast<std::uint16_t>(value)); };
  const auto full = [](std::size_t value) { return number(static_cast<std::uint32_t>(value)); };
  return full(0x04034b50) + half(20) + half(0) + half(0) + full(0) + full(0) + full(member.content.size()) +
         full(member.content.size()) + half(member.name.size()) + half(0) + member.name + member.content;
}

TEST(HostileFiles, OfNpzAreToldFromThoseWithWideSizes) {
  const Parser parse = parser(read_npz);
  const auto half = [](std::uint16_t value) { return number(value); };
  Member a{"a.npy", array("<i2", "(2,)", 4)};
  a.wide = true;
  const std::string time = half(0x5455) + half(5) + std::string(5, 't');
  const std::string sizes =
      number<std::uint64_t>(a.content.size()) + number<std::uint64_t>(a.content.size()) + number<std::uint64_t>(a.at);
  a.extra = time + half(1) + half(24) + sizes;
  const auto read = parse(npz(local(a), {a}));
  EXPECT_TRUE(read.has_value()) << read.error().message();
  a.extra = time + half(1) + half(16) + sizes.substr(0, 16);
  expect_refused(parse, npz(local(a), {a}), "the zip64 extra field is too short");
  a.extra = half(1) + half(0);
  expect_refused(parse, npz(local(a), {a}), "the zip64 extra field is too short");
  a.extra = time + half(1) + half(24) + sizes.substr(0, 20);
  expect_refused(parse, npz(local(a), {a}), "an extra field reaches past its entry");
}

TEST(HostileFiles, AreRefusedByNpz) {
  const Parser parse = parser(read_npz);
  const Member a{"a.npy", array("<i2", "(2,)", 4)};
  const auto alone = [](const std::string& content) {
    const Member member{"a.npy", content};
    return npz(local(member), {member});
  };
  expect_refused(parse, npz(local(a), {a}, 0xFFFE), "a directory of 65534 members does not fit");
  Member again = a;
  again.name = "b.npy";
  expect_refused(parse, npz(local(a), {a, again}), "overlaps tensor \"a\"");
  Member same = a;
  same.at = static_cast<std::uint32_t>(local(a).size());
  expect_refused(parse, npz(local(a) + local(a), {a, same}), "two tensors are named \"a\"");
  Member outside = a;
  outside.at = 1'000'000;
  expect_refused(parse, npz(local(a), {outside}), "begins outside the file");
  Member longer = a;
  longer.content += std::string(100, '\0');
  expect_refused(parse, npz(local(a), {longer}), "reaches past the directory");
  expect_refused(parse, alone(array("<f4", "(4294967296, 4294967296)", 0)), "does not fit 64 bits");
  const Member odd{"\xff.npy", a.content};
  expect_refused(parse, npz(local(odd), {odd}), "not UTF-8");
  expect_refused(parse, alone(array(">i2", "(2,)", 4)), "big-endian");
  expect_refused(parse, alone(array("<q9", "(2,)", 4)), "not a type Berth holds");
  expect_refused(parse, alone(array("<i2", std::string(1000, '('), 4)), "expected a non-negative integer in shape");
  expect_refused_when_cut(parse, npz(local(a), {a}));
}

// A disk on which one read fails.
class FailingSource final : public ByteSource {
 public:
  FailingSource(const std::string& bytes, int failing) : bytes_(source_of(bytes)), failing_(failing) {}
  std::uint64_t size() const noexcept override { return bytes_.size(); }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) const override {
    if (++reads == failing_) return Error(Code::kIo, Layer::kFormat, "read {} fails", failing_);
    return bytes_.read(offset, into);
  }
  mutable int reads = 0;

 private:
  MemorySource bytes_;
  int failing_;
};

// Whichever read fails, the error is that of the disk and not one about the bytes that did not come. `guesses`: the
// first reads that only tell how much to read.
TEST(HostileFiles, AreToldFromThoseThatCannotBeRead) {
  const auto expect_reported = [](const auto& parse, const std::string& whole, int guesses = 0) {
    const FailingSource sound(whole, 0);
    ASSERT_TRUE(parse(sound));
    const int reads = sound.reads;
    ASSERT_GT(reads, 0);
    for (int i = 1; i <= reads; ++i) {
      const auto parsed = parse(FailingSource(whole, i));
      ASSERT_EQ(parsed.has_value(), i <= guesses) << "read " << i << " of " << reads;
      if (parsed) continue;
      EXPECT_EQ(parsed.error().code(), Code::kIo) << parsed.error().message();
    }
  };
  const std::string u8 = R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  expect_reported(read_safetensors, safetensors(R"({"a":)" + u8 + "}", 2));
  expect_reported(read_safetensors_index, R"({"metadata":{"total_size":1},"weight_map":{"a":"1.s"}})");
  std::string entries;
  for (int i = 0; i < 2000; ++i) entries += text("key " + std::to_string(i)) + number(8u) + text("value");
  expect_reported(read_gguf, with_data(gguf(1, 2000, entries + tensor("a", {2}, 0, 0)), 8), 1);
  expect_reported(read_npy, array("<f4", "(2, 1)", 8));
  expect_reported(read_npy,
                  npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }" + std::string(3000, ' '), 8));
  const Member a{"a.npy", array("<i2", "(2,)", 4)};
  const Member padded{"a.npy",
                      npy("{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }" + std::string(3000, ' '), 4)};
  for (const Member& member : {a, padded}) expect_reported(read_npz, npz(local(member), {member}));
}

TEST(FileSource, SaysThatAFileBecameShorter) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("file", test::counting_bytes(1000));
  const FileSource source = FileSource::open(path).value();
  std::filesystem::resize_file(path, 600);
  std::array<std::byte, 100> into{};
  EXPECT_TRUE(source.read(500, into));
  for (const int before : {0, EINTR, EIO}) {  // an end of the file is no failed call: errno means nothing
    errno = before;
    const auto read = source.read(550, into);
    ASSERT_TRUE(test::fails_with(read, Code::kIo));
    EXPECT_THAT(read.error().message(), ::testing::HasSubstr("ends at 600 now, it had 1000 bytes"));
  }
  EXPECT_TRUE(test::fails_with(source.read(950, into), Code::kInvalidData));
}

}  // namespace
}  // namespace berth::internal::formats
