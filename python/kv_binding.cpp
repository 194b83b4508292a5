#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "berth/kv/cache.h"
#include "berth/kv/recording.h"
#include "berth/plan/memory_map.h"
#include "bindings.h"

namespace berth::python {
namespace {

using kv::Cache;
using kv::SequenceId;
using kv::Token;
using Ids = std::vector<std::uint64_t>;
using Now = std::optional<std::uint64_t>;

// A contiguous array of the dtype, without a copy if it is one already.
nb::object array_of(nb::handle object, const char* dtype) {
  return nb::module_::import_("numpy").attr("ascontiguousarray")(object, nb::arg("dtype") = dtype);
}

nb::object new_array(nb::handle shape, const char* dtype) {
  return nb::module_::import_("numpy").attr("empty")(shape, nb::arg("dtype") = dtype);
}

template <class T>
std::span<T> elements(const HostBytes& bytes) {
  return {reinterpret_cast<T*>(bytes.bytes().data()), bytes.bytes().size() / sizeof(T)};
}

std::vector<SequenceId> sequences(const Ids& ids) {
  std::vector<SequenceId> all;
  for (const std::uint64_t id : ids) all.push_back({id});
  return all;
}

// `given` if it is an array that can be written, otherwise a new one.
nb::object target_array(nb::handle given, nb::handle shape, const char* dtype) {
  if (given.is_none()) return new_array(shape, dtype);
  const nb::object type = given.attr("dtype");
  const std::string name = nb::str(type).c_str();
  if (name != dtype) throw nb::type_error(("out must be an array of " + std::string(dtype) + ", not " + name).c_str());
  return nb::borrow(given);
}

kv::Group group_from(nb::handle object) {
  const nb::dict fields = nb::cast<nb::dict>(object);
  kv::Group group;
  for (const auto& [key, value] : fields) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "name") {
      group.name = Name(nb::cast<std::string>(value));
    } else if (name == "kind") {
      const std::string kind = nb::cast<std::string>(value);
      if (kind != "full" && kind != "window" && kind != "state")
        throw nb::value_error(("a group is full, window or state, not " + kind).c_str());
      group.kind = kind == "full"     ? kv::GroupKind::kFull
                   : kind == "window" ? kv::GroupKind::kWindow
                                      : kv::GroupKind::kState;
    } else if (name == "bytes_per_token") {
      group.bytes_per_token = nb::cast<std::size_t>(value);
    } else if (name == "state_bytes") {
      group.state_bytes = nb::cast<std::size_t>(value);
    } else if (name == "window") {
      group.window = nb::cast<std::uint32_t>(value);
    } else {
      throw nb::value_error(("a group has no field " + name).c_str());
    }
  }
  return group;
}

kv::Tier tier_from(nb::handle object) {
  const nb::dict fields = nb::cast<nb::dict>(object);
  kv::Tier tier;
  for (const auto& [key, value] : fields) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "device") {
      tier.allocator = allocator_from(value);
    } else if (name == "folder") {
      tier.folder = nb::cast<std::string>(nb::str(value));
    } else if (name == "budget") {
      tier.budget = nb::cast<std::size_t>(value);
    } else if (name == "label") {
      tier.label = Name(nb::cast<std::string>(value));
    } else {
      throw nb::value_error(("a tier has no field " + name).c_str());
    }
  }
  return tier;
}

struct PyCache {
  std::unique_ptr<Cache> cache;
  std::size_t groups = 0;
};

PyCache make(nb::handle groups, std::size_t budget, std::uint32_t block_tokens, nb::handle where,
             bool reserve_first_page, const std::string& eviction, nb::handle tiers, const std::string& record_to,
             std::uint64_t contiguous_tokens, std::size_t timeline_uses) {
  kv::CacheOptions options;
  options.record_to = record_to;
  options.contiguous_tokens = contiguous_tokens;
  options.timeline_uses = timeline_uses;
  for (const nb::handle group : groups) options.groups.push_back(group_from(group));
  for (const nb::handle tier : tiers) options.tiers.push_back(tier_from(tier));
  options.budget = budget;
  options.block_tokens = block_tokens;
  options.reserve_first_page = reserve_first_page;
  if (eviction != "return" && eviction != "lru") throw nb::value_error("eviction is \"return\" or \"lru\"");
  options.eviction = eviction == "lru" ? kv::make_lru_eviction() : kv::make_return_eviction();
  const std::size_t count = options.groups.size();
  return {Cache::make(allocator_from(where), std::move(options)).value(), count};
}

nb::dict counters(const PyCache& self) {
  const kv::CacheCounters counters = self.cache->counters();
  nb::dict all;
  all["sequences"] = counters.sequences;
  all["opened"] = counters.opened;
  all["refused"] = counters.refused;
  all["prompt_tokens"] = counters.prompt_tokens;
  all["cached_tokens"] = counters.cached_tokens;
  all["tier_tokens"] = counters.tier_tokens;
  all["blocks_evicted"] = counters.blocks_evicted;
  all["pages_copied"] = counters.pages_copied;
  all["bookkeeping_bytes"] = counters.bookkeeping_bytes;
  nb::list groups;
  for (const auto& group : counters.groups) {
    nb::dict one;
    one["pages_in_use"] = group.pages_in_use;
    one["pages_cached"] = group.pages_cached;
    one["pages_set_aside"] = group.pages_set_aside;
    one["capacity"] = group.capacity;
    one["page_bytes"] = group.page_bytes;
    groups.append(one);
  }
  all["groups"] = groups;
  nb::list tiers;
  for (const auto& tier : counters.tiers) {
    nb::dict one;
    one["label"] = std::string(tier.label.text());
    one["blocks"] = tier.blocks;
    one["capacity"] = tier.capacity;
    one["block_bytes"] = tier.block_bytes;
    one["stored"] = tier.stored;
    one["loaded"] = tier.loaded;
    one["dropped"] = tier.dropped;
    one["failed"] = tier.failed;
    tiers.append(one);
  }
  all["tiers"] = tiers;
  return all;
}

}  // namespace

void bind_kv(nb::module_& module) {
  nb::class_<PyCache>(module, "KvCache",
                      "A paged key-value cache for many sequences.\n\n"
                      ">>> import berth\n"
                      ">>> cache = berth.KvCache([{'bytes_per_token': 1024}], budget=1 << 20)\n"
                      ">>> first, cached = cache.open(range(40))\n"
                      ">>> cached\n"
                      "0\n"
                      ">>> cache.commit(first)                   # the kernels of the prompt have been recorded\n"
                      ">>> second, cached = cache.open(range(50))\n"
                      ">>> cached                                # two blocks of 16 tokens\n"
                      "32\n"
                      ">>> cache.append([first, second], [7, 8]).shape   # groups, sequences\n"
                      "(1, 2)\n"
                      ">>> cache.block_table(0, [first, second]).shape\n"
                      "(2, 4)\n"
                      ">>> cache.seq_lens([first, second]).tolist()\n"
                      "[41, 51]")
      .def(
          "__init__",
          [](PyCache* self, nb::handle groups, std::size_t budget, std::uint32_t block_tokens, nb::handle where,
             bool reserve_first_page, const std::string& eviction, nb::handle tiers, const std::string& record_to,
             std::uint64_t contiguous_tokens, std::size_t timeline_uses) {
            new (self) PyCache(make(groups, budget, block_tokens, where, reserve_first_page, eviction, tiers, record_to,
                                    contiguous_tokens, timeline_uses));
          },
          nb::arg("groups"), nb::arg("budget"), nb::arg("block_tokens") = 16, nb::arg("device") = "CPU", nb::kw_only(),
          nb::arg("reserve_first_page") = false, nb::arg("eviction") = "return", nb::arg("tiers") = nb::tuple(),
          nb::arg("record_to") = "", nb::arg("contiguous_tokens") = 0, nb::arg("timeline_uses") = 0)
      .def(
          "open",
          [](PyCache& self, nb::handle tokens, std::uint64_t salt, std::uint64_t max_new_tokens, Now now) {
            const nb::object array = array_of(tokens, "int32");
            const HostBytes bytes(array, false);
            const auto opened =
                self.cache
                    ->open(elements<const Token>(bytes), {.salt = salt, .max_new_tokens = max_new_tokens, .now = now})
                    .value();
            return nb::make_tuple(opened.id.bits, opened.cached_tokens);
          },
          nb::arg("tokens"), nb::kw_only(), nb::arg("salt") = 0, nb::arg("max_new_tokens") = 0,
          nb::arg("now") = nb::none(),
          nb::sig("def open(self, tokens: object, *, salt: int = 0, max_new_tokens: int = 0, now: int | None = None) "
                  "-> tuple[int, int]"),
          "Opens a sequence; its id, and how many tokens from the front are cached. MemoryError if it does not fit.")
      .def(
          "can_admit",
          [](const PyCache& self, nb::handle tokens, std::uint64_t salt, std::uint64_t max_new_tokens) {
            const nb::object array = array_of(tokens, "int32");
            const HostBytes bytes(array, false);
            const kv::Admission admission =
                self.cache->can_admit(elements<const Token>(bytes), {.salt = salt, .max_new_tokens = max_new_tokens});
            nb::dict all;
            all["fits"] = admission.fits;
            all["cached_tokens"] = admission.cached_tokens;
            all["bytes_needed"] = admission.bytes_needed;
            all["bytes_free"] = admission.bytes_free;
            all["sequences_to_close"] = admission.sequences_to_close;
            all["close_first"] = admission.close_first.bits;
            return all;
          },
          nb::arg("tokens"), nb::kw_only(), nb::arg("salt") = 0, nb::arg("max_new_tokens") = 0,
          nb::sig("def can_admit(self, tokens: object, *, salt: int = 0, max_new_tokens: int = 0) -> dict[str, int]"),
          "Whether open() with these arguments, and the new tokens after it, would succeed.")
      .def(
          "append",
          [](PyCache& self, const Ids& ids, nb::handle tokens, nb::handle out) {
            const nb::object array = array_of(tokens, "int32");
            const HostBytes bytes(array, false);
            const nb::object slots = target_array(out, nb::make_tuple(self.groups, ids.size()), "int64");
            const HostBytes target(slots, true);
            self.cache->append(sequences(ids), elements<const Token>(bytes), elements<std::int64_t>(target)).value();
            return slots;
          },
          nb::arg("sequences"), nb::arg("tokens"), nb::arg("out") = nb::none(),
          "Adds one token to each sequence; the slots, int64 [groups, sequences].")
      .def(
          "extend",
          [](PyCache& self, std::uint64_t id, nb::handle tokens) {
            const nb::object array = array_of(tokens, "int32");
            const HostBytes bytes(array, false);
            const auto given = elements<const Token>(bytes);
            const nb::object slots = new_array(nb::make_tuple(self.groups, given.size()), "int64");
            const HostBytes target(slots, true);
            self.cache->extend({id}, given, elements<std::int64_t>(target)).value();
            return slots;
          },
          nb::arg("sequence"), nb::arg("tokens"), "Adds tokens to one sequence; the slots, int64 [groups, tokens].")
      .def(
          "commit", [](PyCache& self, std::uint64_t id) { self.cache->commit({id}).value(); }, nb::arg("sequence"))
      .def(
          "fork", [](PyCache& self, std::uint64_t id) { return self.cache->fork({id}).value().bits; },
          nb::arg("sequence"))
      .def(
          "truncate", [](PyCache& self, std::uint64_t id, std::uint64_t n) { self.cache->truncate({id}, n).value(); },
          nb::arg("sequence"), nb::arg("tokens"))
      .def(
          "keep_state", [](PyCache& self, std::uint64_t id) { self.cache->keep_state({id}).value(); },
          nb::arg("sequence"))
      .def(
          "close", [](PyCache& self, std::uint64_t id, Now now) { self.cache->close({id}, now).value(); },
          nb::arg("sequence"), nb::kw_only(), nb::arg("now") = nb::none())
      .def(
          "length", [](const PyCache& self, std::uint64_t id) { return self.cache->length({id}).value(); },
          nb::arg("sequence"))
      .def(
          "block_table",
          [](const PyCache& self, std::uint32_t group, const Ids& ids, std::optional<std::size_t> width,
             std::int32_t padding, nb::handle out) {
            std::size_t most = 1;
            for (const std::uint64_t id : ids) {
              const std::uint64_t length = self.cache->length({id}).value();
              most = std::max(most, static_cast<std::size_t>((length + self.cache->block_tokens() - 1) /
                                                             self.cache->block_tokens()));
            }
            const std::size_t row = width.value_or(most);
            const nb::object table = target_array(out, nb::make_tuple(ids.size(), row), "int32");
            const HostBytes target(table, true);
            self.cache->write_block_table(group, sequences(ids), row, elements<std::int32_t>(target), padding).value();
            return table;
          },
          nb::arg("group"), nb::arg("sequences"), nb::arg("width") = nb::none(), nb::arg("padding") = 0,
          nb::arg("out") = nb::none(), "Pages of the sequences, int32 [sequences, width].")
      .def(
          "csr",
          [](const PyCache& self, std::uint32_t group, const Ids& ids, std::int32_t padding) {
            std::size_t all = 0;
            for (const std::uint64_t id : ids)
              all += static_cast<std::size_t>(self.cache->length({id}).value() / self.cache->block_tokens() + 1);
            std::vector<std::int32_t> scratch(all);
            const nb::object indptr = new_array(nb::make_tuple(ids.size() + 1), "int32");
            const nb::object last = new_array(nb::make_tuple(ids.size()), "int32");
            const HostBytes starts(indptr, true), lengths(last, true);
            const std::size_t used = self.cache
                                         ->write_csr(group, sequences(ids), elements<std::int32_t>(starts), scratch,
                                                     elements<std::int32_t>(lengths), padding)
                                         .value();
            const nb::object indices = new_array(nb::make_tuple(used), "int32");
            const HostBytes target(indices, true);
            if (used != 0) std::memcpy(target.bytes().data(), scratch.data(), used * sizeof(std::int32_t));
            return nb::make_tuple(indptr, indices, last);
          },
          nb::arg("group"), nb::arg("sequences"), nb::arg("padding") = 0,
          "indptr, indices and the length of each last page, as int32 arrays.")
      .def(
          "slots",
          [](const PyCache& self, std::uint32_t group, std::uint64_t id, std::uint64_t first,
             std::optional<std::uint64_t> count) {
            const std::uint64_t length = self.cache->length({id}).value();
            const std::uint64_t wanted = count.value_or(length - std::min(length, first));
            const nb::object slots = new_array(nb::make_tuple(wanted), "int64");
            const HostBytes target(slots, true);
            self.cache->write_slots(group, {id}, first, elements<std::int64_t>(target)).value();
            return slots;
          },
          nb::arg("group"), nb::arg("sequence"), nb::arg("first") = 0, nb::arg("count") = nb::none(),
          "Slots of tokens of a sequence, int64; -1 for those whose page is gone.")
      .def(
          "seq_lens",
          [](const PyCache& self, const Ids& ids) {
            const nb::object lengths = new_array(nb::make_tuple(ids.size()), "int32");
            const HostBytes target(lengths, true);
            self.cache->write_seq_lens(sequences(ids), elements<std::int32_t>(target)).value();
            return lengths;
          },
          nb::arg("sequences"))
      .def(
          "pages", [](const PyCache& self, std::uint32_t group) { return self.cache->pages(group).value(); },
          nb::arg("group"), nb::keep_alive<0, 1>(), "The pages of a group as a buffer of u8 [pages, bytes of a page].")
      .def(
          "contiguous",
          [](const PyCache& self, std::uint32_t group, std::uint64_t id) {
            kv::ContiguousTokens found = self.cache->contiguous(group, {id}).value();
            return nb::make_tuple(std::move(found.tokens), found.first);
          },
          nb::arg("group"), nb::arg("sequence"),
          nb::sig("def contiguous(self, group: int, sequence: int) -> tuple[Buffer, int]"),
          "The tokens of a sequence at contiguous addresses, as a buffer of u8 [tokens, bytes of a token], and the "
          "position of the first of them. Needs contiguous_tokens.\n\n"
          ">>> import berth\n"
          ">>> cache = berth.KvCache([{'bytes_per_token': 1024}], budget=1 << 20, contiguous_tokens=4096)\n"
          ">>> sequence, _ = cache.open(range(40))\n"
          ">>> tokens, first = cache.contiguous(0, sequence)\n"
          ">>> tokens.numpy().shape, first\n"
          "((40, 1024), 0)")
      .def(
          "addresses",
          [](const PyCache& self, std::uint32_t group, const Ids& ids) {
            const nb::object addresses = new_array(nb::make_tuple(ids.size()), "uint64");
            const HostBytes target(addresses, true);
            self.cache->write_addresses(group, sequences(ids), elements<std::uint64_t>(target)).value();
            return addresses;
          },
          nb::arg("group"), nb::arg("sequences"),
          "The address of the first token of each sequence, uint64. Needs contiguous_tokens.")
      .def(
          "write_timeline",
          [](const PyCache& self, const std::string& path) {
            MemoryMap map{.title = "Key-value cache", .time_unit = "call"};
            map.panels.push_back(self.cache->timeline());
            write_memory_map(path, map).value();
          },
          nb::arg("path"), "Writes when each page was in use as a memory map, an HTML file. Needs timeline_uses.")
      .def("drop_cached", [](PyCache& self) { self.cache->drop_cached(); })
      .def("check", [](const PyCache& self) { self.cache->check().value(); })
      .def(
          "run_recording",
          [](PyCache& self, const std::string& path) {
            const kv::CacheRecording recording = kv::read_cache_recording(path).value();
            const kv::CacheReplay replay = kv::run_cache_recording(recording, *self.cache);
            nb::dict all;
            all["opened"] = replay.opened;
            all["refused"] = replay.refused;
            all["other_refused"] = replay.other_refused;
            all["prompt_tokens"] = replay.prompt_tokens;
            all["cached_tokens"] = replay.cached_tokens;
            all["tier_tokens"] = replay.tier_tokens;
            all["seconds"] = replay.seconds;
            return all;
          },
          nb::arg("path"), nb::sig("def run_recording(self, path: str) -> dict[str, object]"),
          "Makes the calls of a file that another cache wrote (record_to), and returns what was found.")
      .def("flush_recording", [](PyCache& self) { self.cache->flush_recording().value(); })
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, object]"));
}

}  // namespace berth::python
