"""`berth tflite` on published models, run by TensorFlow Lite Micro: the same outputs, the arena as predicted, and a
broken plan that shows. Usage: tflite_runtime_test.py BERTH (with tflite-micro and basic-pitch in the environment)."""

import json
import struct
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

try:
    import numpy as np
    from tflite_micro.python.tflite_micro import runtime
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

BERTH = sys.argv[1]
PLENTY = 16 << 20


def published_models():
    """basic-pitch's model, and those of pymicro-wakeword, which have state and control flow."""
    for package, pattern in (("basic_pitch", "**/nmp.tflite"), ("pymicro_wakeword", "**/*.tflite")):
        found = find_spec(package)
        paths = sorted(Path(found.submodule_search_locations[0]).glob(pattern)) if found else []
        assert paths, f"{package} is not installed, or has no model"
        yield from paths


def berth(*arguments):
    done = subprocess.run([BERTH, "tflite", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def interpreter(model, arena=PLENTY):
    return runtime.Interpreter.from_bytes(bytes(model), arena_size=arena)


def outputs(model, seed):
    """Of three runs, so that state carried from one to the next counts too."""
    engine = interpreter(model)
    random = np.random.default_rng(seed)
    results = []
    for _ in range(3):
        details = engine.get_input_details(0)
        if np.issubdtype(details["dtype"], np.integer):
            limits = np.iinfo(details["dtype"])
            value = random.integers(limits.min, limits.max, details["shape"], dtype=details["dtype"], endpoint=True)
        else:
            value = random.standard_normal(details["shape"]).astype(details["dtype"])
        engine.set_input(value, 0)
        engine.invoke()
        results.append(engine.get_output(0).copy())
    return results


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b))


def least_arena(model):
    """The smallest arena in which the runtime starts, to 16 bytes."""
    too_small, enough = 0, PLENTY
    while enough - too_small > 16:
        middle = (too_small + enough) // 2 // 16 * 16
        try:
            interpreter(model, middle)
            enough = middle
        except RuntimeError:
            too_small = middle
    return enough


def break_plan(model, offsets):
    """The same model with every planned tensor at offset 0."""
    old = struct.pack(f"<{len(offsets)}i", *offsets)
    assert model.count(old) == 1
    return model.replace(old, struct.pack(f"<{len(offsets)}i", *(min(offset, 0) for offset in offsets)))


def offsets_in(model):
    """The plan in the file: a version, the number of subgraphs, and an offset for each tensor."""

    marker = model.index(b"OfflineMemoryAllocation")
    at = marker + len("OfflineMemoryAllocation")
    while True:  # the data follows the name: a length, then version 1
        length, version = struct.unpack_from("<Ii", model, at := at + 1)
        if version == 1 and length % 4 == 0 and (at + 4) % 16 == 0 and 12 < length < len(model):
            break
    count = struct.unpack_from("<I", model, at + 12)[0]
    assert length == 12 + 4 * count
    return struct.unpack_from(f"<{count}i", model, at + 16)


seed = np.random.SeedSequence().entropy
print(f"seed {seed}")
broken_seen = smaller = 0
for path in published_models():
    stock = path.read_bytes()
    expected = outputs(stock, seed)
    arena = None
    for options in ([], ["--reorder"]):
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "planned.tflite"
            report = json.loads(berth(path, "--output", written, "--json", "-", *options))
            planned = written.read_bytes()
        assert report["bytes"] <= report["stock_bytes"], (path, report)
        assert same(expected, outputs(planned, seed)), (path, options)
        print(f"{path.name} {' '.join(options)}: tensors {report['stock_bytes']:,} -> {report['bytes']:,}")
        smaller += report["bytes"] < report["stock_bytes"]
        # The runtime's arena shrinks by what was predicted. In an arena that is too small for a model with resources the
        # runtime itself crashes, so those are not tried.
        if not report["left_to_runtime"]:
            arena = arena or least_arena(stock)
            found = least_arena(planned)
            predicted = arena - (report["stock_bytes"] - report["bytes"])
            assert abs(found - predicted) <= 16, (path, options, found, predicted)
        offsets = offsets_in(planned)
        if sum(offset > 0 for offset in offsets) > 3:
            broken_seen += not same(expected, outputs(break_plan(planned, offsets), seed))
assert broken_seen > 0, "a broken plan went unnoticed everywhere, so equal outputs prove nothing"
assert smaller > 0
print("ok")
