"""Plans the memory of ExecuTorch programs::

    from berth.executorch import planner
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass

    planning = MemoryPlanningPass(memory_planning_algo=planner)
    program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))

The program file has other offsets and smaller buffers; nothing else changes, and the runtime needs no new code. Needs
the packages torch and executorch when the program is made, and neither when it runs.
"""

from __future__ import annotations

import collections.abc as _abc
import typing as _typing

from . import Plan, plan

try:
    from executorch.exir import memory as _memory  # type: ignore[import, unused-ignore]
    from executorch.exir.memory_planning import get_node_tensor_specs  # type: ignore[import, unused-ignore]
    from executorch.exir.schema import TensorShapeDynamism  # type: ignore[import, unused-ignore]
except ImportError as _missing:
    raise ImportError("berth.executorch needs the packages torch and executorch: pip install executorch") from _missing

__all__ = ["IN_PLACE", "planner"]

_ONE = ("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "elu", "erf",
        "exp", "expm1", "floor", "gelu", "hardtanh", "leaky_relu", "log", "log10", "log1p", "log2", "logical_not", "neg",
        "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
        "clamp", "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm",
        "_native_batch_norm_legit_no_training")
_TWO = ("add", "atan2", "div", "maximum", "minimum", "mul", "sub")
_SCALAR = ("add", "div", "mul", "sub")

# Kernels that may write their first output over an argument, and which arguments: those that have read an element (for
# a softmax or a normalisation: a row, a group or a channel) completely before they write to its place.
# python/tests/test_executorch.py runs each of them that way with the released runtime.
IN_PLACE: _abc.Mapping[str, _abc.Sequence[int]] = {
    **{f"aten::{name}.out": (0,) for name in _ONE},
    **{f"aten::{name}.out": (0, 1) for name in _TWO},
    **{f"aten::{name}.Scalar_out": (0,) for name in _SCALAR},
    "aten::pow.Tensor_Scalar_out": (0,),
    "aten::where.self_out": (1, 2),
}

_InPlace = _typing.Union[bool, _abc.Mapping[str, _abc.Sequence[int]]]


def planner(
    alignment: int,
    specs: _abc.Iterable[_typing.Any],
    graph_module: _typing.Any,
    graph_signature: object = None,
    extra_padding: int = 0,
    *,
    in_place: _InPlace = True,
    work_limit: _typing.Optional[int] = None,
    report: _typing.Optional[_abc.Callable[[int, Plan], object]] = None,
) -> list[int]:
    """A `memory_planning_algo` for MemoryPlanningPass. Use functools.partial to set one of the options.

    Each memory id is planned by itself; tensors without one go to memory id 1, as in ExecuTorch's own planner.

    in_place    True: outputs may take over the memory of an argument that nobody reads later, for the kernels in
                IN_PLACE. A mapping replaces that table, for instance to add kernels of your own. False: never.
    work_limit  how long to search for a smaller plan; see berth.plan.
    report      called with each memory id and its berth.Plan: its size, its lower bound, its memory map.

    Returns the bytes of each memory id. ValueError: a tensor shares the storage of one that is not planned, or the
    alignment is not a power of two.
    """
    kernels = (IN_PLACE if in_place else {}) if isinstance(in_place, bool) else in_place
    tensors = list(dict.fromkeys(specs))
    for spec in tensors:
        spec.realign(alignment)
    levels = _levels(tensors, graph_module)
    donors = _donors(tensors, levels, graph_module, kernels)
    below = list(getattr(graph_module, "input_mem_buffer_sizes", None) or [])  # what subgraphs need, which run meanwhile
    by_id: dict[int, list[_typing.Any]] = {mem_id: [] for mem_id, size in enumerate(below) if size > 0}
    by_id.setdefault(1, [])
    for spec in tensors:
        by_id.setdefault(_mem_id(spec), []).append(spec)
    sizes = [0] * (max(by_id) + 1)
    for mem_id, members in sorted(by_id.items()):
        base = below[mem_id] if mem_id < len(below) else 0
        base = -(-base // alignment) * alignment
        planned = _plan(members, levels, donors, alignment, work_limit)
        for spec, offset in zip(members, planned.offsets):
            spec.mem_id, spec.mem_offset, spec.mem_obj_id = mem_id, base + offset, None
        sizes[mem_id] = base + planned.size + (extra_padding if members else 0)
        if report is not None:
            report(mem_id, planned)
    _say_shared(donors)
    return sizes


def _root(spec: _typing.Any) -> _typing.Any:
    """The tensor whose storage this one shares, or itself. Releases before 1.5 have no such tensors."""
    while getattr(spec, "storage_base", None) is not None:
        spec = spec.storage_base
    return spec


def _mem_id(spec: _typing.Any) -> int:
    root = _root(spec)
    return 1 if root.mem_id is None else int(root.mem_id)


def _levels(tensors: list[_typing.Any], graph_module: _typing.Any) -> dict[_typing.Any, tuple[int, int]]:
    """The half-open range of nodes during which each tensor holds data.

    ExecuTorch counts from the node that names the memory. That is one before the kernel that writes to it, and for a
    kernel with several outputs several before it.
    """
    levels = {spec: (int(spec.lifetime[0]), int(spec.lifetime[1]) + 1) for spec in tensors}
    named: dict[_typing.Any, int] = {}
    for index, node in enumerate(graph_module.graph.nodes):
        if node.op == "call_function" and node.target is _memory.alloc:
            named[node] = index
            continue
        for out in node.kwargs.values():
            if not hasattr(out, "meta") or out not in named:
                continue
            for spec in get_node_tensor_specs(out):
                if spec in levels and levels[spec][0] == named[out]:
                    levels[spec] = (index, max(levels[spec][1], index + 1))
    return levels


def _donors(
    tensors: list[_typing.Any],
    levels: dict[_typing.Any, tuple[int, int]],
    graph_module: _typing.Any,
    kernels: _abc.Mapping[str, _abc.Sequence[int]],
) -> dict[_typing.Any, _typing.Any]:
    """For each output that may be written in place: the argument whose memory it may take over."""
    shared = {id(_root(spec)) for spec in tensors if _root(spec) is not spec}
    donors: dict[_typing.Any, _typing.Any] = {}
    for index, node in enumerate(graph_module.graph.nodes):
        schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
        if schema is None:
            continue
        positions = kernels.get(f"{schema.name}.{schema.overload_name}")
        outs = [argument.name for argument in schema.arguments if argument.is_out]
        if not positions or not outs or outs[0] not in node.kwargs:
            continue
        out = node.kwargs[outs[0]]
        out_specs = get_node_tensor_specs(out) if hasattr(out, "meta") else []
        if len(out_specs) != 1 or out_specs[0] not in levels or levels[out_specs[0]][0] != index:
            continue
        for position in positions:
            donor = _donor(node, position, out_specs[0], levels, index)
            if donor is not None and id(donor) not in shared and id(out_specs[0]) not in shared:
                donors[out_specs[0]] = donor
                break
    return donors


def _donor(
    node: _typing.Any, position: int, out: _typing.Any, levels: dict[_typing.Any, tuple[int, int]], index: int
) -> _typing.Optional[_typing.Any]:
    argument: _typing.Any = node.args[position] if position < len(node.args) else None
    if not hasattr(argument, "meta"):
        return None
    specs = get_node_tensor_specs(argument)
    if len(specs) != 1 or specs[0] not in levels or specs[0] is out:
        return None
    donor, seen = specs[0], argument.meta["spec"]  # a view has the shape, its base the memory
    if donor.const or levels[donor][1] != index + 1 or _mem_id(donor) != _mem_id(out):
        return None
    if _root(donor) is not donor or _root(out) is not out or out.allocated_memory > donor.allocated_memory:
        return None
    if seen.scalar_type != out.scalar_type or list(map(int, seen.dim_order)) != list(map(int, out.dim_order)):
        return None
    if [str(each) for each in seen.shape] != [str(each) for each in out.shape]:
        return None
    if {seen.shape_dynamism, out.shape_dynamism} != {TensorShapeDynamism.STATIC}:
        # The shapes of the specs are upper bounds. Only the same expressions are the same shape in every run.
        if _expressions(argument) is None or _expressions(argument) != _expressions(node):
            return None
    # Another view of the donor among the arguments may be read at other elements.
    for other in node.all_input_nodes:
        if other is not argument and any(spec is donor for spec in get_node_tensor_specs(other)):
            return None
    return donor


def _expressions(node: _typing.Any) -> _typing.Optional[list[str]]:
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return None if value is None else [str(each) for each in value.shape]


def _plan(
    members: list[_typing.Any],
    levels: dict[_typing.Any, tuple[int, int]],
    donors: dict[_typing.Any, _typing.Any],
    alignment: int,
    work_limit: _typing.Optional[int],
) -> Plan:
    index_of = {id(spec): index for index, spec in enumerate(members)}
    lifetimes: list[dict[str, object]] = []
    for spec in members:
        first, last = levels[spec]
        life: dict[str, object] = {"bytes": spec.allocated_memory, "first": first, "last": last,
                                   "label": f"{str(spec.scalar_type).replace('torch.', '')}{list(spec.shape)}"}
        base = getattr(spec, "storage_base", None)
        if base is not None:
            if id(base) not in index_of:
                raise ValueError(f"{spec} shares the storage of {base}, which is not planned here; plan both or neither")
            life["alias"] = (index_of[id(base)], spec.storage_base_offset)
        elif spec in donors:
            life["reuse_in_place"] = index_of[id(donors[spec])]
        lifetimes.append(life)
    return plan(lifetimes, alignment=alignment, work_limit=work_limit)


def _say_shared(donors: dict[_typing.Any, _typing.Any]) -> None:
    """Names the tensors that are written in place, for ExecuTorch's own check of plans, which debug logging turns on."""
    for spec, donor in donors.items():
        if spec.mem_offset == donor.mem_offset and hasattr(spec, "storage_base"):
            spec.storage_base = donor
