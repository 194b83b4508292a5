"""What other packages take for the work of `./run bench weights`. Prints one JSON object: {row: {peer: seconds}}.

    python bench/peers/weights_peers.py FOLDER ROUNDS

FOLDER holds the files that weights_bench made. Peers that are not installed are left out. Each figure is the best of
ROUNDS, page cache warm.
"""
import ctypes
import gc
import importlib
import json
import os
import sys
import time

folder, rounds = sys.argv[1], int(sys.argv[2])
results = {}


def have(name):
    try:
        return importlib.import_module(name)
    except Exception:
        return None


def measure(row, peer, work, times=None, before=None):
    best = float("inf")
    for _ in range(times or rounds):
        gc.collect()
        if before:
            before()
        start = time.perf_counter()
        kept = work()
        best = min(best, time.perf_counter() - start)
        del kept
    results.setdefault(row, {})[peer] = best


quick = []


def each(row, peer, work, count):
    """Seconds for one of `count` quick calls, measured by run_quick()."""
    quick.append((row, peer, work, count))


def run_quick():
    """The best of ten times `rounds`, taken in turns, so that a machine that slows down slows all of them."""
    for _ in range(rounds * 10):
        for row, peer, work, count in quick:
            start = time.perf_counter()
            for _ in range(count):
                work()
            took = (time.perf_counter() - start) / count
            peers = results.setdefault(row, {})
            peers[peer] = min(took, peers.get(peer, took))


def drop_heap():
    """Gives the memory of the round before back to the system: a row is about fresh memory, and malloc keeps what is
    freed below its threshold."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)


np = have("numpy")
berth = have("berth")
safetensors = have("safetensors")
gguf = have("gguf")
mx = have("mlx.core")
torch = have("torch")
jax = have("jax")
peer = have("nanobind_peer")

many, few, tiny = f"{folder}/many.safetensors", f"{folder}/few.safetensors", f"{folder}/tiny.safetensors"
name = "layers.777.block.3.weight"

if safetensors:
    from safetensors import safe_open
    from safetensors.numpy import load_file

    def names(path):
        with safe_open(path, "np") as file:
            return list(file.keys())

    def one(path, tensor):
        with safe_open(path, "np") as file:
            return file.get_tensor(tensor)

    measure("list", "safetensors (Rust)", lambda: names(many))
    measure("one", "safetensors (Rust)", lambda: one(many, name))
    each("tiny", "safetensors (Rust)", lambda: one(tiny, "w"), 200)

    def touch_each(path):
        with safe_open(path, "np") as file:
            return sum(int(file.get_tensor(key).reshape(-1).view("u1")[::4096].sum()) for key in file.keys())

    for label, path in (("few", few), ("many", many)):
        measure(f"load {label}", "safetensors.numpy", lambda: load_file(path), before=drop_heap)
        measure(f"load {label}", "safetensors.numpy, memory of the round before", lambda: load_file(path))
        measure(f"touch {label}", "safetensors.numpy, one by one", lambda: touch_each(path))
if gguf:
    measure("list gguf", "gguf-py", lambda: [t.name for t in gguf.GGUFReader(f"{folder}/many.gguf").tensors], 2)
if mx:
    def mlx_load(path):
        arrays = mx.load(path)
        mx.eval(list(arrays.values()))
        return arrays

    # MLX keeps what it freed and hands it out again; the row is about fresh memory.
    for label, path in (("load few", few), ("load many", many)):
        measure(label, "MLX", lambda: mlx_load(path), before=mx.clear_cache)
        measure(label, "MLX, memory of the round before", lambda: mlx_load(path))
    measure("one", "MLX", lambda: mx.eval(mx.load(many)[name]), min(rounds, 3))
if torch:
    from safetensors.torch import load_file as torch_load

    def as_pickle(path):
        """The same tensors in torch's own format, made once."""
        copy = path.replace(".safetensors", ".pt")
        if not os.path.exists(copy):
            torch.save(torch_load(path), copy)
        return copy

    for label, path in (("few", few), ("many", many)):
        measure(f"load {label}", "safetensors.torch", lambda: {k: v.clone() for k, v in torch_load(path).items()},
                before=drop_heap)
        pickled = as_pickle(path)
        measure(f"load {label}", "torch.load", lambda: torch.load(pickled), before=drop_heap)
        measure(f"touch {label}", "safetensors.torch", lambda: sum(
            int(tensor.flatten().view(torch.uint8)[::4096].sum()) for tensor in torch_load(path).values()))
for label, path in (("load few", few), ("load many", many)):
    measure(label, "Python read()", lambda: open(path, "rb").read())
if berth:
    measure("list", "berth, from Python", lambda: berth.open(many).keys())
    measure("list gguf", "berth, from Python", lambda: berth.open(f"{folder}/many.gguf").keys())
    measure("one", "berth, from Python", lambda: berth.load(many, names=[name]))
    each("tiny", "berth, from Python", lambda: berth.open(tiny)["w"].numpy(), 200)
    for label, path in (("load few", few), ("load many", many)):
        measure(label, "berth, from Python", lambda: berth.load(path))
    if np:
        array = np.zeros((64, 64), np.float32)
        buffer = berth.Buffer((64, 64), "f32", zero=True)
        each("dlpack import", "berth.from_dlpack(numpy)", lambda: berth.from_dlpack(array), 2000)
        each("dlpack export", "numpy.from_dlpack(berth)", lambda: np.from_dlpack(buffer), 2000)
        each("dlpack import", "numpy.from_dlpack(numpy)", lambda: np.from_dlpack(array), 2000)
        if peer:
            held = peer.hold(array)
            each("dlpack import", "nanobind's ndarray(numpy)", lambda: peer.hold(array), 2000)
            each("dlpack export", "numpy of nanobind's ndarray", lambda: held.numpy(), 2000)
        if jax:
            aligned = buffer.numpy()
            each("dlpack export", "jax.from_dlpack(berth)", lambda: jax.dlpack.from_dlpack(buffer), 200)
            each("dlpack export", "jax.from_dlpack(numpy)", lambda: jax.dlpack.from_dlpack(aligned), 200)
            each("dlpack import", "jax.from_dlpack(numpy)", lambda: jax.dlpack.from_dlpack(aligned), 200)
        if mx:
            theirs = mx.zeros((64, 64))
            mx.eval(theirs)
            each("dlpack export", "numpy.from_dlpack(MLX), nanobind's ndarray", lambda: np.from_dlpack(theirs), 2000)
            each("dlpack import", "berth.from_dlpack(MLX), nanobind's ndarray", lambda: berth.from_dlpack(theirs), 2000)
run_quick()
print(json.dumps(results))
