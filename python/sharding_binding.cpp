#include "sharding_binding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>

#include "berth/remote/cluster.h"
#include "berth/remote/load_sharded.h"
#include "berth/remote/sharding.h"

namespace berth::python {
namespace {

// Rules as text, or as a sequence of (pattern, kind) and (pattern, kind, unit).
std::vector<ShardRule> rules_from(nb::handle object) {
  if (nb::isinstance<nb::str>(object)) return parse_shard_rules(nb::cast<std::string>(object)).value();
  std::vector<ShardRule> rules;
  for (const nb::handle each : object) {
    const auto words = nb::cast<nb::sequence>(each);
    const std::size_t count = nb::len(words);
    if (nb::isinstance<nb::str>(each) || count < 2 || count > 3)
      throw nb::type_error("a rule is (pattern, kind) or (pattern, kind, unit)");
    ShardRule rule{.pattern = nb::cast<std::string>(words[0])};
    const auto kind = nb::cast<std::string>(words[1]);
    bool known = false;
    for (const ShardKind each_kind : {ShardKind::kReplicated, ShardKind::kRow, ShardKind::kColumn, ShardKind::kExpert})
      if (to_string(each_kind) == kind) {
        rule.kind = each_kind;
        known = true;
      }
    if (!known) throw nb::value_error("the kind of a rule is replicated, row, column or expert");
    if (count == 3) rule.unit = nb::cast<std::size_t>(words[2]);
    rules.push_back(std::move(rule));
  }
  return rules;
}

ShardPlan plan_of(const WeightFile& file, nb::handle rules, std::uint32_t ranks, std::uint32_t parts,
                  std::uint64_t piece_bytes) {
  return make_shard_plan(file.tensors(), rules_from(rules),
                         {.ranks = ranks, .parts = parts, .piece_bytes = piece_bytes})
      .value();
}

nb::dict shard_of(const ShardPlan& plan, const std::string& name, std::uint32_t rank) {
  if (rank >= plan.ranks()) throw nb::value_error("there is no such rank in the plan");
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    if (plan.tensors()[i].name != name) continue;
    const Shard shard = plan.shard(i, rank);
    nb::dict all;
    all["axis"] = shard.slice.axis;
    all["begin"] = shard.slice.begin;
    all["end"] = shard.slice.end;
    nb::list shape;
    for (const std::size_t extent : shard.shape) shape.append(extent);
    all["shape"] = nb::tuple(shape);
    all["nbytes"] = shard.bytes;
    return all;
  }
  throw nb::key_error(name.c_str());
}

nb::dict cost_of(const ShardPlan& plan) {
  const ShardCost cost = released([&] { return plan.cost(); });
  nb::dict all;
  all["file_bytes"] = cost.file_bytes;
  all["storage_bytes"] = cost.storage_bytes;
  all["network_bytes"] = cost.network_bytes;
  all["largest_read"] = cost.largest_read;
  all["largest_sent"] = cost.largest_sent;
  all["largest_received"] = cost.largest_received;
  all["largest_memory"] = cost.largest_memory;
  return all;
}

ClusterPtr join(const std::optional<std::string>& folder, std::uint32_t rank, std::uint32_t ranks,
                const std::string& token, const std::vector<std::string>& interfaces, const std::string& transports,
                double give_up_after, std::size_t lends) {
  if (!(give_up_after > 0) || give_up_after > 1e6) throw nb::value_error("give_up_after must be above 0 seconds");
  ClusterOptions options{
      .interfaces = interfaces,
      .transports = transports,
      .give_up_after = std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(give_up_after * 1000))),
      .lends = lends};
  if (folder)
    options.exchange = make_folder_exchange({.folder = *folder, .rank = rank, .ranks = ranks, .token = token}).value();
  return released([&] { return Cluster::join(std::move(options)).value(); });
}

nb::dict buffers_of(const ShardedTensors& tensors) {
  nb::dict all;
  for (std::size_t i = 0; i < tensors.buffers.size(); ++i)
    if (tensors.buffers[i].id() != 0) all[tensors.plan.tensors()[i].name.c_str()] = nb::cast(tensors.buffers[i]);
  return all;
}

ShardedTensors load(Cluster& cluster, const WeightFile& file, nb::handle rules, nb::handle where, std::uint32_t parts,
                    std::uint64_t piece_bytes) {
  const std::vector<ShardRule> all = rules_from(rules);
  const AllocatorPtr allocator = allocator_from(where);
  return released([&] {
    return load_sharded(cluster, file, all, allocator, {.parts = parts, .piece_bytes = piece_bytes}).value();
  });
}

ShardedTensors move(Cluster& cluster, const ShardedTensors& from, const ShardPlan& to, nb::handle where) {
  const AllocatorPtr allocator = allocator_from(where);
  return released([&] { return reshard(cluster, from, to, allocator).value(); });
}

}  // namespace

void bind_sharding(nb::module_& module) {
  constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;
  nb::class_<ShardPlan>(module, "ShardPlan",
                        "How the tensors of a file are split among ranks, and who reads what. Made by shard_plan().\n\n"
                        ">>> import berth, numpy as np, tempfile, os\n"
                        ">>> path = os.path.join(tempfile.mkdtemp(), 'a.safetensors')\n"
                        ">>> berth.save(path, {'w': np.ones((4, 6), np.float32), 'b': np.zeros(4, np.float32)})\n"
                        ">>> plan = berth.shard_plan(berth.open(path), [('w', 'column')], ranks=2)\n"
                        ">>> plan.check()\n"
                        ">>> plan.shard('w', rank=1)\n"
                        "{'axis': 1, 'begin': 3, 'end': 6, 'shape': (4, 3), 'nbytes': 48}\n"
                        ">>> plan.cost()['storage_bytes'], plan.cost()['network_bytes']\n"
                        "(112, 64)")
      .def_prop_ro("ranks", &ShardPlan::ranks)
      .def_prop_ro("parts", &ShardPlan::parts)
      .def_prop_ro("pieces", &ShardPlan::pieces, "The number of pieces of files, each read once.")
      .def("shard", &shard_of, nb::arg("name"), nb::arg("rank"),
           nb::sig("def shard(self, name: str, rank: int) -> dict[str, object]"),
           "What a rank has of a tensor: axis, begin, end, shape, nbytes.")
      .def("cost", &cost_of, nb::sig("def cost(self) -> dict[str, int]"),
           "Bytes from storage and over the network, and those of the largest rank.")
      .def(
          "check", [](const ShardPlan& self) { released([&] { self.check().value(); }); },
          "Raises ValueError unless each byte of each shard is written exactly once.")
      .def("__str__", [](const ShardPlan& self) { return to_string(self); })
      .def("__repr__", [](const ShardPlan& self) {
        return "<berth.ShardPlan of " + std::to_string(self.tensors().size()) + " tensors for " +
               std::to_string(self.ranks()) + " ranks>";
      });
  module.def(
      "shard_plan", &plan_of, nb::arg("file"), nb::arg("rules"), nb::arg("ranks"), nb::kw_only(), nb::arg("parts") = 0,
      nb::arg("piece_bytes") = kPiece,
      nb::sig("def shard_plan(file: WeightFile, rules: object, ranks: int, *, parts: int = 0, piece_bytes: int = "
              "8388608) -> ShardPlan"),
      "The plan for a file. `rules` is text with one rule in each line, or a sequence of (pattern, kind) and "
      "(pattern, kind, unit), with kind replicated, row, column or expert.\n\n"
      ">>> import berth, numpy as np, tempfile, os\n"
      ">>> path = os.path.join(tempfile.mkdtemp(), 'a.safetensors')\n"
      ">>> berth.save(path, {'w': np.ones((4, 6), np.float32)})\n"
      ">>> berth.shard_plan(berth.open(path), 'w row', ranks=4).shard('w', rank=3)['shape']\n"
      "(1, 6)");

  nb::class_<Cluster>(module, "Cluster",
                      "The ranks of a job. Made by Cluster.join(); this job has one rank.\n\n"
                      ">>> import berth, tempfile\n"
                      ">>> cluster = berth.Cluster.join(folder=tempfile.mkdtemp(), rank=0, ranks=1, token='secret')\n"
                      ">>> cluster.rank, cluster.ranks, cluster.lost\n"
                      "(0, 1, [])\n"
                      ">>> cluster.barrier()")
      .def_static(
          "join", &join, nb::kw_only(), nb::arg("folder").none() = nb::none(), nb::arg("rank") = 0,
          nb::arg("ranks") = 0, nb::arg("token") = "", nb::arg("interfaces") = std::vector<std::string>(),
          nb::arg("transports") = "", nb::arg("give_up_after") = 30.0, nb::arg("lends") = 0,
          "Joins the job that `berth launch`, mpirun, srun or prterun started, or the one that meets in `folder` "
          "with `rank`, `ranks` and `token`. Waits for all ranks; `give_up_after` is in seconds.")
      .def_prop_ro("rank", &Cluster::rank)
      .def_prop_ro("ranks", &Cluster::ranks)
      .def(
          "barrier", [](Cluster& self) { released([&] { self.barrier().value(); }); },
          "Waits until every rank has called it as often as this one.")
      .def_prop_ro("lost", &Cluster::lost, "The ranks that are lost, in the order of their loss.");

  nb::class_<ShardedTensors>(module, "ShardedTensors",
                             "What one rank has of a checkpoint. Made by load_sharded().\n\n"
                             ">>> import berth, numpy as np, tempfile, os\n"
                             ">>> folder = tempfile.mkdtemp()\n"
                             ">>> path = os.path.join(folder, 'a.safetensors')\n"
                             ">>> berth.save(path, {'w': np.ones((4, 6), np.float32)})\n"
                             ">>> cluster = berth.Cluster.join(folder=folder, rank=0, ranks=1, token='secret')\n"
                             ">>> tensors = berth.load_sharded(cluster, berth.open(path), 'w row')\n"
                             ">>> tensors.plan.ranks, tensors.buffers['w'].shape\n"
                             "(1, (4, 6))")
      .def_ro("plan", &ShardedTensors::plan)
      .def_prop_ro("buffers", &buffers_of, nb::sig("def buffers(self) -> dict[str, Buffer]"),
                   "The shards by name; tensors that go whole to another rank are left out.");
  module.def("load_sharded", &load, nb::arg("cluster"), nb::arg("file"), nb::arg("rules"), nb::arg("device") = "CPU",
             nb::kw_only(), nb::arg("parts") = 0, nb::arg("piece_bytes") = kPiece,
             nb::sig("def load_sharded(cluster: Cluster, file: WeightFile, rules: object, device: object = 'CPU', *, "
                     "parts: int = 0, piece_bytes: int = 8388608) -> ShardedTensors"),
             "Loads a file together with all ranks of the cluster, each byte read once; all or nothing.\n\n"
             ">>> import berth, numpy as np, tempfile, os\n"
             ">>> folder = tempfile.mkdtemp()\n"
             ">>> path = os.path.join(folder, 'a.safetensors')\n"
             ">>> berth.save(path, {'w': np.ones((4, 6), np.float32)})\n"
             ">>> cluster = berth.Cluster.join(folder=folder, rank=0, ranks=1, token='secret')\n"
             ">>> berth.load_sharded(cluster, berth.open(path), 'w row').buffers['w'].shape\n"
             "(4, 6)");
  module.def(
      "reshard", &move, nb::arg("cluster"), nb::arg("tensors"), nb::arg("plan"), nb::arg("device") = "CPU",
      nb::sig("def reshard(cluster: Cluster, tensors: ShardedTensors, plan: ShardPlan, device: object = 'CPU') -> "
              "ShardedTensors"),
      "The same tensors split by another plan.\n\n"
      ">>> import berth, numpy as np, tempfile, os\n"
      ">>> folder = tempfile.mkdtemp()\n"
      ">>> path = os.path.join(folder, 'a.safetensors')\n"
      ">>> berth.save(path, {'w': np.ones((4, 6), np.float32)})\n"
      ">>> cluster = berth.Cluster.join(folder=folder, rank=0, ranks=1, token='secret')\n"
      ">>> rows = berth.load_sharded(cluster, berth.open(path), 'w row')\n"
      ">>> columns = berth.shard_plan(berth.open(path), 'w column', ranks=1)\n"
      ">>> berth.reshard(cluster, rows, columns).buffers['w'].shape\n"
      "(4, 6)");
}

}  // namespace berth::python
