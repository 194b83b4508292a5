#include "engines/ort_format.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "engines/onnxruntime_session.h"
#include "support/support.h"
#include "support/tiny_onnx.h"

namespace berth::internal::ort {
namespace {

// Writes a flatbuffer front to back: a reference is filled in once its target is there.
class Writer {
 public:
  std::string bytes;

  template <class T>
  std::size_t put(T value) {
    const std::size_t at = bytes.size();
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return at;
  }
  // A table with these fields, all references; gives the place of each.
  std::vector<std::size_t> table(unsigned fields, std::initializer_list<unsigned> present) {
    const std::size_t layout = bytes.size();
    put<std::uint16_t>(static_cast<std::uint16_t>(4 + 2 * fields));
    put<std::uint16_t>(static_cast<std::uint16_t>(4 + 4 * present.size()));
    std::vector<std::uint16_t> distances(fields);
    std::uint16_t next = 4;
    for (const unsigned field : present) distances[field] = next, next = static_cast<std::uint16_t>(next + 4);
    for (const std::uint16_t distance : distances) put(distance);
    last_table = bytes.size();
    put(static_cast<std::int32_t>(last_table - layout));
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < present.size(); ++i) places.push_back(put<std::uint32_t>(0));
    return places;
  }
  void point(std::size_t reference, std::size_t target) {
    const auto distance = static_cast<std::uint32_t>(target - reference);
    std::memcpy(bytes.data() + reference, &distance, sizeof distance);
  }
  std::size_t vector_of(const std::string& content) {
    const std::size_t at = put(static_cast<std::uint32_t>(content.size()));
    bytes += content;
    return at;
  }
  std::size_t last_table = 0;
};

// Weights of these contents; the last two refer to the same bytes. One tensor more has none.
std::string model_of(const std::vector<std::string>& contents) {
  Writer writer;
  writer.put<std::uint32_t>(0);
  writer.bytes += "ORTM";
  const auto session = writer.table(3, {1});
  writer.point(0, writer.last_table);
  const auto model = writer.table(8, {7});
  writer.point(session[0], writer.last_table);
  const auto graph = writer.table(1, {0});
  writer.point(model[0], writer.last_table);
  const std::size_t list = writer.put(static_cast<std::uint32_t>(contents.size() + 2));
  writer.point(graph[0], list);
  std::vector<std::size_t> entries;
  for (std::size_t i = 0; i < contents.size() + 2; ++i) entries.push_back(writer.put<std::uint32_t>(0));
  std::vector<std::size_t> references;
  for (std::size_t i = 0; i <= contents.size(); ++i) {
    references.push_back(writer.table(5, {0, 4})[1]);
    writer.point(entries[i], writer.last_table);
  }
  writer.table(5, {0});
  writer.point(entries.back(), writer.last_table);
  std::size_t vector = 0;
  for (std::size_t i = 0; i < references.size(); ++i) {
    if (i < contents.size()) vector = writer.vector_of(contents[i]);
    writer.point(references[i], vector);
  }
  return writer.bytes;
}

std::span<const std::byte> as_bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string content(const std::string& file, const WeightPlace& place) {
  return file.substr(place.begin, place.bytes);
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

const std::vector<std::string> kContents = {std::string(100, 'a'), std::string(12, 'b'), std::string(5000, 'c')};

TEST(OrtFormat, FindsTheBytesOfEveryWeight) {
  const std::string file = model_of(kContents);
  const auto places = find_weights(as_bytes_of(file)).value();
  ASSERT_EQ(places.size(), 4u) << "the tensor without bytes is left out";
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(content(file, places[i]), kContents[i]);
  EXPECT_EQ(places[3].begin, places[2].begin);
}

TEST(OrtFormat, MovesWeightsToCacheLinesAndKeepsTheirBytes) {
  const test::TemporaryFolder folder;
  const std::string before = model_of(kContents), path = folder.write("model.ort", as_bytes_of(before));
  ASSERT_TRUE(align_weights(path));
  const std::string after = read(path);
  const auto places = find_weights(as_bytes_of(after)).value();
  ASSERT_EQ(places.size(), 4u);
  for (const std::size_t i : {0u, 2u, 3u}) {
    EXPECT_EQ(places[i].begin % kWeightAlignment, 0u) << i;
    EXPECT_EQ(content(after, places[i]), kContents[i == 3 ? 2 : i]) << i;
  }
  EXPECT_LT(places[1].begin, before.size()) << "less than a line is not worth moving";
  EXPECT_EQ(content(after, places[1]), kContents[1]);
  ASSERT_TRUE(align_weights(path));
  EXPECT_EQ(read(path).size(), after.size()) << "nothing is left to do";
}

TEST(OrtFormat, SaysWhereAFileThatEndsTooSoonIsBroken) {
  const std::string file = model_of(kContents);
  for (std::size_t size = 0; size < file.size(); ++size) {
    const std::string cut = file.substr(0, size);
    const auto places = find_weights(as_bytes_of(cut));
    if (!places) {
      EXPECT_EQ(places.error().code(), Code::kInvalidData);
      continue;
    }
    for (const WeightPlace& place : *places) EXPECT_LE(place.begin + place.bytes, size);
  }
  const auto broken = find_weights(as_bytes_of(file.substr(0, 20)));
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message().find("of a file of 20"), std::string::npos) << broken.error().message();
  for (const char* text : {"not a model", "short", ""}) {
    const auto other = find_weights(as_bytes_of(text));
    ASSERT_FALSE(other) << text;
    EXPECT_EQ(other.error().code(), Code::kInvalidData);
    EXPECT_NE(other.error().message().find("no ORTM at byte 4"), std::string::npos) << other.error().message();
  }
}

TEST(OrtFormat, ReportsAFileThatCannotBeReadOrWritten) {
  const auto missing = align_weights("/nonexistent/model.ort");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kIo);

  const test::TemporaryFolder folder;
  const std::string file = model_of(kContents), path = folder.write("model.ort", as_bytes_of(file));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{file.size(), before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const auto result = align_weights(path);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kIo);
}

TEST(OrtFormat, AlignsWhatTheEngineWritesAndTheEngineRunsIt) {
  if (const auto found = library(); !found) GTEST_SKIP() << found.error().message();
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "tiny.onnx", ready = folder.path() / "tiny.ort";
  testing::write_tiny_onnx(path);
  const auto engine = Engine::create().value();
  ASSERT_TRUE(engine->open({.model = path, .save_ready_model = ready}));
  const std::string before = read(ready);
  ASSERT_TRUE(align_weights(ready));
  const std::string after = read(ready);
  const auto old_places = find_weights(as_bytes_of(before)).value(), places = find_weights(as_bytes_of(after)).value();
  ASSERT_EQ(places.size(), old_places.size());
  ASSERT_GE(places.size(), 2u);
  for (std::size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(content(after, places[i]), content(before, old_places[i]));
    if (places[i].bytes >= kWeightAlignment) {
      EXPECT_EQ(places[i].begin % kWeightAlignment, 0u);
    }
  }

  Tensor rows{.name = "x", .element_type = kElementF32, .shape = {3, 64}, .bytes = std::vector<std::byte>(3 * 64 * 4)};
  for (std::size_t i = 0; i < 3 * 64; ++i) {
    const float value = static_cast<float>(i % 17) / 8.0f - 1.0f;
    std::memcpy(rows.bytes.data() + 4 * i, &value, 4);
  }
  std::vector<Tensor> inputs{rows};
  const auto run = [&](Model& model) {
    model.bind(inputs).value();
    const auto outputs = model.run().value();
    const auto view = outputs.front().view().value();
    return std::vector<std::byte>(view.bytes.begin(), view.bytes.end());
  };
  const auto expected = run(*engine->open({.model = path}).value());
  const MappedModel mapped = MappedModel::open(ready).value();
  EXPECT_EQ(run(*engine->open({.model = path, .mapped = &mapped}).value()), expected);
}

}  // namespace
}  // namespace berth::internal::ort
