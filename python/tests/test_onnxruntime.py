"""Berth's session is the engine's own session, with other memory: compared with it in every way of running a model."""
import gc
import json
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")

import berth  # noqa: E402
import berth.onnxruntime  # noqa: E402


def field(number, value):
    """One field of a protocol buffer message."""
    def varint(n):
        out = b""
        while n >= 0x80:
            out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
        return out + bytes([n])
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tiny_model(hidden=192, element=1, nodes=None):
    """Rows of 64 numbers through four matrix products; the number of rows is symbolic. The outputs are y and d."""
    def weights(name, rows, columns):
        values = ((np.arange(rows * columns) * 2654435761 % 2001).astype(np.float32) - 1000) / 8000
        values = values.astype({1: np.float32, 11: np.float64}[element])
        return field(1, rows) + field(1, columns) + field(2, element) + field(8, name) + field(9, values.tobytes())

    def node(kind, inputs, output):
        return b"".join(field(1, name) for name in inputs) + field(2, output) + field(3, "make " + output) + field(4, kind)

    def value(name):
        shape = field(1, field(2, "rows")) + field(1, field(1, 64))
        return field(1, name) + field(2, field(1, field(1, element) + field(2, shape)))

    nodes = nodes or [
        ("MatMul", ["x", "w1"], "a"), ("Relu", ["a"], "b"), ("MatMul", ["b", "w2"], "c"), ("Add", ["c", "x"], "d"),
        ("MatMul", ["d", "w1"], "e"), ("Sigmoid", ["e"], "f"), ("Mul", ["f", "b"], "g"), ("MatMul", ["g", "w2"], "y")]
    graph = b"".join(field(1, node(*each)) for each in nodes) + field(2, "tiny")
    graph += field(5, weights("w1", 64, hidden)) + field(5, weights("w2", hidden, 64))
    graph += field(11, value("x")) + field(12, value("y")) + field(12, value("d"))
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))


def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 64), dtype=np.float32)


def options(threads=1):
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    made.log_severity_level = 3
    return made


def stock(model):
    return onnxruntime.InferenceSession(model, options(), providers=["CPUExecutionProvider"])


def ours(model, **named):
    return berth.onnxruntime.InferenceSession(model, options(), providers=["CPUExecutionProvider"], **named)


def said(error):
    """An error without the addresses in its text."""
    return type(error), re.sub("0x[0-9a-f]+", "", str(error))


def same_bits(got, expected):
    return len(got) == len(expected) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(got, expected))


@pytest.fixture
def session():
    return ours(tiny_model())


def test_is_the_engines_session_and_its_package_is_the_engines_package(session):
    assert isinstance(session, onnxruntime.InferenceSession)
    reference = stock(tiny_model())
    for got, expected in [(session.get_inputs(), reference.get_inputs()), (session.get_outputs(), reference.get_outputs())]:
        assert [(a.name, a.shape, a.type) for a in got] == [(a.name, a.shape, a.type) for a in expected]
    assert session.get_providers() == reference.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == reference.get_provider_options()
    for name in dir(onnxruntime):
        if name not in ("InferenceSession", "SessionOptions") and not name.startswith("__"):
            assert getattr(berth.onnxruntime, name) is getattr(onnxruntime, name), name
    assert issubclass(berth.onnxruntime.SessionOptions, onnxruntime.SessionOptions)


def test_gives_the_engines_bits_and_serves_the_second_run_from_the_arena(session):
    reference = stock(tiny_model())
    for seed in range(4):
        feed = {"x": rows(7, seed)}
        assert same_bits(session.run(None, feed), reference.run(None, feed))
        memory = session.memory
        assert memory.recorded == (seed == 0) and memory.runs == seed + 1 and memory.requests > 3
        assert memory.deviated == 0 and (seed == 0 or memory.planned > 0)
    assert memory.plan.optimal and memory.problem is None and memory.outside == []
    assert memory.live_peak >= memory.planned_bytes == memory.plan.size <= memory.arena_bytes
    memory.plan.validate()


def test_runs_a_real_text_detector_with_the_same_bits():
    import importlib.util
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None:
        pytest.skip("the package rapidocr_onnxruntime, which has the model, is not installed")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "models" / "ch_PP-OCRv4_det_infer.onnx"
    session, reference = ours(path), stock(path)
    for shape in [(1, 3, 160, 224), (1, 3, 160, 224), (1, 3, 96, 96), (1, 3, 160, 224)]:
        feed = {"x": np.random.default_rng(1).random(shape, dtype=np.float32)}
        assert same_bits(session.run(None, feed), reference.run(None, feed))
    assert session.memory.deviated == 0 and session.memory.planned > 300


def test_outputs_stay_as_they_are_when_the_next_run_comes(session):
    first = session.run(None, {"x": rows(9, 1)})
    copies = [each.copy() for each in first]
    for seed in range(2, 6):
        session.run(None, {"x": rows(9, seed)})
    assert same_bits(first, copies)
    del session
    gc.collect()
    assert same_bits(first, copies)             # they outlive their session
    first[0][:] = 0                             # and are the caller's to write to


def test_gives_the_outputs_that_were_named_in_their_order(session):
    feed = {"x": rows(5)}
    y, d = session.run([], feed)
    assert same_bits(session.run(["d"], feed), [d])
    assert same_bits(session.run(["d", "y"], feed), [d, y])


def test_runs_with_values_of_the_engine_and_keeps_what_it_returns(session):
    reference = stock(tiny_model())
    kept, expected = [], []
    for seed in range(5):
        x = rows(11, seed)
        feed = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)}
        kept.append(session.run_with_ort_values(None, feed))
        expected.append(reference.run(None, {"x": x}))
    assert session.memory.deviated == 0
    del session
    gc.collect()
    for values, arrays in zip(kept, expected):
        assert same_bits([value.numpy() for value in values], arrays)


def test_runs_with_vectors_of_values(session):
    x = rows(6)
    expected = stock(tiny_model()).run(None, {"x": x})
    feeds, fetches = onnxruntime.capi._pybind_state.OrtValueVector(), onnxruntime.capi._pybind_state.OrtValueVector()
    feeds.push_back(onnxruntime.OrtValue.ortvalue_from_numpy(x)._ortvalue)
    device = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
    session.run_with_ortvaluevector(onnxruntime.RunOptions(), ["x"], feeds, ["y", "d"], fetches, [device, device])
    assert same_bits([value.numpy() for value in fetches], expected) and session.memory.runs == 1


@pytest.mark.parametrize("how", ["allocated by the engine", "a value of the caller", "memory of the caller"])
def test_runs_with_io_binding(session, how):
    reference = stock(tiny_model())
    binding = session.io_binding()
    assert isinstance(binding, onnxruntime.IOBinding)
    for seed in range(4):
        x = rows(10, seed)
        binding.bind_cpu_input("x", x)
        if how == "allocated by the engine":
            binding.bind_output("y", "cpu")
        elif how == "a value of the caller":
            out = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((10, 64), np.float32))
            binding.bind_ortvalue_output("y", out)
        else:
            memory = np.zeros((10, 64), np.float32)
            binding.bind_output("y", "cpu", 0, np.float32, (10, 64), memory.ctypes.data)
        session.run_with_iobinding(binding)
        expected = reference.run(["y"], {"x": x})
        assert same_bits(binding.copy_outputs_to_cpu(), expected)
        if how == "memory of the caller":
            assert same_bits([memory], expected)
    assert session.memory.runs == 4 and session.memory.deviated == 0 and session.memory.planned > 0
    plain = onnxruntime.IOBinding(session)      # one that the caller makes
    plain.bind_cpu_input("x", x)
    plain.bind_output("y", "cpu")
    session.run_with_iobinding(plain)
    assert same_bits(plain.copy_outputs_to_cpu(), expected)


def test_runs_asynchronously(session):
    reference = stock(tiny_model())
    two = berth.onnxruntime.InferenceSession(tiny_model(), options(2))  # the engine needs a thread of its own
    done, results = threading.Semaphore(0), {}

    def callback(outputs, seed, error):
        results[seed] = (outputs, error)
        done.release()

    for seed in range(6):
        feed = {"x": rows(8, seed)}  # held here: engines before 1.31 do not hold it themselves
        two.run_async(None, feed, callback, seed)
        done.acquire()
    for seed, (outputs, error) in results.items():
        assert error == "" and same_bits(outputs, reference.run(None, {"x": rows(8, seed)}))
    assert len(results) == 6 and two.memory.async_runs == 6


def test_threads_run_one_session_at_the_same_time(session):
    feeds = [{"x": rows(8 + i, i)} for i in range(4)]
    expected = [stock(tiny_model()).run(None, feed) for feed in feeds]
    wrong = []

    def work(i):
        for _ in range(20):
            if not same_bits(session.run(None, feeds[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and session.memory.runs == 80


def test_sessions_go_in_any_order():
    models = [tiny_model(hidden) for hidden in (64, 128, 256)]
    references = [stock(model) for model in models]
    for order in [(0, 1, 2), (2, 1, 0), (1, 0, 2)]:
        sessions = [ours(model) for model in models]
        feed = {"x": rows(16)}
        for _ in range(3):
            for each, reference in zip(sessions, references):
                assert same_bits(each.run(None, feed), reference.run(None, feed))
        assert all(each.memory.deviated == 0 for each in sessions)
        del each
        for index in order:
            sessions[index] = None
            gc.collect()
            for other, reference in zip(sessions, references):
                if other is not None:
                    assert same_bits(other.run(None, feed), reference.run(None, feed))


def test_the_engine_does_not_keep_a_dead_tensor_for_a_later_one():
    # By itself the engine keeps the memory of b for e, so that it is held while c and s are live.
    model = tiny_model(nodes=[
        ("MatMul", ["x", "w1"], "a"), ("MatMul", ["a", "w2"], "b"), ("MatMul", ["b", "w1"], "c"), ("Mul", ["c", "c"], "s"),
        ("MatMul", ["s", "w2"], "e"), ("Relu", ["e"], "d"), ("MatMul", ["e", "w1"], "f"), ("MatMul", ["f", "w2"], "y")])
    feed, (small, large) = {"x": rows(500)}, (500 * 64 * 4, 500 * 192 * 4)
    expected = stock(model).run(None, feed)
    released, kept = ours(model), ours(model, engine_reuse=True)
    for session in (released, kept):
        for _ in range(2):
            assert same_bits(session.run(None, feed), expected)
    assert released.memory.live_peak == 2 * large
    assert kept.memory.live_peak == 2 * large + small
    berth.onnxruntime.attach(engine_reuse=True)
    try:
        attached = stock(model)
        attached.run(None, feed)
        assert attached.memory.live_peak == kept.memory.live_peak
    finally:
        berth.onnxruntime.detach()
    made = options()
    berth.onnxruntime.InferenceSession(model, made)
    assert made.enable_mem_reuse, "the user's options are as they were"


def test_options_are_the_engines(tmp_path):
    made = options()
    made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    made.inter_op_num_threads = 2
    made.enable_profiling = True
    made.profile_file_prefix = str(tmp_path / "profile")
    made.add_free_dimension_override_by_name("rows", 5)
    session = berth.onnxruntime.InferenceSession(tiny_model(), made)
    assert made.enable_mem_pattern, "the user's options are as they were"
    assert session.get_inputs()[0].shape == [5, 64]
    used = session.get_session_options()
    assert used.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert used.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    feed = {"x": rows(5)}
    reference = onnxruntime.InferenceSession(tiny_model(), options())
    for _ in range(4):
        assert same_bits(session.run(None, feed), reference.run(None, feed))
    profile = session.end_profiling()
    assert pathlib.Path(profile).parent == tmp_path
    assert any(event["name"].startswith("make") for event in json.loads(pathlib.Path(profile).read_text()))


def test_options_may_be_used_again_by_a_session_of_the_engine():
    made, feed = options(), {"x": rows(3)}
    expected = stock(tiny_model()).run(None, feed)
    for make in (berth.onnxruntime.InferenceSession, onnxruntime.InferenceSession, berth.onnxruntime.InferenceSession):
        each = make(tiny_model(), made)
        for _ in range(3):
            assert same_bits(each.run(None, feed), expected)


def test_run_options_are_the_engines(session):
    feed = {"x": rows(3)}
    run_options = onnxruntime.RunOptions()
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    expected = stock(tiny_model()).run(None, feed)
    for _ in range(3):
        assert same_bits(session.run(None, feed, run_options), expected)
    run_options.terminate = True
    with pytest.raises(Exception, match="[Tt]erminate"):
        session.run(None, feed, run_options)
    run_options.terminate = False
    assert same_bits(session.run(None, feed, run_options), expected)


def test_says_which_providers_manage_their_own_memory():
    names = [name for name in onnxruntime.get_available_providers() if name != "CPUExecutionProvider"]
    if not names:
        pytest.skip("this engine has no other provider")
    session = berth.onnxruntime.InferenceSession(tiny_model(), options(), [*names, "CPUExecutionProvider"])
    assert session.memory.outside == [f"{name} manages its own memory" for name in names]
    assert names[0] in repr(session.memory)
    feed = {"x": rows(3)}
    expected = stock(tiny_model()).run(None, feed)
    assert same_bits(session.run(None, feed), expected)
    session.set_providers(["CPUExecutionProvider"])
    for _ in range(3):
        assert same_bits(session.run(None, feed), expected)
    assert session.memory.outside == [] and session.memory.deviated == 0 and session.memory.planned > 0


def test_the_report_shows_itself(session):
    assert repr(session.memory) == "<MemoryReport: no run yet>"
    assert session.memory.planned_bytes == 0 and "iframe" not in session.memory._repr_html_()
    with pytest.raises(ValueError, match="no plan yet"):
        session.memory.to_html()
    session.run(None, {"x": rows(6)})
    assert "recorded" in repr(session.memory)
    session.run(None, {"x": rows(6)})
    memory = session.memory
    assert f"{memory.planned} from the arena, 0 off the plan" in repr(memory)
    assert "<iframe" in memory._repr_html_() and "<html" in memory.to_html("Tiny").lower()


class Odd:
    """Something that claims to have a shape."""

    def __init__(self, shape):
        self.shape = shape


class Raising:
    @property
    def shape(self):
        raise RuntimeError("not now")


@pytest.mark.parametrize("arguments", [
    (None, {}),
    (None, {"x": rows(2), "z": rows(2)}),
    (None, {"x": rows(2).astype(np.float64)}),
    (None, {"x": rows(2)[:, :5]}),
    (None, {"x": rows(2)[0]}),
    (None, {"x": "text"}),
    (None, {"x": [1.0, "two"]}),
    (None, {"x": Odd((1 << 80, 64))}),
    (None, {"x": Odd("no numbers")}),
    (None, {"x": Odd(7)}),
    (None, {"x": Raising()}),
    (None, {"\ud800": rows(2)}),
    (None, None),
    (["z"], {"x": rows(2)}),
    (5, {"x": rows(2)}),
    (None, {"x": rows(2)}, "no options"),
])
def test_refuses_what_the_engine_refuses_and_goes_on(session, arguments):
    reference = stock(tiny_model())
    with pytest.raises(Exception) as expected:
        reference.run(*arguments)
    with pytest.raises(Exception) as got:
        session.run(*arguments)
    assert said(got.value) == said(expected.value)
    for _ in range(3):
        assert same_bits(session.run(None, {"x": rows(2)}), reference.run(None, {"x": rows(2)}))


@pytest.mark.parametrize("model", ["none.onnx", b"", b"not a model", 5, None])
def test_refuses_models_that_the_engine_refuses(model, capsys):
    with pytest.raises(Exception) as expected:
        onnxruntime.InferenceSession(model)
    with pytest.raises(Exception) as got:
        berth.onnxruntime.InferenceSession(model)
    assert said(got.value) == said(expected.value)


def test_names_the_command_that_installs_a_missing_engine(tmp_path):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('No module named onnxruntime')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport berth\ntry: berth.onnxruntime\nexcept ImportError as e: print(e)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install onnxruntime" in printed


SETTINGS = """
import sys, threading
import numpy as np
sys.path.insert(0, sys.argv[1])
import berth.onnxruntime as ort
from test_onnxruntime import rows, tiny_model
"""


def in_a_process(program):
    """Runs it where no session has been made yet."""
    subprocess.run([sys.executable, "-c", SETTINGS + program, str(pathlib.Path(__file__).parent)], check=True, timeout=120)


def test_settings_are_checked_and_hold_from_the_first_session_on():
    in_a_process("""
wrong = [("decay", -1), ("decay", float("nan")), ("decay", "soon"), ("max_arenas", 0), ("max_arenas", 1 << 32),
         ("max_arenas", 1.5), ("max_arenas", True), ("when_full", "fail"), ("max_plans", 0), ("max_plan_bytes", -1)]
for name, value in wrong:
    try:
        ort.configure(**{name: value})
    except ValueError:
        continue
    raise SystemExit(f"{name}={value!r} was taken")
try:
    ort.configure(arenas=2)
    raise SystemExit("an unknown name was taken")
except TypeError:
    pass
assert ort.give_back() == ort.give_back(now=True) == 0
ort.configure(decay=float("inf"), max_arenas=2, when_full="pool", max_plans=3)
session = ort.InferenceSession(tiny_model())
for count in range(1, 40):
    session.run(None, {"x": rows(count)})
assert session.memory.plans <= 3, session.memory.plans
assert session.memory.given_back == 0
ort.configure(max_arenas=2)
try:
    ort.configure(max_arenas=3)
    raise SystemExit("the memory is there already")
except RuntimeError:
    pass
""")


def test_runs_that_overlap_have_no_more_arenas_than_there_are_processors():
    program = """
import os
def largest(**settings):
    if settings:
        ort.configure(**settings)
    session = ort.InferenceSession(tiny_model())
    expected = session.run(None, {"x": rows(300)})
    begun = threading.Barrier(8)
    def work():
        begun.wait()
        for _ in range(50):
            for got, wanted in zip(session.run(None, {"x": rows(300)}), expected):
                assert got.tobytes() == wanted.tobytes()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    memory = session.memory
    assert memory.runs >= 401 and memory.planned > 0 and memory.deviated == 0, memory
    return memory.arenas
"""
    in_a_process(program + "assert 1 <= largest() <= len(os.sched_getaffinity(0))")
    in_a_process(program + "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nassert largest(max_arenas=1) == 1")
    in_a_process(program + "assert 1 <= largest(max_arenas=None) <= 8")


def test_memory_is_given_back_to_the_system_on_request():
    in_a_process("""
ort.configure(decay=0)
def resident():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
session = ort.InferenceSession(tiny_model(2048))
small, large = {"x": rows(8)}, {"x": rows(6000)}
for _ in range(3):
    session.run(None, small)
before = resident()
for _ in range(3):
    session.run(None, large)
large_arena = session.memory.arena_bytes
assert resident() - before > 40 << 20 and large_arena > 40 << 20
expected = session.run(None, small)
assert ort.give_back() == 0, "a decay of 0 is never"
assert ort.give_back(now=True) >= large_arena
assert session.memory.arena_bytes == 0 and session.memory.given_back >= large_arena
assert resident() - before < 8 << 20
for got, wanted in zip(session.run(None, small), expected):
    assert got.tobytes() == wanted.tobytes()
""")
