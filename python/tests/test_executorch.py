"""Plans of ExecuTorch programs, run by the released runtime. Only where torch and executorch are installed."""
import functools
import logging
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, memory, to_edge  # noqa: E402
from executorch.exir.memory_planning import greedy  # noqa: E402
from executorch.exir.passes import MemoryPlanningPass  # noqa: E402
from executorch.exir.tensor import TensorSpec  # noqa: E402
from executorch.runtime import Runtime  # noqa: E402

from berth.executorch import IN_PLACE, _donors, _levels, planner  # noqa: E402

without = functools.partial(planner, in_place=False)


def always_in_place(alignment, specs, graph_module, graph_signature=None, extra_padding=0, table=IN_PLACE):
    """A plan in which every output that may be written in place is, whether that saves memory or not."""
    end = 0
    donors = _donors(specs, _levels(specs, graph_module), graph_module, table)
    for spec in sorted(specs, key=lambda spec: spec.lifetime[0]):
        spec.realign(alignment)
        spec.mem_id, spec.mem_offset = 1, donors[spec].mem_offset if spec in donors else end
        end = max(end, spec.mem_offset + spec.allocated_memory)
    return [0, end]


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def lower(module, inputs, algorithm=None, dynamic_shapes=None, **options):
    """The program of a module, or of a function, with its memory planned by `algorithm`."""
    module = module if isinstance(module, torch.nn.Module) else Function(module)
    exported = torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic_shapes, strict=False)
    edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    planning = MemoryPlanningPass(memory_planning_algo=algorithm, **options)
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


def sizes(program):
    return list(program.executorch_program.execution_plan[0].non_const_buffer_sizes)


def run(program, inputs):
    return list(Runtime.get().load_program(program.buffer).load_method("forward").execute(inputs))


def same_bits(ours, theirs):
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype
        and a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
        for a, b in zip(ours, theirs))


def kernels(program):
    """Each kernel of a program: its name, the offset of its first output, and the offsets of its arguments."""
    found = []
    for node in program.exported_program().graph.nodes:
        schema = getattr(node.target, "_schema", None)
        outs = [each.name for each in schema.arguments if each.is_out] if schema else []
        if outs and outs[0] in node.kwargs:
            arguments = [arg.meta["spec"].mem_offset if hasattr(arg, "meta") and "spec" in arg.meta else None
                         for arg in node.args]
            found.append((f"{schema.name}.{schema.overload_name}", node.kwargs[outs[0]].meta["spec"].mem_offset,
                          arguments))
    return found


# Shapes on both sides of the paths of the kernels: less than a vector, tails, rows, and enough for several threads.
SHAPES = ((1,), (7,), (3, 5), (2, 3, 17, 19), (33, 1000), (1, 8, 64, 64))


def values(shape, dtype, seed):
    made = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    if not dtype.is_floating_point:
        return torch.randint(1, 50, shape, generator=made).to(dtype)
    return (torch.rand(shape, generator=made) * 0.9 + 0.05).to(dtype)


def unary(function, dtypes=(torch.float32, torch.float16)):
    return [(lambda *xs: tuple(function(x) for x in xs), tuple(values(s, dtype, i) for i, s in enumerate(SHAPES)))
            for dtype in dtypes]


def signed(function):
    """For functions whose paths depend on the sign or go beyond 1."""
    return [(lambda *xs: tuple(function(x) for x in xs),
             tuple(values(s, dtype, i) * 8 - 4 for i, s in enumerate(SHAPES))) for dtype in (torch.float32, torch.float16)]


# (shape of the first argument, of the second): equal, and broadcast in each way of the other argument.
PAIRS = (((7,), (7,)), ((33, 1000), (33, 1000)), ((3, 5), (5,)), ((3, 5), (3, 1)), ((2, 3, 17, 19), (1, 3, 1, 1)),
         ((2, 8, 16, 16), (2, 8, 1, 1)), ((4, 6), (1,)))


def binary(function, dtypes=(torch.float32, torch.int32)):
    cases = []
    for dtype in dtypes:
        for turned in (False, True):
            arguments = [values(shape, dtype, i) for i, pair in enumerate(PAIRS)
                         for shape in (reversed(pair) if turned else pair)]
            cases.append((lambda *xs: tuple(function(a, b) for a, b in zip(xs[::2], xs[1::2])), tuple(arguments)))
    return cases


def rows(function):
    return [(lambda *xs: tuple(function(x, dim) for x in xs for dim in ([0] if x.dim() == 1 else [x.dim() - 1])),
             tuple(values(s, torch.float32, i) * 8 - 4 for i, s in enumerate(SHAPES))),
            (lambda *xs: tuple(function(x, 1) for x in xs),
             tuple(values(s, torch.float32, i) * 8 - 4 for i, s in enumerate(((3, 5, 2), (2, 33, 17, 19), (1, 64, 100)))))]


def normalised(make, shapes):
    """A module with weights of its own for each shape, because they cannot be shared."""
    torch.manual_seed(1)
    layers = torch.nn.ModuleList([make(shape) for shape in shapes])
    for layer in layers:
        for name, each in [*layer.named_parameters(), *layer.named_buffers()]:
            if each.is_floating_point():
                each.data = torch.rand_like(each) + 0.5

    class Each(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, *xs):
            return tuple(layer(x) for layer, x in zip(self.layers, xs))

    return [(Each(), tuple(values(shape, torch.float32, i) * 8 - 4 for i, shape in enumerate(shapes)))]


IMAGES = ((1, 2, 3, 5), (2, 6, 17, 19), (1, 32, 32, 32))
F = torch.nn.functional
# A module or function and its inputs for each kernel: of each kernel of that name, the output may take an input over.
CASES = {
    **{f"aten::{name}.out": lambda name=name: unary(getattr(torch, name)) for name in
       ("acos", "asin", "atan", "atanh", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt")},
    **{f"aten::{name}.out": lambda name=name: signed(getattr(torch, name)) for name in
       ("abs", "asinh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "neg", "relu", "round", "sigmoid", "sign",
        "sin", "sinh", "tan", "tanh", "trunc")},
    "aten::acosh.out": lambda: unary(lambda x: torch.acosh(x + 1.5)),
    "aten::bitwise_not.out": lambda: unary(torch.bitwise_not, (torch.int32, torch.bool)),
    "aten::logical_not.out": lambda: unary(torch.logical_not, (torch.bool,)),
    "aten::clamp.out": lambda: signed(lambda x: torch.clamp(x, -0.5, 1.5)),
    "aten::elu.out": lambda: signed(F.elu),
    "aten::gelu.out": lambda: signed(F.gelu) + signed(lambda x: F.gelu(x, approximate="tanh")),
    "aten::hardtanh.out": lambda: signed(F.relu6),
    "aten::leaky_relu.out": lambda: signed(F.leaky_relu),
    "aten::_softmax.out": lambda: rows(lambda x, dim: torch.softmax(x, dim)),
    "aten::_log_softmax.out": lambda: rows(lambda x, dim: torch.log_softmax(x, dim)),
    "aten::native_layer_norm.out": lambda: normalised(
        lambda shape: torch.nn.LayerNorm(shape[-1:]), ((3, 5), (2, 7, 33), (1, 64, 256))) + normalised(
        lambda shape: torch.nn.LayerNorm(shape[-2:]), ((3, 5, 4),)),
    "aten::native_group_norm.out": lambda: normalised(lambda shape: torch.nn.GroupNorm(2, shape[1]), IMAGES),
    "aten::_native_batch_norm_legit_no_training.out": lambda: normalised(
        lambda shape: torch.nn.BatchNorm2d(shape[1]), IMAGES),
    **{f"aten::{name}.out": lambda name=name: binary(getattr(torch, name)) for name in
       ("add", "maximum", "minimum", "mul", "sub")},
    **{f"aten::{name}.out": lambda name=name: binary(getattr(torch, name), (torch.float32,)) for name in
       ("atan2", "div")},
    "aten::add.Scalar_out": lambda: unary(lambda x: torch.ops.aten.add.Scalar(x, 2)),
    "aten::div.Scalar_out": lambda: unary(lambda x: torch.ops.aten.div.Scalar(x, 3)),
    "aten::mul.Scalar_out": lambda: unary(lambda x: torch.ops.aten.mul.Scalar(x, 3)),
    "aten::sub.Scalar_out": lambda: unary(lambda x: torch.ops.aten.sub.Scalar(x, 2)),
    "aten::pow.Tensor_Scalar_out": lambda: unary(lambda x: torch.pow(x, 3)) + unary(lambda x: torch.pow(x, 0.5)),
    "aten::where.self_out": lambda: binary(lambda a, b: torch.where(torch.gt(a, 0.5), a, b), (torch.float32,)),
}


@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_a_kernel_that_writes_over_its_argument_gives_the_same_bits(name):
    in_place = dict.fromkeys(IN_PLACE[name], 0)
    for module, inputs in CASES[name]():
        expected = run(lower(module, inputs), inputs)
        for position in in_place:
            planned = lower(module, inputs, functools.partial(always_in_place, table={name: (position,)}))
            calls = [(out, arguments) for kernel, out, arguments in kernels(planned) if kernel == name]
            assert calls, f"{name} is not in the program: {sorted({kernel for kernel, *_ in kernels(planned)})}"
            in_place[position] += sum(arguments[position] == out for out, arguments in calls)
            assert same_bits(run(planned, inputs), expected)
    assert all(count >= len(calls) for count in in_place.values()), in_place


@pytest.mark.parametrize("name, function", [("aten::flip.out", lambda x: torch.flip(x, (0, 1))),
                                            ("aten::permute_copy.out", lambda x: torch.permute(x, (1, 0)))])
def test_a_kernel_that_must_not_write_over_its_argument_is_noticed(name, function):
    inputs = (values((33, 33), torch.float32, 1),)
    broken = lower(function, inputs, functools.partial(always_in_place, table={name: (0,)}))
    calls = [(out, arguments[0]) for kernel, out, arguments in kernels(broken) if kernel == name]
    assert calls and all(out == argument for out, argument in calls)
    assert not same_bits(run(broken, inputs), run(lower(function, inputs), inputs))


class Residual(torch.nn.Module):
    """Convolutions, normalisations, activations, a skip connection, a view and a matrix product."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 12, 3, padding=1), torch.nn.BatchNorm2d(12), torch.nn.ReLU6())
        self.wide = torch.nn.Sequential(torch.nn.Conv2d(12, 24, 3, padding=1), torch.nn.BatchNorm2d(24), torch.nn.Hardtanh(),
                                        torch.nn.Conv2d(24, 12, 1))
        self.last = torch.nn.Linear(12 * 16, 5)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(x + self.wide(x))
        x = torch.nn.functional.avg_pool2d(x, 4)
        return torch.softmax(self.last(x.reshape(x.shape[0], -1)), -1)


PICTURE = (values((2, 3, 16, 16), torch.float32, 5),)
OTHER = (values((2, 3, 16, 16), torch.float32, 6) * 3,)


def test_a_network_has_the_same_outputs_in_less_memory():
    stock, planned, in_place = (lower(Residual(), PICTURE, algorithm) for algorithm in (None, without, planner))
    assert sum(sizes(in_place)) < sum(sizes(planned)) <= sum(sizes(stock))
    for inputs in (PICTURE, OTHER):
        expected = run(stock, inputs)
        assert same_bits(run(planned, inputs), expected) and same_bits(run(in_place, inputs), expected)
    assert not same_bits(run(stock, PICTURE), run(stock, OTHER))  # otherwise the comparison proves nothing


@pytest.mark.parametrize("algorithm", [without, planner])
def test_a_broken_plan_changes_the_outputs(algorithm):
    def broken(alignment, specs, *rest):
        found = algorithm(alignment, specs, *rest)
        longest = max((spec for spec in specs if spec.lifetime[0] > 0), key=lambda spec: spec.lifetime[1] - spec.lifetime[0])
        inside = [spec for spec in specs if longest.lifetime[0] + 1 < spec.lifetime[0]
                  and spec.lifetime[1] < longest.lifetime[1]]
        longest.mem_offset = max(inside, key=lambda spec: spec.allocated_memory).mem_offset
        return found

    assert not same_bits(run(lower(Residual(), PICTURE, broken), PICTURE), run(lower(Residual(), PICTURE), PICTURE))


def test_the_report_has_a_plan_that_meets_its_bound():
    plans = {}
    program = lower(Residual(), PICTURE, functools.partial(planner, report=plans.__setitem__))
    assert list(plans) == [1] and [0, plans[1].size] == sizes(program)
    assert plans[1].optimal
    plans[1].validate()


def test_an_argument_that_is_read_later_is_kept():
    def function(x):
        y = x * 2
        z = torch.sigmoid(y)
        return z + y

    inputs = (values((64, 64), torch.float32, 7),)
    program = lower(function, inputs, planner)
    sigmoid = next(call for call in kernels(program) if call[0] == "aten::sigmoid.out")
    assert sigmoid[1] != sigmoid[2][0]
    assert same_bits(run(program, inputs), run(lower(function, inputs), inputs))


def test_an_argument_of_another_shape_or_type_is_kept():
    def function(x, row, whole):
        return x + row, torch.add(whole, 0.5 * x)

    inputs = (values((8, 8), torch.float32, 1), values((8,), torch.float32, 2), values((8, 8), torch.int32, 3))
    program = lower(function, inputs, planner)
    assert same_bits(run(program, inputs), run(lower(function, inputs), inputs))


def test_two_views_of_one_argument_are_not_written_over():
    def function(x):
        y = torch.exp(x)
        return y.view(4, 16).view(1, 8, 8) + y.view(8, 1, 8).view(1, 8, 8)

    inputs = (values((64,), torch.float32, 8),)
    program = lower(function, inputs, planner)
    assert same_bits(run(program, inputs), run(lower(function, inputs), inputs))


@pytest.mark.parametrize("alignment", [1, 16, 64, 4096])
def test_alignment_is_respected(alignment):
    program = lower(Residual(), PICTURE, planner, alignment=alignment)
    offsets = [out for _, out, _ in kernels(program)]
    assert offsets and all(offset % alignment == 0 for offset in offsets)
    assert same_bits(run(program, PICTURE), run(lower(Residual(), PICTURE), PICTURE))


def test_an_alignment_that_is_no_power_of_two_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        lower(Residual(), PICTURE, planner, alignment=24)


def test_several_memory_ids_are_planned_each_by_itself():
    class Sorted(MemoryPlanningPass):
        """Puts tensors with more than 8 KiB into memory 2."""

        def run(self, graph_module, graph_signature=None):
            for node in graph_module.graph.nodes:
                spec = node.meta.get("spec")
                for each in spec if isinstance(spec, (list, tuple)) else [spec]:
                    if isinstance(each, TensorSpec) and not each.const:
                        each.mem_id = 2 if each.allocated_memory > 8192 else 1
            return super().run(graph_module, graph_signature)

    def lowered(algorithm):
        exported = torch.export.export(Residual().eval(), PICTURE, strict=False)
        config = ExecutorchBackendConfig(memory_planning_pass=Sorted(memory_planning_algo=algorithm))
        return to_edge(exported).to_executorch(config)

    stock, ours = lowered(None), lowered(planner)
    assert len(sizes(stock)) == len(sizes(ours)) == 3 and all(a <= b for a, b in zip(sizes(ours), sizes(stock)))
    assert sum(sizes(ours)) < sum(sizes(stock)) and sizes(ours)[1] > 0 and sizes(ours)[2] > 0
    for node in ours.exported_program().graph.nodes:
        spec = node.meta.get("spec")
        if isinstance(spec, TensorSpec) and spec.mem_id is not None and node.target is memory.alloc:
            assert spec.mem_id == (2 if spec.allocated_memory > 8192 else 1)
    assert same_bits(run(ours, PICTURE), run(stock, PICTURE))


def test_inputs_and_outputs_may_be_the_callers():
    options = {"alloc_graph_input": False, "alloc_graph_output": False}
    ours, stock = lower(Residual(), PICTURE, planner, **options), lower(Residual(), PICTURE, **options)
    assert 0 < sum(sizes(ours)) < sum(sizes(stock))
    before = PICTURE[0].clone()
    method = Runtime.get().load_program(ours.buffer).load_method("forward")
    assert len(method.execute(PICTURE)) == 1
    assert PICTURE[0].equal(before)  # a caller's tensor is never written over


def test_shapes_that_change_from_run_to_run_are_planned_for_the_largest():
    rows = torch.export.Dim("rows", min=1, max=64)

    def function(x, y):
        return torch.softmax(torch.relu(x * 2) + y, -1)

    largest = (values((64, 32), torch.float32, 1), values((1, 32), torch.float32, 2))
    shapes = ({0: rows}, None)
    stock, ours = lower(function, largest, None, shapes), lower(function, largest, planner, shapes)
    assert sum(sizes(ours)) < sum(sizes(stock))
    for count in (64, 1, 17):
        inputs = (values((count, 32), torch.float32, count), largest[1])
        assert same_bits(run(ours, inputs), run(stock, inputs))


def test_a_buffer_that_is_changed_keeps_its_value_between_runs():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sum", torch.zeros(64))

        def forward(self, x):
            self.sum.add_(torch.relu(x * 3))
            return torch.tanh(self.sum + x)

    inputs = (values((64,), torch.float32, 4),)
    answers = []
    for algorithm in (None, planner):
        method = Runtime.get().load_program(lower(Counter(), inputs, algorithm).buffer).load_method("forward")
        answers.append([method.execute(inputs)[0].clone() for _ in range(3)])
    assert same_bits(*answers) and not answers[0][0].equal(answers[0][2])


def test_subgraphs_of_a_condition_have_room_of_their_own():
    class Branches(torch.nn.Module):
        def forward(self, x):
            y = torch.exp(x)
            z = torch.cond(x.sum() > 0, lambda a: torch.sigmoid(a * 2 + 1) - a, lambda a: torch.tanh(a * 5) * a, (y,))
            return z + y

    inputs = (values((32, 32), torch.float32, 9),)
    stock, ours = lower(Branches(), inputs), lower(Branches(), inputs, planner)
    assert sum(sizes(ours)) <= sum(sizes(stock))
    for each in (inputs, (-inputs[0],)):
        assert same_bits(run(ours, each), run(stock, each))


def test_executorch_finds_nothing_wrong_with_a_plan(caplog):
    with caplog.at_level(logging.DEBUG):  # which turns on its check that no two live tensors share storage
        program = lower(Residual(), PICTURE, planner)
    assert any("reuses storage" in record.message for record in caplog.records)
    assert any(out in arguments for _, out, arguments in kernels(program))


class Graph:
    """As much of a graph as the planner asks for when there is no kernel in it."""

    class graph:
        nodes = ()


def test_no_plan_is_larger_than_that_of_executorch():
    for seed in range(40):
        made = random.Random(seed)
        specs = []
        for _ in range(made.randrange(2, 60)):
            spec = TensorSpec(torch.float32, torch.Size([made.choice((made.randrange(1, 4000), 64, 1024))]))
            first = made.randrange(0, 80)
            spec.lifetime = [first, first + made.randrange(0, 12)]
            spec.mem_id = made.choice((None, None, 1, 2))
            specs.append(spec)
        theirs = greedy(16, specs, Graph(), None).bufsizes
        ours = planner(16, specs, Graph(), None)
        assert all(a <= b for a, b in zip(ours, theirs)), f"seed {seed}: {ours} {theirs}"


def test_storage_that_is_shared_by_name_stays_shared():
    base, part, other = (TensorSpec(torch.float32, torch.Size([size])) for size in (64, 16, 64))
    base.lifetime, part.lifetime, other.lifetime = [0, 3], [1, 5], [2, 4]
    part.storage_base, part.storage_base_offset = base, 128
    assert planner(16, [base, part, other], Graph(), None) == [0, 512]
    assert part.mem_offset == base.mem_offset + 128 and other.mem_offset != base.mem_offset
    with pytest.raises(ValueError, match="not planned here"):
        planner(16, [part, other], Graph(), None)


def test_tensors_without_bytes_and_graphs_without_tensors_are_planned():
    empty = TensorSpec(torch.float32, torch.Size([0, 3]))
    empty.lifetime = [0, 1]
    assert planner(16, [empty], Graph(), None) == [0, 0] and empty.mem_offset == 0
    assert planner(16, [], Graph(), None) == [0, 0]
    graph = Graph()
    graph.input_mem_buffer_sizes = [0, 100]  # of a subgraph
    assert planner(16, [], graph, None) == [0, 112]
