#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/statistics.h"
#include "bindings.h"

namespace berth::python {

void bind_allocators(nb::module_& module) {
  nb::class_<Allocator>(
      module, "Allocator",
      "Where buffers get their memory. Allocators stack; at the bottom is a Device.\n\n"
      ">>> import berth\n"
      ">>> isinstance(berth.device('CPU'), berth.Allocator), isinstance(berth.caching_pool(), berth.Allocator)\n"
      "(True, True)")
      .def_prop_ro("name", [](const Allocator& self) { return std::string(self.name()); })
      .def("trim", &Allocator::trim, nb::arg("keep_bytes") = 0, "Gives cached memory back; returns how many bytes.")
      .def("__repr__", [](const Allocator& self) { return "<berth.Allocator " + std::string(self.name()) + ">"; });

  nb::class_<CachingPool, Allocator>(
      module, "CachingPool",
      "A caching allocator. Make one with berth.caching_pool().\n\n"
      ">>> import berth\n"
      ">>> pool = berth.caching_pool('CPU')\n"
      ">>> berth.Buffer(1000, 'u8', pool).release()\n"
      ">>> pool.counters()['cached_bytes'] >= 1000, pool.trim() >= 1000, pool.counters()['cached_bytes']\n"
      "(True, True, 0)")
      .def(
          "counters",
          [](const CachingPool& self) {
            const CachingPoolCounters counters = self.counters();
            nb::dict all;
            all["live_bytes"] = counters.live_bytes;
            all["live_count"] = counters.live_count;
            all["cached_bytes"] = counters.cached_bytes;
            all["peak_bytes"] = counters.peak_bytes;
            all["hits"] = counters.hits;
            all["misses"] = counters.misses;
            return all;
          },
          nb::sig("def counters(self) -> dict[str, int]"));
  nb::class_<Limit, Allocator>(module, "Limit",
                               "Refuses what would take live bytes past a limit. Make one with berth.limit().\n\n"
                               ">>> import berth\n"
                               ">>> small = berth.limit('CPU', 1000)\n"
                               ">>> buffer = berth.Buffer(600, 'u8', small)\n"
                               ">>> small.live_bytes, small.limit_bytes\n"
                               "(600, 1000)")
      .def_prop_ro("limit_bytes", &Limit::limit_bytes)
      .def_prop_ro("live_bytes", [](const Limit& self) { return self.counters().live_bytes; })
      .def_prop_ro("peak_bytes", [](const Limit& self) { return self.counters().peak_bytes; });
  nb::class_<Statistics, Allocator>(
      module, "Statistics",
      "Counts what passes through. Make one with berth.statistics().\n\n"
      ">>> import berth\n"
      ">>> stats = berth.statistics('CPU')\n"
      ">>> berth.Buffer(600, 'u8', stats).release()\n"
      ">>> stats.counters()['allocations'], stats.counters()['peak_bytes'], stats.counters()['live_bytes']\n"
      "(1, 600, 0)")
      .def(
          "counters",
          [](const Statistics& self) {
            const StatisticsCounters stats = self.counters();
            nb::dict all;
            all["live_bytes"] = stats.live_bytes;
            all["live_count"] = stats.live_count;
            all["peak_bytes"] = stats.peak_bytes;
            all["allocations"] = stats.allocations;
            all["releases"] = stats.releases;
            all["failures"] = stats.failures;
            all["total_bytes"] = stats.total_bytes;
            return all;
          },
          nb::sig("def counters(self) -> dict[str, int]"));

  module.def(
      "caching_pool",
      [](nb::handle inner, std::size_t max_cached_bytes, std::size_t budget) {
        return make_caching_pool(allocator_from(inner), {.max_cached_bytes = max_cached_bytes, .budget = budget});
      },
      nb::arg("inner") = "CPU", nb::kw_only(), nb::arg("max_cached_bytes") = std::size_t{256} << 20,
      nb::arg("budget") = 0,
      "A caching allocator around a device or another allocator.\n\n"
      ">>> import berth\n"
      ">>> pool = berth.caching_pool('CPU')\n"
      ">>> for _ in range(3):\n"
      "...     buffer = berth.Buffer(1000, 'f32', pool)\n"
      "...     buffer.release()\n"
      ">>> pool.counters()['hits'], pool.counters()['misses']\n"
      "(2, 1)");
  module.def(
      "limit", [](nb::handle inner, std::size_t bytes) { return make_limit(allocator_from(inner), bytes); },
      nb::arg("inner"), nb::arg("bytes"),
      "An allocator that refuses to go past `bytes`.\n\n"
      ">>> import berth\n"
      ">>> small = berth.limit('CPU', 1000)\n"
      ">>> try:\n"
      "...     berth.Buffer(2000, 'u8', small, label='too large')\n"
      "... except MemoryError as error:\n"
      "...     print(error.code)\n"
      "OutOfMemory");
  module.def(
      "statistics", [](nb::handle inner) { return make_statistics(allocator_from(inner)); }, nb::arg("inner") = "CPU",
      "An allocator that counts what passes through.\n\n"
      ">>> import berth\n"
      ">>> stats = berth.statistics(berth.caching_pool('CPU'))\n"
      ">>> with berth.Buffer(100, 'u8', stats):\n"
      "...     stats.counters()['live_count']\n"
      "1");
}

}  // namespace berth::python
