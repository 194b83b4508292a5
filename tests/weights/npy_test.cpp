#include "weights/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace berth::internal::formats {
namespace {

using ::testing::HasSubstr;

std::string npy(const std::string& header, std::size_t data_bytes, char major = 1) {
  std::string file("\x93NUMPY", 6);
  file += major;
  file += '\0';
  const std::uint32_t length = static_cast<std::uint32_t>(header.size());
  file.append(reinterpret_cast<const char*>(&length), major == 1 ? 2 : 4);
  return file + header + std::string(data_bytes, '\0');
}

std::string described(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }  \n";
}

Result<TensorTable> parse(const std::string& bytes) {
  return read_npy(MemorySource(std::as_bytes(std::span(bytes))));
}
std::string refusal(const std::string& bytes, Code code = Code::kInvalidData) {
  const auto table = parse(bytes);
  EXPECT_FALSE(table.has_value());
  if (table) return "";
  EXPECT_EQ(table.error().code(), code) << table.error().message();
  return table.error().message();
}

TEST(Npy, ReadsAllVersionsAndTypes) {
  for (const char major : {1, 2, 3}) {
    const auto table = parse(npy(described("'<f4'", "(2, 3)"), 24, major)).value();
    EXPECT_EQ(table.tensors()[0].name, "arr_0");
    EXPECT_EQ(table.tensors()[0].dtype, DType::kF32);
    EXPECT_THAT(table.tensors()[0].shape, ::testing::ElementsAre(2, 3));
  }
  EXPECT_EQ(parse(npy(described("'|b1'", "()"), 1)).value().tensors()[0].bytes, 1u);
  EXPECT_EQ(parse(npy(described("'<c8'", "(1,)"), 8)).value().tensors()[0].dtype, DType::kC64);
  EXPECT_EQ(parse(npy(described("'>u1'", "(1L,)"), 1)).value().tensors()[0].dtype, DType::kU8);
  EXPECT_TRUE(parse(npy(described("'<i8'", "(1, 4)", "True"), 32))) << "one wide dimension has no order";
}

TEST(Npy, RefusesWhatABufferCannotBe) {
  EXPECT_THAT(refusal(npy(described("'>f4'", "(2,)"), 8), Code::kUnsupported), HasSubstr("big-endian"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(2, 2)", "True"), 16), Code::kUnsupported), HasSubstr("Fortran order"));
  EXPECT_THAT(refusal(npy(described("'|O'", "(2,)"), 8)), HasSubstr("malformed descr"));
  EXPECT_THAT(refusal(npy(described("'|O8'", "(2,)"), 8), Code::kUnsupported), HasSubstr("pickled"));
  EXPECT_THAT(refusal(npy(described("'<V2'", "(2,)"), 8), Code::kUnsupported), HasSubstr("brain floats"));
  EXPECT_THAT(refusal(npy(described("[('a', '<f4')]", "(2,)"), 8), Code::kUnsupported), HasSubstr("structured"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(2,)"), 8, 9), Code::kUnsupported), HasSubstr("version 9"));
}

TEST(Npy, RefusesMalformedHeadersWithTheirPlace) {
  EXPECT_THAT(refusal("\x93NUMPX\1\0\0\0"), HasSubstr("too few"));
  EXPECT_THAT(refusal(std::string("\x93NUMPX\1\0\0\0\0\0", 12)), HasSubstr("magic"));
  EXPECT_THAT(refusal(npy("{'descr': '<f4', }", 0)), HasSubstr("must all be there"));
  EXPECT_THAT(refusal(npy("{'descr': '<f4', 'descr': '<f4'}", 0)), HasSubstr("comes twice"));
  EXPECT_THAT(refusal(npy("{'other': 1}", 0)), HasSubstr("unknown key \"other\""));
  EXPECT_THAT(refusal(npy("{'descr", 0)), HasSubstr("does not end"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(-1,)"), 0)), HasSubstr("non-negative"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(99999999999999999999,)"), 0)), HasSubstr("64 bits"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(4294967296, 4294967296)"), 0)), HasSubstr("does not fit"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(1,)", "Maybe"), 4)), HasSubstr("True or False"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(1,)") + "x", 4)), HasSubstr("nothing after"));
  EXPECT_THAT(refusal(npy(described("'<f4'", "(2,)"), 7)), HasSubstr("8 bytes by its dtype and shape, but 7"));
  std::string bomb = npy("", 0, 2);
  bomb.replace(8, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(refusal(bomb), HasSubstr("4294967295 bytes"));
}

// A stored zip archive of one member, as numpy.savez writes it.
struct Zip {
  std::string member = npy(described("'<i2'", "(2,)"), 4);
  std::string name = "a.npy";
  std::uint16_t method = 0, flags = 0;

  std::string build(std::uint32_t shift = 0) const {
    std::string bytes;
    const auto put = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
    const auto u16 = [&](std::size_t value) { put(static_cast<std::uint16_t>(value)); };
    const auto u32 = [&](std::size_t value) { put(static_cast<std::uint32_t>(value)); };
    u32(0x04034b50), u16(20), u16(flags), u16(method), u32(0), u32(0), u32(member.size()), u32(member.size());
    u16(name.size()), u16(0);
    bytes += name + member;
    const std::size_t directory = bytes.size();
    u32(0x02014b50), u16(20), u16(20), u16(flags), u16(method), u32(0), u32(0), u32(member.size()), u32(member.size());
    u16(name.size()), u16(0), u16(0), u16(0), u16(0), u32(0), u32(shift);
    bytes += name;
    const std::size_t end = bytes.size();
    u32(0x06054b50), u16(0), u16(0), u16(1), u16(1), u32(end - directory), u32(directory), u16(0);
    return bytes;
  }
};

Result<TensorTable> parse_npz(const std::string& bytes) {
  return read_npz(MemorySource(std::as_bytes(std::span(bytes))));
}

TEST(Npz, ListsStoredMembersByNameWithoutTheirEnding) {
  const auto table = parse_npz(Zip().build()).value();
  EXPECT_EQ(table.tensors()[0].name, "a");
  EXPECT_EQ(table.tensors()[0].dtype, DType::kI16);
  EXPECT_EQ(table.tensors()[0].bytes, 4u);
}

TEST(Npz, RefusesCompressedEncryptedAndForeignMembers) {
  EXPECT_THAT(parse_npz(Zip{.method = 8}.build()).error().message(), HasSubstr("savez_compressed"));
  EXPECT_THAT(parse_npz(Zip{.flags = 1}.build()).error().message(), HasSubstr("encrypted"));
  EXPECT_THAT(parse_npz(Zip{.name = "data.pkl"}.build()).error().message(), HasSubstr("not an .npy array"));
  EXPECT_THAT(parse_npz(Zip{.name = "\xff.npy"}.build()).error().message(), HasSubstr("not UTF-8"));
  EXPECT_THAT(parse_npz(Zip{.member = Zip().member + "x"}.build()).error().message(), HasSubstr("but 5 are there"));
  EXPECT_THAT(parse_npz(Zip().build(3)).error().message(), HasSubstr("no local header"));
  EXPECT_THAT(parse_npz(Zip().build(100000)).error().message(), HasSubstr("begins outside the file"));
}

TEST(Npz, RefusesAnArchiveCutAnywhere) {
  const std::string whole = Zip().build();
  ASSERT_TRUE(parse_npz(whole));
  for (std::size_t cut = 0; cut < whole.size(); ++cut) EXPECT_FALSE(parse_npz(whole.substr(0, cut))) << cut;
}

}  // namespace
}  // namespace berth::internal::formats
