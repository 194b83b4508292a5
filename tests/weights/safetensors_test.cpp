#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace berth::internal::formats {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  return file + header + std::string(data_bytes, 'x');
}

Result<TensorTable> parse(const std::string& bytes) {
  return read_safetensors(MemorySource(std::as_bytes(std::span(bytes))));
}

// The message of a file that must be refused.
std::string refusal(const std::string& bytes, Code code = Code::kInvalidData) {
  const auto table = parse(bytes);
  EXPECT_FALSE(table.has_value()) << "accepted: " << bytes.substr(8, 200);
  if (table) return "";
  EXPECT_EQ(table.error().code(), code);
  return table.error().message();
}

std::string refused_header(const std::string& header, std::size_t data_bytes = 0) {
  return refusal(file_of(header, data_bytes));
}

TEST(Safetensors, RefusesOffsetsWithoutACommaBetweenThem) {
  for (const char* offsets : {"[01]", "[0 1]", "[0,1", "[0;1]", "[01,1]"})
    EXPECT_NE(refused_header(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":)" + std::string(offsets) + "}}", 1), "");
}

TEST(Safetensors, ListsTensorsWithAbsoluteRangesInFileOrder) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]},)"
      R"("a":{"shape":[2],"data_offsets":[0,2],"dtype":"I8"}}   )";
  const auto table = parse(file_of(header, 10)).value();
  ASSERT_EQ(table.tensors().size(), 2u);
  EXPECT_EQ(table.tensors()[0].name, "a");
  EXPECT_EQ(table.tensors()[0].dtype, DType::kI8);
  EXPECT_EQ(table.tensors()[0].offset, 8 + header.size());
  EXPECT_EQ(table.tensors()[1].name, "b");
  EXPECT_EQ(table.tensors()[1].bytes, 8u);
  EXPECT_THAT(table.tensors()[1].shape, ::testing::ElementsAre(1, 2));
  EXPECT_EQ(table.find("b"), 1u);
  EXPECT_EQ(table.find("c"), std::nullopt);
  EXPECT_EQ(table.find_metadata("format")->as_string().value(), "pt");
}

TEST(Safetensors, ReadsEveryDtypeTheFormatHas) {
  const char* names[] = {"BOOL", "F4",      "F6_E2M3", "F6_E3M2", "U8",          "I8",          "F8_E5M2", "F8_E4M3",
                         "I16",  "F8_E8M0", "U16",     "F16",     "F8_E4M3FNUZ", "F8_E5M2FNUZ", "BF16",    "I32",
                         "U32",  "F32",     "C64",     "F64",     "I64",         "U64"};
  const std::size_t bits[] = {8, 4, 6, 6, 8, 8, 8, 8, 16, 8, 16, 16, 8, 8, 16, 32, 32, 32, 64, 64, 64, 64};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    const std::size_t bytes = 4 * bits[i] / 8;
    const auto table = parse(file_of(std::string(R"({"t":{"dtype":")") + names[i] +
                                         R"(","shape":[4],"data_offsets":[0,)" + std::to_string(bytes) + "]}}",
                                     bytes));
    ASSERT_TRUE(table.has_value()) << names[i] << ": " << table.error().message();
    EXPECT_EQ(safetensors_dtype(table->tensors()[0].dtype), names[i]);
  }
  EXPECT_EQ(safetensors_dtype(DType::kQ4_0), "");
}

TEST(Safetensors, UnescapesCharactersOfEveryLength) {
  const std::pair<const char*, const char*> names[] = {
      {"\\u0024", "$"},
      {"\\u007f", "\x7f"},
      {"\\u0080", "\xc2\x80"},
      {"\\u07ff", "\xdf\xbf"},
      {"\\u0800", "\xe0\xa0\x80"},
      {"\\u20ac", "\xe2\x82\xac"},
      {"\\uffff", "\xef\xbf\xbf"},
      {"\\ud800\\udc00", "\xf0\x90\x80\x80"},
      {"\\udbff\\udfff", "\xf4\x8f\xbf\xbf"},
  };
  for (const auto& [escaped, name] : names) {
    const auto table =
        parse(file_of(std::string("{\"") + escaped + R"(":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1));
    ASSERT_TRUE(table.has_value()) << escaped << ": " << table.error().message();
    EXPECT_EQ(table->tensors()[0].name, name) << escaped;
  }
}

TEST(Safetensors, UnescapesNamesAndKeepsOthersInPlace) {
  const auto table =
      parse(file_of(R"({"\u00fc\ud83d\ude00\n\"":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1)).value();
  EXPECT_EQ(table.tensors()[0].name, "\xc3\xbc\xf0\x9f\x98\x80\n\"");
  EXPECT_EQ(table.find("\xc3\xbc\xf0\x9f\x98\x80\n\""), 0u);
}

TEST(Safetensors, IgnoresUnknownKeysOfATensor) {
  EXPECT_TRUE(parse(file_of(R"({"t":{"note":{"a":[1,-2.5e+3,true,null,"x\n"]},"dtype":"I8","shape":[],)"
                            R"("data_offsets":[0,1]}})",
                            1)));
}

TEST(Safetensors, AcceptsNoTensorsAndTensorsOfNoBytes) {
  EXPECT_EQ(parse(file_of("{}", 0)).value().tensors().size(), 0u);
  const auto table = parse(file_of(R"({"e":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},)"
                                   R"("o":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                                   1));
  EXPECT_EQ(table.value().tensors().size(), 2u);
}

TEST(Safetensors, RefusesAHeaderLengthBombWithoutAllocatingIt) {
  std::string bomb(16, '\xff');
  EXPECT_THAT(refusal(bomb), HasSubstr("18446744073709551615 bytes"));
  EXPECT_THAT(refusal(std::string("\x10\0\0\0\0\0\0\0{}", 10)), HasSubstr("truncated"));
  EXPECT_THAT(refusal("short"), HasSubstr("5 bytes"));
}

TEST(Safetensors, SaysWhereTheJsonBreaks) {
  EXPECT_THAT(refused_header(R"({"a" 1})"), HasSubstr("at byte 13: expected ':'"));
  EXPECT_THAT(refused_header(R"([])"), HasSubstr("at byte 8: expected '{'"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}})"), HasSubstr("begins with 0"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})"), HasSubstr("fraction"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})"), HasSubstr("non-negative"));
  EXPECT_THAT(refused_header(R"({} {})"), HasSubstr("nothing after"));
  EXPECT_THAT(refused_header("{\"a\nb\":{}}"), HasSubstr("control character"));
  EXPECT_THAT(refused_header(R"({"a\x":{}})"), HasSubstr("unknown escape"));
  EXPECT_THAT(refused_header(R"({"a\u12G4":{}})"), HasSubstr("hexadecimal"));
  EXPECT_THAT(refused_header(R"({"\ud800x":{}})"), HasSubstr("surrogate"));
  EXPECT_THAT(refused_header(R"({"abc)"), HasSubstr("does not end"));
  EXPECT_THAT(refused_header(R"({"abc\)"), HasSubstr("does not end"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F32","x":tru}})"), HasSubstr("expected a JSON value"));
}

TEST(Safetensors, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(refused_header("{\"a\xff\":{}}"), HasSubstr("at byte 11: a string is not UTF-8"));
  EXPECT_THAT(refused_header("{\"\xed\xa0\x80\":{}}"), HasSubstr("not UTF-8"));
  EXPECT_THAT(refused_header("{\"\\n\xc0\x80\":{}}"), HasSubstr("not UTF-8"));
}

TEST(Safetensors, RefusesDeepJsonWithoutRecursion) {
  const std::string deep = R"({"a":{"x":)" + std::string(1'000'000, '[');
  EXPECT_THAT(refused_header(deep), HasSubstr("nested more than 64 deep"));
}

TEST(Safetensors, RefusesTensorsThatAreIncompleteOrTwice) {
  EXPECT_THAT(refused_header(R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1), HasSubstr("has no dtype"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), HasSubstr("has no shape"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","shape":[]}})", 1), HasSubstr("has no data_offsets"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
              HasSubstr("dtype twice"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"Q9","shape":[],"data_offsets":[0,1]}})", 1),
              HasSubstr("unknown dtype \"Q9\""));
  const std::string twice = R"("a":{"dtype":"U8","shape":[],"data_offsets":[)";
  EXPECT_THAT(refused_header("{" + twice + "0,1]}," + twice + "1,2]}}", 2), HasSubstr("two tensors are named \"a\""));
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":"1","k":"2"}})"), HasSubstr("the key \"k\" twice"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("second __metadata__"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":1}})"), HasSubstr("expected a string"));
}

TEST(Safetensors, RefusesShapesThatOverflowOrDoNotMatchTheirBytes) {
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
              HasSubstr("does not fit"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,0]}})"),
              HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F64","shape":[2305843009213693951],"data_offsets":[0,8]}})", 8),
              HasSubstr("does not fit 63 bits"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("8 bytes by its dtype and shape has data_offsets [0, 4]"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1), HasSubstr("[1, 0]"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1),
              HasSubstr("not whole blocks"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,)"
                             R"(18446744073709551615]}})",
                             1),
              HasSubstr("past 2^64"));
  std::string many = R"({"a":{"dtype":"U8","shape":[1)";
  for (int i = 0; i < 70; ++i) many += ",1";
  EXPECT_THAT(refused_header(many + R"(],"data_offsets":[0,1]}})", 1), HasSubstr("more than 64 dimensions"));
}

TEST(Safetensors, RefusesOverlapsHolesAndBytesOfNobody) {
  const std::string u8 = R"({"dtype":"U8","shape":[2],"data_offsets":)";
  EXPECT_THAT(refused_header(R"({"a":)" + u8 + R"([0,2]},"b":)" + u8 + "[1,3]}}", 3), HasSubstr("overlaps tensor"));
  EXPECT_THAT(refused_header(R"({"a":)" + u8 + R"([0,2]},"b":)" + u8 + "[3,5]}}", 5), HasSubstr("belong to no tensor"));
  EXPECT_THAT(refused_header(R"({"a":)" + u8 + "[0,2]}}", 3), HasSubstr("the last 1 bytes of the file"));
  EXPECT_THAT(refused_header(R"({"a":)" + u8 + "[0,2]}}", 1), HasSubstr("but the file ends at"));
}

TEST(Safetensors, RefusesAFileCutAnywhere) {
  const std::string whole =
      file_of(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(parse(whole));
  for (std::size_t cut = 0; cut < whole.size(); ++cut) EXPECT_FALSE(parse(whole.substr(0, cut))) << cut;
}

TEST(SafetensorsIndex, ListsEachFileOnceAndRefusesNamesThatLeadElsewhere) {
  const auto read = [](const std::string& text) {
    return read_safetensors_index(MemorySource(std::as_bytes(std::span(text))));
  };
  const auto index = read(R"({"metadata":{"total_size":1},"weight_map":{"a":"1.safetensors","b":"2.safetensors",)"
                          R"("c":"1.safetensors"}})")
                         .value();
  EXPECT_THAT(index.files, ::testing::ElementsAre("1.safetensors", "2.safetensors"));
  EXPECT_EQ(index.weight_map[2].second, 0u);
  for (const char* bad : {"../x", "/etc/passwd", "..", "", "a/b", "a\\u0000"})
    EXPECT_THAT(read(std::string(R"({"weight_map":{"a":")") + bad + "\"}}").error().message(),
                HasSubstr("not the name of a file beside"))
        << bad;
  EXPECT_THAT(read("{}").error().message(), HasSubstr("at byte 2: it ends without a weight_map"));
  EXPECT_THAT(read(R"({"weight_map":{},"weight_map":{}})").error().message(), HasSubstr("second weight_map"));
}

}  // namespace
}  // namespace berth::internal::formats
