#include "berth/weights/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/crc32.h"
#include "base/sanitizers.h"
#include "berth/memory/registry.h"
#include "berth/weights/save.h"
#include "support/kernel_pages.h"
#include "support/support.h"

namespace berth {

using namespace internal;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A folder of its own for each test, removed at the end.
class Weights : public ::testing::Test {
 protected:
  std::string path(const std::string& file) const { return (folder_ / file).string(); }
  std::string put(const std::string& file, const std::string& bytes) const {
    std::ofstream(folder_ / file, std::ios::binary) << bytes;
    return path(file);
  }
  std::size_t files_left() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  static DevicePtr cpu() { return device("CPU").value(); }

  static Buffer numbers(const Shape& shape, DType dtype = u32) {
    Buffer buffer = Buffer::allocate(cpu(), dtype, shape).value();
    auto bytes = buffer.as_host_bytes_mut().value();
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
    return buffer;
  }
  static std::vector<std::byte> bytes_of(const Buffer& buffer) {
    std::vector<std::byte> bytes(buffer.size());
    EXPECT_TRUE(buffer.copyout(bytes));
    return bytes;
  }
  // `count` tensors of different sizes, one of them larger than a job.
  std::string make_model(const std::string& file, std::size_t count = 40) {
    tensors_.clear();
    names_.clear();
    names_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      names_.push_back("layer." + std::to_string(i));
      const std::size_t rows = i == 7 ? 5'000'001 : 1 + i * 37;
      tensors_.push_back({names_.back(), numbers({rows})});
    }
    EXPECT_TRUE(save_safetensors(path(file), tensors_));
    return path(file);
  }

  const test::TemporaryFolder own_;
  const std::filesystem::path folder_ = own_.path();
  std::vector<std::string> names_;
  std::vector<NamedBuffer> tensors_;
};

TEST_F(Weights, LoadsFromTheFileThatWasOpenedWhateverItsPathLeadsToNow) {
  const Buffer original = numbers({5000}), other = numbers({5000, 1});
  ASSERT_TRUE(other.copyin(std::vector<std::byte>(other.size(), std::byte{1})));
  const std::vector<NamedBuffer> tensors{{"w", original}}, others{{"w", other.view(0, u32, {5000}).value()}};
  ASSERT_TRUE(save_safetensors(path("a.safetensors"), tensors));
  const WeightFile file = open_weights(path("a.safetensors")).value();
  ASSERT_TRUE(save_safetensors(path("a.safetensors"), others));
  for (const bool direct : {false, true})
    EXPECT_EQ(bytes_of(file.load("w", cpu(), {.direct = direct}).value()), bytes_of(original)) << direct;
  EXPECT_EQ(bytes_of(file.tensor("w").value()), bytes_of(original));
}

TEST_F(Weights, MapsTensorsWithoutCopyingAndOutlivesItsFile) {
  const Buffer original = numbers({4, 3});
  ASSERT_TRUE(save_safetensors(path("a.safetensors"), std::vector<NamedBuffer>{{"w", original}}));
  Buffer mapped;
  {
    const WeightFile file = open_weights(path("a.safetensors")).value();
    EXPECT_EQ(file.format(), WeightFormat::kSafetensors);
    mapped = file.tensor("w").value();
    EXPECT_EQ(file.tensor("w").value().storage_id(), mapped.storage_id()) << "one mapping a file";
  }
  EXPECT_EQ(mapped.device().kind(), "DISK");
  EXPECT_EQ(mapped.shape(), (Shape{4, 3}));
  EXPECT_EQ(mapped.as_slice<std::uint32_t>().value()[5], original.as_slice<std::uint32_t>().value()[5]);
  EXPECT_EQ(mapped.as_host_bytes_mut().error().code(), Code::kReadOnly);
}

TEST_F(Weights, SaysWhichNameIsMissing) {
  const WeightFile file = open_weights(make_model("a.safetensors", 3)).value();
  EXPECT_EQ(file.tensor("nope").error().code(), Code::kNotFound);
  EXPECT_THAT(file.load("nope", cpu()).error().message(), HasSubstr("\"nope\" among the 3"));
  const WeightFile empty;
  EXPECT_EQ(empty.tensor("x").error().code(), Code::kNotFound);
  EXPECT_TRUE(empty.tensors().empty());
  EXPECT_TRUE(WeightFile().load_all(cpu()).value().buffers.empty());
}

TEST_F(Weights, LoadsEverythingByteForByteWithAnyNumberOfThreads) {
  const WeightFile file = open_weights(make_model("a.safetensors")).value();
  for (const unsigned threads : {1u, 3u}) {
    for (const bool direct : {false, true}) {
      for (const std::size_t share : {std::size_t{0}, std::size_t{8} << 20}) {
        const LoadedTensors loaded =
            file.load_all(cpu(), {.threads = threads, .direct = direct, .checksums = true, .share_below = share})
                .value();
        ASSERT_EQ(loaded.buffers.size(), tensors_.size());
        for (std::size_t i = 0; i < loaded.buffers.size(); ++i) {
          const Buffer mapped = file.tensor(file.tensors()[i]).value();
          EXPECT_EQ(bytes_of(loaded.buffers[i]), bytes_of(mapped)) << file.tensors()[i].name;
          EXPECT_EQ(loaded.checksums[i], crc32(mapped.as_host_bytes().value()));
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.buffers[i].as_raw_ptr()) % 64, 0u);
        }
      }
    }
  }
}

TEST_F(Weights, ReportsAFileThatWasCutSinceItWasOpenedHoweverItIsRead) {
  const std::uint64_t whole = std::filesystem::file_size(make_model("a.safetensors"));
  // Also at whole blocks of the disk, where a direct read ends without an error and without bytes.
  for (const std::uint64_t left :
       {whole - 1, whole / 2 / 4096 * 4096, whole / 2 / 4096 * 4096 + 1, std::uint64_t{4096}, std::uint64_t{0}}) {
    const WeightFile file = open_weights(make_model("a.safetensors")).value();
    std::filesystem::resize_file(path("a.safetensors"), left);
    const std::size_t live = cpu()->counters().live_count;
    for (const bool direct : {false, true}) {
      const auto loaded = file.load_all(cpu(), {.threads = 1, .direct = direct});
      ASSERT_FALSE(loaded) << left << (direct ? " direct" : "");
      EXPECT_EQ(loaded.error().code(), Code::kIo) << loaded.error().message();
      EXPECT_THAT(loaded.error().message(), HasSubstr("bytes when it was opened"));
      EXPECT_EQ(cpu()->counters().live_count, live) << "nothing is kept";
    }
  }
}

TEST_F(Weights, LoadsASubsetInTheOrderAskedEvenTheSameNameTwice) {
  const WeightFile file = open_weights(make_model("a.safetensors")).value();
  const std::vector<std::string_view> names = {"layer.9", "layer.2", "layer.9"};
  const LoadedTensors loaded = file.load(names, cpu()).value();
  for (std::size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(bytes_of(loaded.buffers[i]), bytes_of(file.tensor(names[i]).value()));
  EXPECT_TRUE(loaded.checksums.empty());
}

TEST_F(Weights, ReportsProgressToTheEndAndCanBeCancelled) {
  const WeightFile file = open_weights(make_model("a.safetensors")).value();
  LoadProgress last;
  LoadOptions options;
  options.progress = [&](const LoadProgress& progress) {
    EXPECT_GT(progress.bytes_done, last.bytes_done);
    last = progress;
    return true;
  };
  ASSERT_TRUE(file.load_all(cpu(), options));
  EXPECT_EQ(last.bytes_done, file.total_bytes());
  EXPECT_EQ(last.bytes_total, file.total_bytes());
  const std::size_t live = cpu()->counters().live_count;
  options.progress = [](const LoadProgress&) { return false; };
  EXPECT_EQ(file.load_all(cpu(), options).error().code(), Code::kCancelled);
  EXPECT_EQ(cpu()->counters().live_count, live) << "nothing is kept";
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(file.load_all(cpu(), {.cancel = stop.get_token()}).error().code(), Code::kCancelled);
  std::stop_source later;
  options.cancel = later.get_token();
  options.threads = 1;
  std::uint64_t reached = 0;
  options.progress = [&](const LoadProgress& progress) {
    reached = progress.bytes_done;
    later.request_stop();
    return true;
  };
  EXPECT_EQ(file.load_all(cpu(), options).error().code(), Code::kCancelled);
  EXPECT_LT(reached, file.total_bytes()) << "it was stopped on its way";
  EXPECT_EQ(cpu()->counters().live_count, live) << "nothing is kept";
}

TEST_F(Weights, SlicesAnyAxisReadingOnlyThosePieces) {
  const Buffer whole = numbers({6, 5, 4});
  ASSERT_TRUE(save_safetensors(path("a.safetensors"), std::vector<NamedBuffer>{{"w", whole}}));
  const WeightFile file = open_weights(path("a.safetensors")).value();
  const auto all = whole.as_array<std::uint32_t>().value();
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const Buffer part = file.load_slice("w", {.axis = axis, .begin = 1, .end = 3}, cpu()).value();
    const auto got = part.as_array<std::uint32_t>().value();
    EXPECT_EQ(part.shape()[axis], 2u);
    for (std::size_t i = 0; i < part.shape()[0]; ++i)
      for (std::size_t j = 0; j < part.shape()[1]; ++j)
        for (std::size_t k = 0; k < part.shape()[2]; ++k)
          EXPECT_EQ(got(i, j, k), all(i + (axis == 0), j + (axis == 1), k + (axis == 2)));
  }
  EXPECT_EQ(file.load_slice("w", {1, 0, 5}, cpu()).value().shape(), (Shape{6, 5, 4}));
  EXPECT_EQ(file.load_slice("w", {1, 2, 2}, cpu()).value().size(), 0u);
  EXPECT_EQ(file.load_slice("w", {3, 0, 1}, cpu()).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(file.load_slice("w", {0, 2, 7}, cpu()).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(file.load_slice("w", {0, 3, 2}, cpu()).error().code(), Code::kInvalidArgument);
}

TEST_F(Weights, RefusesASliceThroughQuantisedBlocks) {
  const Buffer blocks = numbers({2, 64}, DType::kQ4_0);
  ASSERT_TRUE(save_gguf(path("a.gguf"), std::vector<NamedBuffer>{{"w", blocks}}));
  const WeightFile file = open_weights(path("a.gguf")).value();
  EXPECT_EQ(file.load_slice("w", {1, 32, 64}, cpu()).value().size(), 36u);
  EXPECT_THAT(file.load_slice("w", {1, 16, 64}, cpu()).error().message(), HasSubstr("cuts through blocks of 32"));
}

TEST_F(Weights, ReportsAFileThatShrankAsAnErrorFromLoadAndCopyout) {
  const WeightFile file = open_weights(make_model("a.safetensors")).value();
  const Buffer mapped = file.tensor("layer.7").value();
  std::filesystem::resize_file(path("a.safetensors"), 4096);
  EXPECT_EQ(file.load("layer.7", cpu()).error().code(), Code::kIo);
  std::vector<std::byte> bytes(mapped.size());
  EXPECT_EQ(mapped.copyout(bytes).error().code(), Code::kIo);
}

TEST_F(Weights, OpensShardsThroughTheirIndexOrFolder) {
  ASSERT_TRUE(save_safetensors(path("m-1.safetensors"), std::vector<NamedBuffer>{{"a", numbers({2})}}));
  ASSERT_TRUE(save_safetensors(path("m-2.safetensors"), std::vector<NamedBuffer>{{"b", numbers({3})}}));
  const std::string index = put("model.safetensors.index.json",
                                R"({"metadata":{},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  for (const std::string& at : {index, folder_.string()}) {
    const WeightFile file = open_weights(at).value();
    ASSERT_EQ(file.tensors().size(), 2u);
    ASSERT_EQ(file.files().size(), 2u);
    for (const std::string& part : file.files()) EXPECT_TRUE(std::filesystem::exists(part)) << "\"" << part << "\"";
    EXPECT_EQ(file.find("b")->file, 1u);
    EXPECT_EQ(bytes_of(file.tensor("b").value()), bytes_of(numbers({3})));
    EXPECT_EQ(file.load_all(cpu()).value().buffers.size(), 2u);
    EXPECT_EQ(file.total_bytes(), 20u);
  }
  put("model.safetensors.index.json", R"({"weight_map":{"a":"m-2.safetensors"}})");
  EXPECT_THAT(open_weights(index).error().message(), HasSubstr("places tensor \"a\" in m-2.safetensors"));
  put("model.safetensors.index.json", R"({"weight_map":{"a":"gone.safetensors"}})");
  EXPECT_EQ(open_weights(index).error().code(), Code::kNotFound);
  std::filesystem::copy_file(path("m-1.safetensors"), path("m-3.safetensors"));
  put("model.safetensors.index.json", R"({"weight_map":{"a":"m-1.safetensors","c":"m-3.safetensors"}})");
  EXPECT_THAT(open_weights(index).error().message(), HasSubstr("two tensors are named \"a\""));
}

TEST_F(Weights, OpensAllFilesOfASplitSetFromAnyOfThem) {
  for (std::uint16_t i = 0; i < 2; ++i) {
    Metadata metadata;
    ASSERT_TRUE(metadata.add("split.no", i));
    ASSERT_TRUE(metadata.add("split.count", std::uint16_t{2}));
    ASSERT_TRUE(metadata.add("split.tensors.count", std::int32_t{2}));
    ASSERT_TRUE(save_gguf(path("m-0000" + std::to_string(i + 1) + "-of-00002.gguf"),
                          std::vector<NamedBuffer>{{i == 0 ? "a" : "b", numbers({4}, f32)}}, metadata));
  }
  for (const char* any : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) {
    const WeightFile file = open_weights(path(any)).value();
    EXPECT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(file.find("b")->file, 1u);
    EXPECT_EQ(bytes_of(file.tensor("b").value()), bytes_of(numbers({4}, f32)));
  }
  std::filesystem::copy_file(path("m-00001-of-00002.gguf"), path("other.gguf"));
  EXPECT_THAT(open_weights(path("other.gguf")).error().message(), HasSubstr("not named like"));
  std::filesystem::copy_file(path("m-00001-of-00002.gguf"), path("m-00001-of-00003.gguf"));
  EXPECT_THAT(open_weights(path("m-00001-of-00003.gguf")).error().message(), HasSubstr("the file's name says 3"));
  std::filesystem::remove(path("m-00002-of-00002.gguf"));
  EXPECT_EQ(open_weights(path("m-00001-of-00002.gguf")).error().code(), Code::kNotFound);
  std::filesystem::copy_file(path("m-00001-of-00002.gguf"), path("m-00002-of-00002.gguf"));
  EXPECT_THAT(open_weights(path("m-00001-of-00002.gguf")).error().message(), HasSubstr("it says it is part 0 of 2"));
}

TEST_F(Weights, NamesTheFileInEveryRefusal) {
  EXPECT_EQ(open_weights(path("gone")).error().code(), Code::kNotFound);
  EXPECT_THAT(open_weights(put("bad.gguf", "GGUF9999")).error().message(), HasSubstr("bad.gguf: GGUF at byte"));
  EXPECT_THAT(open_weights(put("bad.bin", "hello world")).error().message(),
              HasSubstr("bad.bin: safetensors at byte 0"));
  EXPECT_THAT(open_weights(folder_.string()).error().message(), HasSubstr("a folder without model.safetensors"));
}

TEST_F(Weights, WritesMetadataAndEveryDtypeThatTheFormatsHaveAndReadsThemBack) {
  for (const bool gguf : {false, true}) {
    std::vector<std::string> names;
    std::vector<NamedBuffer> tensors;
    for (std::size_t i = 0; i < kDTypeCount; ++i) names.emplace_back(to_string(static_cast<DType>(i)));
    Metadata metadata;
    ASSERT_TRUE(metadata.add("note", "ü \"quoted\"\n\x01"));
    std::size_t refused = 0;
    for (std::size_t i = 0; i < kDTypeCount; ++i) {
      const NamedBuffer tensor{names[i], numbers({2, 256}, static_cast<DType>(i))};
      const auto alone =
          gguf ? save_gguf(path("one"), std::span(&tensor, 1)) : save_safetensors(path("one"), std::span(&tensor, 1));
      if (alone) {
        tensors.push_back(tensor);
      } else {
        EXPECT_EQ(alone.error().code(), Code::kUnsupported);
        ++refused;
      }
    }
    EXPECT_EQ(tensors.size(), gguf ? 35u : 22u);
    EXPECT_GT(refused, 0u);
    ASSERT_TRUE(gguf ? save_gguf(path("all"), tensors, metadata) : save_safetensors(path("all"), tensors, metadata));
    const WeightFile file = open_weights(path("all")).value();
    EXPECT_EQ(file.find_metadata("note")->as_string().value(), "ü \"quoted\"\n\x01");
    ASSERT_EQ(file.tensors().size(), tensors.size());
    for (const NamedBuffer& tensor : tensors) {
      const Buffer back = file.tensor(tensor.name).value();
      EXPECT_EQ(back.dtype(), tensor.buffer.dtype());
      EXPECT_EQ(bytes_of(back), bytes_of(tensor.buffer)) << tensor.name;
      EXPECT_EQ(file.find(tensor.name)->offset % info(back.dtype()).alignment, 0u) << tensor.name;
    }
  }
}

TEST_F(Weights, LeavesNothingBehindWhenWritingFailsOrIsCancelled) {
  const NamedBuffer good{"a", numbers({4})};
  const auto refuse = [&](std::vector<NamedBuffer> tensors, Code code, const Metadata& metadata = {},
                          const SaveOptions& options = {}) {
    EXPECT_EQ(save_safetensors(path("x"), tensors, metadata, options).error().code(), code);
  };
  refuse({good, good}, Code::kInvalidArgument);
  refuse({{"\xff", good.buffer}}, Code::kInvalidArgument);
  refuse({{"__metadata__", good.buffer}}, Code::kInvalidArgument);
  refuse({{"lazy", Buffer::lazy(cpu(), f32, {2}).value()}}, Code::kNotAllocated);
  refuse({good}, Code::kCancelled, {}, {.progress = [](const LoadProgress&) { return false; }});
  Metadata typed;
  ASSERT_TRUE(typed.add("n", 1));
  EXPECT_EQ(typed.add("n", 2).error().code(), Code::kAlreadyExists);
  refuse({good}, Code::kTypeMismatch, typed);
  EXPECT_EQ(save_safetensors(path("no/such/folder"), std::span(&good, 1)).error().code(), Code::kIo);
  Metadata alignment;
  ASSERT_TRUE(alignment.add("general.alignment", std::uint32_t{24}));
  EXPECT_EQ(save_gguf(path("x"), {}, alignment).error().code(), Code::kInvalidArgument);
  const NamedBuffer deep{"d", numbers({1, 1, 1, 1, 2}, f32)};
  EXPECT_EQ(save_gguf(path("x"), std::span(&deep, 1)).error().code(), Code::kUnsupported);
  const NamedBuffer flat{"q", numbers({2, 16}, DType::kQ4_0)};
  EXPECT_EQ(save_gguf(path("x"), std::span(&flat, 1)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(files_left(), 0u);
}

TEST_F(Weights, TellsOfManySmallTensorsOnceForEveryFewMebibytes) {
  const std::vector<Buffer> pieces(1000, numbers({5000}));
  std::vector<std::string> names;
  std::vector<NamedBuffer> tensors;
  for (std::size_t i = 0; i < pieces.size(); ++i) names.push_back("t" + std::to_string(i));
  for (std::size_t i = 0; i < pieces.size(); ++i) tensors.push_back({names[i], pieces[i]});
  std::vector<std::uint64_t> told;
  const SaveOptions options{.progress = [&](const LoadProgress& progress) {
    told.push_back(progress.bytes_done);
    return true;
  }};
  ASSERT_TRUE(save_safetensors(path("a"), tensors, {}, options));
  EXPECT_EQ(told.size(), 3u) << "20 MB, 8 MiB at a time, and the end";
  EXPECT_EQ(told.back(), 20'000'000u);
}

TEST_F(Weights, ReplacesAFileWhileItsOldContentsStayMapped) {
  const NamedBuffer before{"w", numbers({4})};
  ASSERT_TRUE(save_safetensors(path("a"), std::span(&before, 1)));
  const Buffer old = open_weights(path("a")).value().tensor("w").value();
  const NamedBuffer after{"w", numbers({8})};
  ASSERT_TRUE(save_safetensors(path("a"), std::span(&after, 1)));
  EXPECT_EQ(bytes_of(old), bytes_of(before.buffer));
  EXPECT_EQ(open_weights(path("a")).value().tensor("w").value().size(), 32u);
}

TEST_F(Weights, ConvertsBetweenFormatsWithMetadata) {
  Metadata metadata;
  ASSERT_TRUE(metadata.add("general.architecture", "test"));
  ASSERT_TRUE(metadata.add("layers", std::uint32_t{12}));
  const std::vector<std::string> tokens = {"a", "b\""};
  ASSERT_TRUE(metadata.add("tokens", std::span<const std::string>(tokens)));
  const std::vector<float> scales = {0.5f, 2.0f};
  ASSERT_TRUE(metadata.add("scales", std::span<const float>(scales)));
  const std::vector<NamedBuffer> tensors = {{"b", numbers({3}, f32)}, {"a", numbers({2, 2}, f16)}};
  ASSERT_TRUE(save_gguf(path("a.gguf"), tensors, metadata));
  ASSERT_TRUE(convert_weights(open_weights(path("a.gguf")).value(), path("b.safetensors")));
  const WeightFile middle = open_weights(path("b.safetensors")).value();
  EXPECT_EQ(middle.find_metadata("layers")->as_string().value(), "12");
  EXPECT_EQ(middle.find_metadata("tokens")->as_string().value(), R"(["a","b\""])");
  EXPECT_EQ(middle.find_metadata("scales")->as_string().value(), "[0.5,2]");
  ASSERT_TRUE(convert_weights(middle, path("c.gguf")));
  const WeightFile end = open_weights(path("c.gguf")).value();
  for (const NamedBuffer& tensor : tensors)
    EXPECT_EQ(bytes_of(end.tensor(tensor.name).value()), bytes_of(tensor.buffer));
  EXPECT_EQ(convert_weights(end, path("d.bin")).error().code(), Code::kInvalidArgument);
  const NamedBuffer quantised{"q", numbers({32}, DType::kQ4_0)};
  ASSERT_TRUE(save_gguf(path("q.gguf"), std::span(&quantised, 1)));
  EXPECT_THAT(convert_weights(open_weights(path("q.gguf")).value(), path("q.safetensors")).error().message(),
              HasSubstr("tensor \"q\" is of q4_0, which safetensors cannot hold"));
}

#if !BERTH_ADDRESS_SANITIZER && !BERTH_THREAD_SANITIZER  // these need memory of their own
TEST_F(Weights, OpenInAFewTimesTheMemoryOfTheirHeaders) {
  const Buffer all = numbers({200'000}, f32);
  std::vector<std::string> names;
  std::vector<NamedBuffer> tensors;
  names.reserve(200'000);
  for (std::size_t i = 0; i < 200'000; ++i) {
    names.push_back("model.layers." + std::to_string(i) + ".self_attention.weight");
    tensors.push_back({names.back(), all.view(4 * i, 4).value()});
  }
  ASSERT_TRUE(save_safetensors(path("many.safetensors"), tensors));
  ASSERT_TRUE(save_gguf(path("many.gguf"), tensors));
  for (const std::string& file : {path("many.safetensors"), path("many.gguf")}) {
    malloc_trim(0);
    const std::size_t before = test::own_kib();
    const WeightFile opened = open_weights(file).value();
    const std::size_t header = opened.tensors().front().offset / 1024;
    ASSERT_GT(header, 10'000u) << "KiB, so that all else is small against it";
    EXPECT_LE(test::own_kib() - before, 3 * header) << file;
  }
}
#endif

TEST(Crc32, AgreesWithTheWellKnownValueAndContinues) {
  const std::string text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(crc32(bytes), 0xCBF43926u);
  EXPECT_EQ(crc32(bytes.subspan(4), crc32(bytes.first(4))), 0xCBF43926u);
}

}  // namespace
}  // namespace berth
