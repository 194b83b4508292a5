#include "berth/weights/weights.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "base/try.h"
#include "base/utf8.h"
#include "berth/memory/registry.h"
#include "weights/byte_source.h"
#include "weights/gguf.h"
#include "weights/load.h"
#include "weights/npy.h"
#include "weights/safetensors.h"
#include "weights/tensor_table.h"

namespace berth {

using namespace internal;

using formats::FileSource;
using formats::TensorTable;

std::string_view to_string(WeightFormat format) noexcept {
  switch (format) {
    case WeightFormat::kSafetensors: return "safetensors";
    case WeightFormat::kGguf: return "gguf";
    case WeightFormat::kNpy: return "npy";
    case WeightFormat::kNpz: return "npz";
  }
  return "";
}

struct WeightFile::Opened {
  WeightFormat format = WeightFormat::kSafetensors;
  TensorTable table;
  TensorTable index;  // keeps a shard index's names
  std::vector<FileSource> sources;
  std::vector<std::string> paths;
  std::vector<Buffer> mapped;  // each file as bytes on its DISK device, mapped at first use
  std::uint64_t total_bytes = 0;
};

namespace {

struct Parsed {
  WeightFormat format;
  TensorTable table;
};

Error in_file(const std::string& path, const Error& error) {
  return Error::with_text(error.code(), error.layer(), fmt::format("{}: {}", path, error.message()));
}

Result<WeightFormat> detect(const FileSource& source) {
  std::array<char, 8> start{};
  const std::size_t have = std::min<std::uint64_t>(start.size(), source.size());
  BERTH_TRY(source.read(0, std::as_writable_bytes(std::span(start).first(have))));
  const std::string_view text(start.data(), have);
  if (text.starts_with("GGUF")) return WeightFormat::kGguf;
  if (text.starts_with("\x93NUMPY")) return WeightFormat::kNpy;
  if (text.starts_with("PK\x03\x04") || text.starts_with("PK\x05\x06")) return WeightFormat::kNpz;
  return WeightFormat::kSafetensors;
}

Result<Parsed> parse(const FileSource& source) {
  BERTH_TRY_ASSIGN(const WeightFormat format, detect(source));
  const auto read = [&]() -> Result<TensorTable> {
    switch (format) {
      case WeightFormat::kGguf: {
        BERTH_TRY_ASSIGN(formats::GgufHeader header, formats::read_gguf(source));
        return std::move(header.table);
      }
      case WeightFormat::kNpy: return formats::read_npy(source);
      case WeightFormat::kNpz: return formats::read_npz(source);
      case WeightFormat::kSafetensors: break;
    }
    return formats::read_safetensors(source);
  };
  Result<TensorTable> table = read();
  if (!table) return in_file(source.path(), table.error());
  return Parsed{format, *std::move(table)};
}

// "model-00002-of-00005.gguf" as its parts, or nothing.
struct SplitName {
  std::string prefix;
  std::size_t count = 0;
};
Result<SplitName> split_name(const std::string& path) {
  constexpr std::size_t kTail = std::string_view("-00001-of-00003.gguf").size();
  const auto digits = [&](std::size_t from) {
    std::size_t value = 0;
    for (std::size_t i = from; i < from + 5; ++i) {
      if (path[i] < '0' || path[i] > '9') return std::size_t{0};
      value = value * 10 + static_cast<std::size_t>(path[i] - '0');
    }
    return value;
  };
  if (path.size() > kTail && path.ends_with(".gguf")) {
    const std::size_t at = path.size() - kTail;
    if (path[at] == '-' && path.compare(at + 6, 4, "-of-") == 0 && digits(at + 1) > 0 && digits(at + 10) > 0)
      return SplitName{path.substr(0, at), digits(at + 10)};
  }
  return Error::with_text(Code::kInvalidData, Layer::kFormat,
                          fmt::format("{}: one file of a split set, but it is not named like "
                                      "\"name-00001-of-00003.gguf\", so the others cannot be found",
                                      path));
}

Result<std::uint64_t> metadata_uint(const TensorTable& table, std::string_view key) {
  const MetadataValue* value = table.find_metadata(key);
  if (value == nullptr) return std::uint64_t{0};
  return value->as_uint();
}

}  // namespace

// Opens further files behind those that are there, adding their tensors.
struct WeightOpener {
  template <class Opened>
  static Result<void> add_file(Opened& opened, FileSource source, TensorTable&& table) {
    const auto number = static_cast<std::uint32_t>(opened.sources.size());
    BERTH_TRY_ASSIGN(const DevicePtr disk, device("DISK:" + source.path()));
    // The device opened the path by itself. What is loaded and what is mapped must be of one file.
    if (disk->limits().total_bytes != source.size() || !source.is_current())
      return Error::with_text(
          Code::kIo, Layer::kFormat,
          fmt::format("{}: it was replaced while it was being opened; open it again", source.path()));
    BERTH_TRY_ASSIGN(Buffer mapped, Buffer::lazy(disk, DType::kU8, {source.size()}));
    for (const TensorInfo& tensor : table.tensors()) opened.total_bytes += tensor.bytes;
    if (number == 0)
      opened.table = std::move(table);
    else
      opened.table.append(std::move(table), number);
    opened.paths.push_back(source.path());
    opened.sources.push_back(std::move(source));
    opened.mapped.push_back(std::move(mapped));
    return {};
  }

  template <class Opened>
  static Result<void> add_split(Opened& opened, const std::string& path, std::uint64_t count) {
    BERTH_TRY_ASSIGN(const SplitName split, split_name(path));
    if (split.count != count)
      return Error::with_text(Code::kInvalidData, Layer::kFormat,
                              fmt::format("{}: split.count is {}, the file's name says {}", path, count, split.count));
    std::uint64_t wanted = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string part = fmt::format("{}-{:05}-of-{:05}.gguf", split.prefix, i + 1, count);
      BERTH_TRY_ASSIGN(FileSource source, FileSource::open(part));
      BERTH_TRY_ASSIGN(Parsed parsed, parse(source));
      BERTH_TRY_ASSIGN(const std::uint64_t number, metadata_uint(parsed.table, "split.no"));
      BERTH_TRY_ASSIGN(const std::uint64_t its_count, metadata_uint(parsed.table, "split.count"));
      if (parsed.format != WeightFormat::kGguf || number != i || its_count != count)
        return Error::with_text(
            Code::kInvalidData, Layer::kFormat,
            fmt::format("{}: it says it is part {} of {}, not part {} of {}", part, number, its_count, i, count));
      if (i == 0) {
        BERTH_TRY_ASSIGN(wanted, metadata_uint(parsed.table, "split.tensors.count"));
      }
      BERTH_TRY(add_file(opened, std::move(source), std::move(parsed.table)));
    }
    if (wanted != 0 && wanted != opened.table.tensors().size())
      return Error::with_text(Code::kInvalidData, Layer::kFormat,
                              fmt::format("{}: split.tensors.count is {}, the {} files have {}", path, wanted, count,
                                          opened.table.tensors().size()));
    return opened.table.index_names("GGUF split set");
  }

  template <class Opened>
  static Result<void> add_shards(Opened& opened, const std::string& index_path) {
    BERTH_TRY_ASSIGN(const FileSource index_source, FileSource::open(index_path));
    auto index = formats::read_safetensors_index(index_source);
    if (!index) return in_file(index_path, index.error());
    const std::filesystem::path folder = std::filesystem::path(index_path).parent_path();
    for (const std::string& file : index->files) {
      BERTH_TRY_ASSIGN(FileSource source, FileSource::open((folder / file).string()));
      BERTH_TRY_ASSIGN(Parsed parsed, parse(source));
      if (parsed.format != WeightFormat::kSafetensors)
        return Error::with_text(Code::kInvalidData, Layer::kFormat,
                                fmt::format("{}: it is not a safetensors file", source.path()));
      BERTH_TRY(add_file(opened, std::move(source), std::move(parsed.table)));
    }
    BERTH_TRY(opened.table.index_names("safetensors shards"));
    for (const auto& [tensor, file] : index->weight_map) {
      const auto found = opened.table.find(tensor);
      if (!found || opened.table.tensors()[*found].file != file)
        return Error::with_text(Code::kInvalidData, Layer::kFormat,
                                fmt::format("{}: it places tensor {} in {}, which does not have it", index_path,
                                            quoted(tensor), index->files[file]));
    }
    opened.index = std::move(index->keeper);
    return {};
  }
};

Result<WeightFile> open_weights(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    for (const char* inside : {"model.safetensors.index.json", "model.safetensors"}) {
      const std::string candidate = (std::filesystem::path(path) / inside).string();
      if (std::filesystem::exists(candidate, ignored)) return open_weights(candidate);
    }
    return Error::with_text(Code::kNotFound, Layer::kFormat,
                            fmt::format("{} is a folder without model.safetensors or model.safetensors.index.json; "
                                        "name the file",
                                        path));
  }
  auto opened = std::make_shared<WeightFile::Opened>();
  if (path.ends_with(".index.json")) {
    BERTH_TRY(WeightOpener::add_shards(*opened, path));
    return WeightFile(std::move(opened));
  }
  BERTH_TRY_ASSIGN(FileSource source, FileSource::open(path));
  BERTH_TRY_ASSIGN(Parsed parsed, parse(source));
  opened->format = parsed.format;
  if (parsed.format == WeightFormat::kGguf) {
    BERTH_TRY_ASSIGN(const std::uint64_t count, metadata_uint(parsed.table, "split.count"));
    if (count > 1) {
      BERTH_TRY(WeightOpener::add_split(*opened, path, count));
      return WeightFile(std::move(opened));
    }
  }
  BERTH_TRY(WeightOpener::add_file(*opened, std::move(source), std::move(parsed.table)));
  return WeightFile(std::move(opened));
}

WeightFormat WeightFile::format() const noexcept {
  return opened_ ? opened_->format : WeightFormat::kSafetensors;
}
std::span<const TensorInfo> WeightFile::tensors() const& noexcept {
  return opened_ ? opened_->table.tensors() : std::span<const TensorInfo>();
}
std::span<const MetadataEntry> WeightFile::metadata() const& noexcept {
  return opened_ ? opened_->table.metadata() : std::span<const MetadataEntry>();
}
std::span<const std::string> WeightFile::files() const& noexcept {
  return opened_ ? std::span<const std::string>(opened_->paths) : std::span<const std::string>();
}
std::uint64_t WeightFile::total_bytes() const noexcept {
  return opened_ ? opened_->total_bytes : 0;
}

const TensorInfo* WeightFile::find(std::string_view name) const& noexcept {
  if (!opened_) return nullptr;
  const auto found = opened_->table.find(name);
  return found ? &opened_->table.tensors()[*found] : nullptr;
}

const MetadataValue* WeightFile::find_metadata(std::string_view key) const& noexcept {
  return opened_ ? opened_->table.find_metadata(key) : nullptr;
}

namespace {

Result<const TensorInfo*> require(const WeightFile& file, std::string_view name) {
  if (const TensorInfo* info = file.find(name)) return info;
  return Error::with_text(Code::kNotFound, Layer::kFormat,
                          fmt::format("no tensor named {} among the {} of {}", quoted(name), file.tensors().size(),
                                      file.files().empty() ? "an empty WeightFile" : file.files()[0]));
}

}  // namespace

Result<Buffer> WeightFile::tensor(std::string_view name) const {
  BERTH_TRY_ASSIGN(const TensorInfo* info, require(*this, name));
  return tensor(*info);
}

Result<Buffer> WeightFile::tensor(const TensorInfo& info) const {
  BERTH_TRY_ASSIGN(const Shape shape, Shape::make(info.shape));
  const Buffer& mapped = opened_->mapped[info.file];
  BERTH_TRY(mapped.ensure_allocated());
  return mapped.view(info.offset, info.dtype, shape);
}

namespace internal::formats {

std::shared_ptr<const std::vector<FileSource>> WeightAccess::sources(const WeightFile& file) {
  if (file.opened_ == nullptr) return std::make_shared<const std::vector<FileSource>>();
  return {file.opened_, &file.opened_->sources};
}

Result<std::vector<LoadRequest>> WeightAccess::requests(const WeightFile& file,
                                                        std::span<const std::string_view> names) {
  std::vector<LoadRequest> requests;
  requests.reserve(names.size());
  for (const std::string_view name : names) {
    BERTH_TRY_ASSIGN(const TensorInfo* info, require(file, name));
    BERTH_TRY_ASSIGN(LoadRequest request, whole_tensor(*info));
    requests.push_back(request);
  }
  return requests;
}

}  // namespace internal::formats

Result<LoadedTensors> WeightFile::load(std::span<const std::string_view> names, const AllocatorPtr& allocator,
                                       const LoadOptions& options) const {
  BERTH_TRY_ASSIGN(const std::vector<formats::LoadRequest> requests, formats::WeightAccess::requests(*this, names));
  if (requests.empty()) return LoadedTensors{};
  return formats::load_tensors(opened_->sources, requests, allocator, options);
}

Result<Buffer> WeightFile::load(std::string_view name, const AllocatorPtr& allocator,
                                const LoadOptions& options) const {
  BERTH_TRY_ASSIGN(LoadedTensors loaded, load(std::span(&name, 1), allocator, options));
  return std::move(loaded.buffers[0]);
}

Result<LoadedTensors> WeightFile::load_all(const AllocatorPtr& allocator, const LoadOptions& options) const {
  std::vector<formats::LoadRequest> requests;
  requests.reserve(tensors().size());
  for (const TensorInfo& info : tensors()) {
    BERTH_TRY_ASSIGN(formats::LoadRequest request, formats::whole_tensor(info));
    requests.push_back(request);
  }
  if (requests.empty()) return LoadedTensors{};
  return formats::load_tensors(opened_->sources, requests, allocator, options);
}

Result<Buffer> WeightFile::load_slice(std::string_view name, const AxisSlice& slice, const AllocatorPtr& allocator,
                                      const LoadOptions& options) const {
  BERTH_TRY_ASSIGN(const TensorInfo* info, require(*this, name));
  BERTH_TRY_ASSIGN(const formats::LoadRequest request, formats::sliced_tensor(*info, slice));
  BERTH_TRY_ASSIGN(LoadedTensors loaded,
                   formats::load_tensors(opened_->sources, std::span(&request, 1), allocator, options));
  return std::move(loaded.buffers[0]);
}

Result<void> WeightFile::read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) const {
  if (file >= files().size())
    return Error(Code::kNotFound, Layer::kFormat, "there is no file {} among the {} of this WeightFile", file,
                 files().size());
  return opened_->sources[file].read(offset, into);
}

}  // namespace berth
