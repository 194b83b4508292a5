"""Sessions with Berth as the engine's memory, beside the engine's own sessions. Needs the onnxruntime package."""
import gc
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import berth

onnxruntime = pytest.importorskip("onnxruntime")


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


def tiny_model(hidden=192, element=1):
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

    nodes = [("MatMul", ["x", "w1"], "a"), ("Relu", ["a"], "b"), ("MatMul", ["b", "w2"], "c"), ("Add", ["c", "x"], "d"),
             ("MatMul", ["d", "w1"], "e"), ("Sigmoid", ["e"], "f"), ("Mul", ["f", "b"], "g"), ("MatMul", ["g", "w2"], "y")]
    graph = b"".join(field(1, node(*each)) for each in nodes) + field(2, "tiny")
    graph += field(5, weights("w1", 64, hidden)) + field(5, weights("w2", hidden, 64))
    graph += field(11, value("x")) + field(12, value("y")) + field(12, value("d"))
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))


def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 64), dtype=np.float32)


def stock(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def same_bits(ours, theirs):
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(ours, theirs))


@pytest.fixture
def session():
    # pytest itself holds this until after the test: what a session leaves behind is for tests that make their own.
    return berth.onnxruntime.session(tiny_model(), threads=1)


def test_gives_the_engines_bits_and_serves_the_second_run_from_the_arena(session):
    reference = stock(tiny_model())
    for seed in range(3):
        feed = {"x": rows(7, seed)}
        assert same_bits(session.run(None, feed), reference.run(None, feed))
        memory = session.memory
        assert memory.recorded == (seed == 0) and memory.runs == seed + 1 and memory.requests > 3
        if seed > 0:
            assert (memory.planned, memory.deviated) == (memory.requests, 0)
    assert memory.plan.optimal and memory.problem is None
    assert memory.live_peak <= memory.planned_bytes == memory.plan.size <= memory.arena_bytes
    memory.plan.validate()


def test_runs_a_real_text_detector_with_the_same_bits(no_leak):
    import importlib.util
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None:
        pytest.skip("the package rapidocr_onnxruntime, which has the model, is not installed")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "models" / "ch_PP-OCRv4_det_infer.onnx"
    session, reference = berth.onnxruntime.session(path, threads=1), stock(str(path))
    for shape in [(1, 3, 160, 224), (1, 3, 160, 224), (1, 3, 96, 96), (1, 3, 160, 224)]:
        feed = {"x": np.random.default_rng(1).random(shape, dtype=np.float32)}
        assert same_bits(session.run(None, feed), reference.run(None, feed))
    memory = session.memory
    assert (memory.planned, memory.deviated, memory.plans) == (memory.requests, 0, 2)
    assert memory.arena_bytes == memory.planned_bytes
    assert [each.shape for each in session.get_inputs()] == [each.shape for each in reference.get_inputs()]


def test_every_set_of_shapes_has_a_plan_of_its_own(session):
    sizes = {}
    for count in (3, 40, 3, 40, 3):
        session.run(None, {"x": rows(count)})
        memory = session.memory
        assert memory.recorded == (count not in sizes)
        assert sizes.setdefault(count, memory.planned_bytes) == memory.planned_bytes
        assert memory.deviated == 0
    assert sizes[3] < sizes[40] == memory.arena_bytes and memory.plans == 2


def test_outputs_stay_as_they_are_when_the_next_run_comes(session):
    first = session.run(None, {"x": rows(9, 1)})
    copies = [each.copy() for each in first]
    for seed in range(2, 6):
        session.run(None, {"x": rows(9, seed)})
    assert same_bits(first, copies)
    assert session.memory.deviated == 0
    first[0][:] = 0                                 # they are the caller's to write to


def test_gives_the_outputs_that_were_named_in_their_order(session):
    feed = {"x": rows(5)}
    y, d = session.run([], feed)
    assert same_bits(session.run(["d"], feed), [d])
    assert same_bits(session.run(["d", "y"], feed), [d, y])


def test_takes_strided_and_frozen_inputs(session):
    x = rows(12)
    frozen = x[::2].copy()
    frozen.flags.writeable = False
    assert same_bits(session.run(None, {"x": x[::2]}), session.run(None, {"x": frozen}))


def test_describes_the_model_as_the_engine_does(session):
    reference = stock(tiny_model())
    for ours, theirs in [(session.get_inputs(), reference.get_inputs()), (session.get_outputs(), reference.get_outputs())]:
        assert [(a.name, a.shape, a.type) for a in ours] == [(a.name, a.shape, a.type) for a in theirs]
    assert session.get_inputs()[0].shape == ["rows", 64] and session.get_inputs()[0].type == "tensor(float)"
    assert session.get_providers() == reference.get_providers() == ["CPUExecutionProvider"]
    assert repr(session) == "<berth.onnxruntime.Session x['rows', 64] -> y['rows', 64], d['rows', 64]>"


def test_runs_doubles(no_leak):
    model = tiny_model(element=11)
    session, feed = berth.onnxruntime.session(model, threads=1), {"x": rows(4).astype(np.float64)}
    assert session.get_inputs()[0].type == "tensor(double)"
    assert same_bits(session.run(None, feed), stock(model).run(None, feed))


def test_sessions_share_one_arena_and_go_in_any_order(no_leak):
    models = [tiny_model(hidden) for hidden in (64, 128, 256)]
    references = [stock(model) for model in models]
    for order in [(0, 1, 2), (2, 1, 0), (1, 0, 2)]:
        sessions = [berth.onnxruntime.session(model, threads=1) for model in models]
        feed = {"x": rows(16)}
        for _ in range(3):
            for session, reference in zip(sessions, references):
                assert same_bits(session.run(None, feed), reference.run(None, feed))
        assert all(each.memory.deviated == 0 for each in sessions)
        assert sessions[0].memory.arena_bytes == max(each.memory.planned_bytes for each in sessions)
        outputs = sessions[1].run(None, feed)
        kept, report = [each.copy() for each in outputs], sessions[1].memory
        del session
        for index in order:
            sessions[index] = None
            gc.collect()
            for other, reference in zip(sessions, references):
                if other is not None:
                    assert same_bits(other.run(None, feed), reference.run(None, feed))
        assert same_bits(outputs, kept) and report.plan.size > 0    # both outlive their session


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


def test_the_report_shows_itself(session):
    assert repr(session.memory) == "<berth.onnxruntime.MemoryReport: no run yet>"
    assert session.memory.planned_bytes == 0 and "iframe" not in session.memory._repr_html_()
    with pytest.raises(ValueError, match="no plan yet"):
        session.memory.to_html()
    session.run(None, {"x": rows(6)})
    assert "recorded" in repr(session.memory)
    session.run(None, {"x": rows(6)})
    memory = session.memory
    assert f"{memory.requests} from the arena, 0 off the plan" in repr(memory)
    assert "<iframe" in memory._repr_html_() and "<html" in memory.to_html("Tiny").lower()


@pytest.mark.parametrize("feed, kind, code, words", [
    ({}, ValueError, "InvalidArgument", 'input "x" is missing'),
    ({"x": rows(2), "z": rows(2)}, ValueError, "NotFound", 'no input "z": it takes x'),
    ({"x": rows(2).astype(np.float64)}, TypeError, "TypeMismatch", "is float64, the model takes float32"),
    ({"x": rows(2)[:, :5]}, ValueError, "InvalidArgument", r"shape \[2, 5\], the model takes \['rows', 64\]"),
    ({"x": rows(2)[0]}, ValueError, "InvalidArgument", r"shape \[64\]"),
])
def test_refuses_inputs_that_do_not_fit(session, feed, kind, code, words):
    with pytest.raises(kind, match=words) as caught:
        session.run(None, feed)
    assert caught.value.code == code and session.memory.runs == 0


def test_refuses_outputs_and_options_it_does_not_have(session):
    feed = {"x": rows(2)}
    with pytest.raises(ValueError, match='no output "z": it has y, d'):
        session.run(["z"], feed)
    with pytest.raises(TypeError, match="are a list"):
        session.run("y", feed)
    with pytest.raises(ValueError, match="run options are not supported"):
        session.run(None, feed, onnxruntime.RunOptions())
    with pytest.raises(ValueError, match="asked for was CUDAExecutionProvider"):
        berth.onnxruntime.session(tiny_model(), providers=["CUDAExecutionProvider"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    assert same_bits(berth.onnxruntime.session(tiny_model(), options).run(None, feed), session.run(None, feed))
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with pytest.raises(ValueError, match="sess_options.graph_optimization_level"):
        berth.onnxruntime.session(tiny_model(), options)


def test_says_why_a_model_cannot_be_loaded(no_leak, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no model at"):
        berth.onnxruntime.session(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(OSError, match="ONNX Runtime failed to load the model") as caught:
        berth.onnxruntime.session(tmp_path / "bad.onnx")
    assert caught.value.code == "Driver"
    with pytest.raises(ValueError, match="no bytes"):
        berth.onnxruntime.session(b"")


def test_names_the_command_that_installs_a_missing_engine(tmp_path):
    (tmp_path / "model.onnx").write_bytes(tiny_model())
    program = "import berth, sys\ntry: berth.onnxruntime.session(sys.argv[1])\nexcept OSError as e: print(e.code, e)"
    said = subprocess.run([sys.executable, "-c", program, str(tmp_path / "model.onnx")], capture_output=True, text=True,
                          env={**os.environ, "BERTH_ONNXRUNTIME": str(tmp_path)}, check=True).stdout
    assert said.startswith("DeviceUnavailable") and "pip install onnxruntime" in said
