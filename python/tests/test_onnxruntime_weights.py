"""One copy of a model's weights for all processes: the same bits, whatever happens to the cache."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")

import berth.onnxruntime  # noqa: E402
from test_onnxruntime import rows, same_bits, stock, tiny_model  # noqa: E402

HIDDEN = 4096  # two weights of a mebibyte each


def note_options(**values):
    made = berth.onnxruntime.SessionOptions()
    made.intra_op_num_threads = 1
    made.log_severity_level = 3
    for name, value in values.items():
        setattr(made, name, value)
    return made


def cached(model, cache, **values):
    return berth.onnxruntime.InferenceSession(model, note_options(**values), ["CPUExecutionProvider"],
                                              weights_cache=cache)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_model(HIDDEN))
    return path


def check(session, expected, runs=3):
    for seed in range(runs):
        feed = {"x": rows(5, seed)}
        assert same_bits(session.run(None, feed), expected(feed))


def reference(hidden=HIDDEN):
    session = stock(tiny_model(hidden))
    return lambda feed: session.run(None, feed)


def files(cache, part):
    return sorted(path for path in (cache / part).rglob("*") if path.is_file() and path.suffix != ".lock")


@pytest.mark.parametrize("as_bytes", [False, True])
def test_shares_what_it_loads_with_the_same_bits(model, tmp_path, as_bytes):
    cache = tmp_path / "cache"
    for _ in range(2):
        session = cached(model.read_bytes() if as_bytes else model, cache)
        weights = session.memory.weights
        assert weights["problem"] is None and weights["mapped"] >= 2 << 20, weights
        assert weights["shared"] == weights["bytes"] > 1 << 20, weights
        check(session, reference())
        assert session.get_session_options().graph_optimization_level == note_options().graph_optimization_level
    written = [(path, path.stat().st_mtime_ns) for path in files(cache, "models") + files(cache, "blocks")]
    check(cached(model, cache), reference())
    assert written == [(path, path.stat().st_mtime_ns) for path in files(cache, "models") + files(cache, "blocks")]


def test_a_session_from_the_cache_describes_the_model_as_the_engine_does(model, tmp_path):
    session, plain = [cached(model, tmp_path / "cache") for _ in range(2)][1], stock(str(model))
    for got, expected in [(session.get_inputs(), plain.get_inputs()), (session.get_outputs(), plain.get_outputs())]:
        assert [(a.name, a.shape, a.type) for a in got] == [(a.name, a.shape, a.type) for a in expected]
    for name in ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(session.get_modelmeta(), name) == getattr(plain.get_modelmeta(), name)
    session.set_providers(["CPUExecutionProvider"])
    check(session, reference())
    assert session.memory.weights is None


def test_pages_are_of_the_files_and_stay_private_when_written(model, tmp_path):
    cache = tmp_path / "cache"
    session = cached(model, cache)
    blocks = str(cache / "blocks")
    maps = [line for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if blocks in line]
    assert len(maps) >= len(files(cache, "blocks")) > 0 and all(" rw-p " in line for line in maps)
    before = [path.read_bytes() for path in files(cache, "blocks")]
    check(session, reference())
    del session
    assert blocks not in pathlib.Path("/proc/self/maps").read_text(), "released with the session"
    assert before == [path.read_bytes() for path in files(cache, "blocks")]


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "delete"])
@pytest.mark.parametrize("part", ["models", "blocks"])
def test_a_damaged_file_is_noticed_and_replaced(model, tmp_path, part, damage):
    cache = tmp_path / "cache"
    check(cached(model, cache), reference())
    count = len(files(cache, part))
    for path in files(cache, part):
        data = path.read_bytes()
        path.chmod(0o600)
        if damage == "delete":
            path.unlink()
        else:
            path.write_bytes({"truncate": data[:len(data) // 2], "empty": b"",
                              "flip": data[:-1] + bytes([data[-1] ^ 1])}[damage])
    session = cached(model, cache)
    check(session, reference())
    assert session.memory.weights["problem"] is None
    assert len(files(cache, part)) == count
    check(cached(model, cache), reference())


def test_another_model_processor_engine_or_option_is_another_entry(model, tmp_path, monkeypatch):
    cache = tmp_path / "cache"

    def entries():
        return {path.name for path in (cache / "models").iterdir() if path.is_dir()}

    cached(model, cache)
    assert len(entries()) == 1
    cached(model, cache, intra_op_num_threads=2)
    assert len(entries()) == 1, "the number of threads changes no weight"
    cached(model, cache, graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    assert len(entries()) == 2
    with_dimension = note_options()
    with_dimension.add_free_dimension_override_by_name("rows", 3)
    fixed = berth.onnxruntime.InferenceSession(str(model), with_dimension, weights_cache=cache)
    assert fixed.get_inputs()[0].shape == [3, 64] and len(entries()) == 3
    assert cached(model, cache).get_inputs()[0].shape == ["rows", 64]
    monkeypatch.setattr(berth.onnxruntime._weights, "_processor", lambda: ["another"])
    cached(model, cache)
    assert len(entries()) == 4
    monkeypatch.undo()
    monkeypatch.setattr(onnxruntime, "__version__", "0.0.0")
    cached(model, cache)
    assert len(entries()) == 5
    monkeypatch.undo()
    model.write_bytes(tiny_model(HIDDEN + 64))  # at the same path
    check(cached(model, cache), reference(HIDDEN + 64))
    assert len(entries()) == 6


def test_weights_in_another_file_are_part_of_the_model(tmp_path):
    onnx = pytest.importorskip("onnx")
    cache, path = tmp_path / "cache", tmp_path / "model.onnx"

    def write(scale):
        w = (np.arange(64 * 2048, dtype=np.float32).reshape(64, 2048) % 13) * np.float32(scale)
        helper = onnx.helper
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "external",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 64])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 2048])],
            [onnx.numpy_helper.from_array(w, "w")])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        for name in ("model.onnx", "w.bin"):
            (tmp_path / name).unlink(missing_ok=True)
        onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)

    for scale in (1, 3):
        write(scale)
        expected = stock(str(path)).run(None, {"x": rows(4)})
        for _ in range(2):
            session = cached(path, cache)
            assert session.memory.weights["problem"] is None
            assert same_bits(session.run(None, {"x": rows(4)}), expected)


@pytest.mark.parametrize("why", ["options of the engine", "a call that cannot be read back", "optimized model", "small"])
def test_says_why_a_model_is_not_kept_and_shares_the_rest(model, tmp_path, why):
    made, data, hidden = note_options(), model.read_bytes(), HIDDEN
    if why == "options of the engine":
        made = onnxruntime.SessionOptions()
    elif why == "a call that cannot be read back":
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32))
        made.add_initializer("unused", value)
    elif why == "optimized model":
        made.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    else:
        hidden = 2
        data = tiny_model(hidden)
    made.intra_op_num_threads, made.log_severity_level = 1, 3
    session = berth.onnxruntime.InferenceSession(data, made, weights_cache=tmp_path / "cache")
    weights = session.memory.weights
    assert weights["problem"] and weights["mapped"] == 0 and weights["shared"] == weights["bytes"]
    assert (weights["shared"] > 1 << 20) == (why != "small")
    check(session, reference(hidden))


@pytest.mark.parametrize("where", ["a file", "no permission", "no space"])
def test_a_cache_that_cannot_be_written_costs_only_the_sharing(model, tmp_path, where):
    program = f"""
        import resource, signal, sys
        sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
        from test_onnxruntime_weights import *
        cache = pathlib.Path({str(tmp_path)!r}) / "cache"
        if {where!r} == "a file":
            cache.write_text("in the way")
        elif {where!r} == "no permission":
            cache = pathlib.Path("/proc/berth")  # not even root may
        else:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        session = cached({str(model)!r}, cache)
        weights = session.memory.weights
        assert weights["problem"], weights
        assert weights["shared"] < weights["bytes"], weights
        check(session, reference())
        print("ran:", weights["problem"])
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert "ran:" in ran.stdout, ran.stdout + ran.stderr


WORKER = """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from test_onnxruntime_weights import *
    session = cached(sys.argv[2], pathlib.Path(sys.argv[3]))
    check(session, reference())
    print(json.dumps(session.memory.weights), flush=True)
    sys.stdin.readline()
"""


def worker(model, cache):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(WORKER), str(pathlib.Path(__file__).parent),
                             str(model), str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("planted", ["a folder that all may write", "a part that all may write", "a link for a part",
                                     "a file for a part"])
def test_a_folder_in_which_others_can_put_models_is_not_used(model, tmp_path, planted):
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    cache.mkdir()
    elsewhere.mkdir()
    if planted == "a folder that all may write":
        cache.chmod(0o777)
    elif planted == "a part that all may write":
        (cache / "models").mkdir()
        (cache / "models").chmod(0o777)
    elif planted == "a link for a part":
        (cache / "models").symlink_to(elsewhere)
    else:
        (cache / "models").write_text("")
    session = cached(model, cache)
    weights = session.memory.weights
    assert weights["mapped"] == weights["shared"] == 0, weights
    assert "can write" in weights["problem"] or "is not a folder" in weights["problem"], weights
    check(session, reference())
    assert not files(cache, "models") and not files(cache, "blocks") and not list(elsewhere.iterdir())


@pytest.mark.parametrize("link", ["the entry", "a file"])
def test_a_link_in_place_of_a_kept_model_is_replaced(model, tmp_path, link):
    cache = tmp_path / "cache"
    check(cached(model, cache), reference())
    entry = next(path for path in (cache / "models").iterdir() if path.is_dir())
    target = entry if link == "the entry" else entry / "weights.bin"
    target.rename(tmp_path / "moved")
    target.symlink_to(tmp_path / "moved")
    session = cached(model, cache)
    check(session, reference())
    assert session.memory.weights["mapped"] and not target.is_symlink()
    assert (tmp_path / "moved").exists(), "what a link leads to is not deleted"


def test_what_killed_workers_left_is_removed_after_an_hour(model, tmp_path):
    cache = tmp_path / "cache"
    old, new = [], []
    for part in ("models", "blocks", "seen"):
        (cache / part).mkdir(parents=True)
        for names, name in ((old, "old"), (new, "new")):
            path = cache / part / f"{name}.1.partial"
            path.mkdir() if part == "models" else path.write_text("half")
            names.append(path)
    for path in old:
        os.utime(path, (time.time() - 7200,) * 2)
    check(cached(model, cache), reference())
    assert not any(path.exists() for path in old) and all(path.exists() for path in new)


def test_workers_that_start_together_all_share(model, tmp_path):
    workers = [worker(model, tmp_path / "cache") for _ in range(4)]
    said = [json.loads(each.stdout.readline()) for each in workers]
    for each in workers:
        each.communicate("\n")
    assert [each.returncode for each in workers] == [0] * 4
    assert all(each["problem"] is None and each["shared"] == each["bytes"] > 0 and each["mapped"] for each in said)
    assert len(list((tmp_path / "cache" / "models").glob("*/manifest.json"))) == 1


def test_a_worker_killed_at_any_moment_leaves_a_usable_cache(model, tmp_path):
    cache = tmp_path / "cache"
    started = time.monotonic()
    complete = worker(model, tmp_path / "other")
    complete.stdout.readline()
    took = time.monotonic() - started
    complete.communicate("\n")
    for part in range(1, 9):
        victim = worker(model, cache)
        time.sleep(took * part / 9)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    session = cached(model, cache)
    assert session.memory.weights["problem"] is None and session.memory.weights["mapped"]
    check(session, reference())
    leftover = cache / "blocks" / "left by a process that was killed.partial"
    for age in (0, 7200):
        leftover.write_bytes(b"half")
        os.utime(leftover, (time.time() - age,) * 2)
        cached(model, cache)
        assert leftover.exists() == (age == 0), "a file that may still be written is left alone"
    assert list((cache / "models").glob("*.partial")) == []


def test_the_folder_comes_from_the_argument_attach_or_the_environment(model, tmp_path, monkeypatch):
    assert berth.onnxruntime.InferenceSession(str(model)).memory.weights is None
    monkeypatch.setenv("BERTH_WEIGHTS_CACHE", str(tmp_path / "from environment"))
    session = berth.onnxruntime.InferenceSession(str(model))
    assert session.memory.weights["folder"] == str(tmp_path / "from environment")
    assert berth.onnxruntime.InferenceSession(str(model), weights_cache=False).memory.weights is None
    berth.onnxruntime.attach(weights_cache=tmp_path / "from attach")
    try:
        session = onnxruntime.InferenceSession(str(model), onnxruntime.SessionOptions())
    finally:
        berth.onnxruntime.detach()
    assert session.memory.weights["folder"] == str(tmp_path / "from attach") and session.memory.weights["mapped"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    session = berth.onnxruntime.InferenceSession(str(model), weights_cache=True)
    assert session.memory.weights["folder"] == str(tmp_path / "home" / "berth")


def age(cache, seconds):
    """Makes everything in the cache look as if it was last used so long ago."""
    for path in files(cache, "models") + files(cache, "blocks"):
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns - seconds * 10**9, status.st_mtime_ns))


def last_uses(cache):
    """The entries of the cache, and when each was last used."""
    of_models = [(path.parent, path) for path in files(cache, "models") if path.name == "manifest.json"]
    return {entry: path.stat().st_atime_ns for entry, path in of_models + [(path, path) for path in files(cache, "blocks")]}


def kept_bytes(cache):
    return sum(path.stat().st_size for path in files(cache, "models") + files(cache, "blocks"))


def test_a_bound_deletes_what_was_used_longest_ago(tmp_path):
    cache = tmp_path / "cache"
    models = []
    for hidden in (4096, 4352, 4608):
        path = tmp_path / f"{hidden}.onnx"
        path.write_bytes(tiny_model(hidden))
        models.append((path, hidden))
    sessions = []
    for path, hidden in models[:2]:
        sessions.append(cached(path, cache))
        age(cache, 1000)
    one = kept_bytes(cache) / 2
    first_use = last_uses(cache)
    sessions.append(cached(models[0][0], cache))  # the older of the two is used again
    used_again = {entry for entry, then in last_uses(cache).items() if first_use[entry] != then}
    assert used_again and used_again != set(first_use)

    path, hidden = models[2]
    sessions.append(berth.onnxruntime.InferenceSession(path, note_options(), ["CPUExecutionProvider"],
                                                       weights_cache=cache, weights_cache_bytes=int(2.6 * one)))
    left = set(last_uses(cache))
    deleted = set(first_use) - left
    assert deleted and not deleted & used_again
    assert kept_bytes(cache) <= 2.6 * one
    # Whoever has mapped what was deleted is not concerned, and what was deleted is written again.
    for session, hidden in zip(sessions, (4096, 4352, 4096, 4608)):
        check(session, reference(hidden))
    again = cached(models[1][0], cache)
    assert again.memory.weights["problem"] is None and again.memory.weights["mapped"] > 0
    check(again, reference(4352))


def test_a_bound_of_zero_keeps_what_is_in_use_now(model, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("BERTH_WEIGHTS_CACHE_BYTES", "0")
    check(cached(model, cache), reference())
    assert kept_bytes(cache) > 2 << 20
    age(cache, 1000)
    other = tmp_path / "other.onnx"
    other.write_bytes(tiny_model(4352))
    before = set(files(cache, "models") + files(cache, "blocks"))
    check(cached(other, cache), reference(4352))
    assert not before & set(files(cache, "models") + files(cache, "blocks"))


@pytest.mark.parametrize("wrong", ["many", -1, "-5", "1e9"])
def test_a_bound_that_is_no_number_of_bytes_is_refused(model, tmp_path, wrong):
    with pytest.raises(ValueError, match="number of bytes"):
        berth.onnxruntime.InferenceSession(model, note_options(), weights_cache=tmp_path, weights_cache_bytes=wrong)
