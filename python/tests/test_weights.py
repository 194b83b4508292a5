"""Weight files against the formats' own packages as oracles: byte for byte, both ways, all dtypes."""
import gc
import json
import os
import signal
import struct
import sys
import threading
import time
import zlib

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

import berth

NUMPY = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
         "float64", "complex64"]


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    return {f"layer.{name}.weight": rng.integers(0, 2, (3, 4)).astype(name) for name in NUMPY}


def test_reads_what_safetensors_writes(tmp_path, arrays):
    path = tmp_path / "a.safetensors"
    arrays["brain"] = np.ones((2, 3), ml_dtypes.bfloat16)
    save_file(arrays, path, {"format": "np"})
    with berth.open(path) as file:
        assert set(file.keys()) == set(arrays) and len(file) == len(arrays)
        assert file.metadata == {"format": "np"} and file.format == "safetensors"
        for name, array in arrays.items():
            ours = file[name]
            assert ours.device.startswith("DISK") and ours.is_read_only
            assert ours.shape == array.shape and ours.tobytes() == array.tobytes()
            assert ours.numpy().dtype == array.dtype


def test_writes_what_safetensors_would_write_byte_for_byte(tmp_path, arrays):
    save_file(arrays, tmp_path / "theirs.safetensors")
    berth.save(tmp_path / "ours.safetensors", arrays)
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    back = load_file(tmp_path / "ours.safetensors")
    assert all((back[name] == array).all() for name, array in arrays.items())


def test_every_safetensors_dtype_is_read_by_the_reference(tmp_path):
    tensors = {}
    for name in berth.dtypes():
        if berth.dtype_info(name)[1] <= 4:
            tensors[name] = berth.Buffer((2, 8), name, zero=True)
    path = tmp_path / "all.safetensors"
    berth.save(path, tensors)
    with safetensors.safe_open(path, "np") as file:
        assert set(file.keys()) == set(tensors) and len(tensors) == 22
        for name in tensors:
            assert file.get_slice(name).get_shape() == [2, 8]


def write_gguf(path, tensors, values=()):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values:
        {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool,
         list: writer.add_array}[type(value)](key, value)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Types of ggml that the newest gguf package does not have yet: number, name, elements and bytes of a block.
NEWER = {42: ("q2_0", 64, 18)}


def test_type_numbers_and_blocks_are_those_of_the_package(tmp_path):
    known = {kind.value: (kind.name.lower(), *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    known[9] = ("q8_1", 32, 36)  # the package says 40; the format's block has two half-precision floats
    for number, newer in NEWER.items():
        assert known.setdefault(number, newer) == newer, "the package has it now, and it is another"
    path = tmp_path / "one.gguf"
    seen = {}
    for number in range(256):
        header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"t"
        header += struct.pack("<IQIQ", 1, 256, number, 0)
        path.write_bytes(header + bytes(-len(header) % 32 + 4096))
        try:
            info = berth.open(path).info("t")
        except ValueError as error:
            assert f"type {number}, which is unknown" in str(error)
            continue
        seen[number] = berth.dtype_info(info["dtype"])
        assert info["nbytes"] == 256 // seen[number][1] * seen[number][2]
    assert seen == known


def test_reads_every_type_that_gguf_writes(tmp_path):
    rng = np.random.default_rng(2)
    tensors = {}
    for kind in gguf.GGMLQuantizationType:
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        if kind == gguf.GGMLQuantizationType.Q8_1:
            continue  # the package says 40 bytes; the format's block has two half-precision floats, 36
        if elements == 1:
            array = rng.integers(0, 2, (2, 3 * nbytes)).astype("u1")
        else:
            array = rng.integers(0, 255, (2, nbytes * 2), dtype=np.uint8)
        tensors[kind.name] = (array, kind)
    values = [("a.text", "ü"), ("a.count", 7), ("a.scale", 0.5), ("a.flag", True), ("a.tokens", ["x", "y"]),
              ("a.ids", [1, 2, 3])]
    write_gguf(tmp_path / "a.gguf", tensors, values)
    file = berth.open(tmp_path / "a.gguf")
    for key, value in values:
        assert file.metadata[key] == value
    for name, (array, kind) in tensors.items():
        info = file.info(name)
        assert info["dtype"] == {"F32": "f32", "F16": "f16", "F64": "f64"}.get(name, name.lower())
        assert berth.dtype_info(info["dtype"])[1:] == tuple(gguf.GGML_QUANT_SIZES[kind])
        assert file[name].tobytes() == array.tobytes()
    assert len(file) == len(tensors) == len(gguf.GGMLQuantizationType) - 1


def test_gguf_reads_what_we_write(tmp_path):
    tensors = {}
    for name in berth.dtypes():
        buffer = berth.Buffer((2, 256), name)
        buffer.copyin(os.urandom(buffer.nbytes))
        try:
            berth.save(tmp_path / "one.gguf", {"t": buffer})
            tensors[name] = buffer
        except ValueError as error:
            assert "GGUF cannot hold" in str(error)
    tensors.pop("q8_1")  # see above
    package = {kind.name.lower() for kind in gguf.GGMLQuantizationType}
    for name, _, _ in NEWER.values():
        if name not in package:
            tensors.pop(name)  # written, and not yet read there
    assert set(tensors) == package - {"q8_1"}
    metadata = {"general.architecture": "test", "n": 3, "x": 0.5, "flag": False, "words": ["a", "b"], "ids": [1, -2],
                "general.alignment": 64}
    berth.save(tmp_path / "all.gguf", tensors, metadata)
    reader = gguf.GGUFReader(tmp_path / "all.gguf")
    for key, value in metadata.items():
        assert reader.get_field(key).contents() == value
    assert reader.alignment == 64
    for tensor in reader.tensors:
        assert tensor.tensor_type.name.lower() == tensor.name
        assert list(tensor.shape) == [256, 2]
        assert tensor.data.tobytes() == tensors[tensor.name].tobytes()


def test_reads_numpys_files(tmp_path, arrays):
    for name, array in arrays.items():
        np.save(tmp_path / "a.npy", array)
        file = berth.open(tmp_path / "a.npy")
        assert file.keys() == ["arr_0"] and (file["arr_0"].numpy() == array).all()
    np.savez(tmp_path / "a.npz", **arrays)
    file = berth.open(tmp_path / "a.npz")
    assert all(file[name].tobytes() == array.tobytes() for name, array in arrays.items())
    np.savez_compressed(tmp_path / "c.npz", **arrays)
    with pytest.raises(ValueError, match="savez_compressed"):
        berth.open(tmp_path / "c.npz")


def test_splits_and_shards(tmp_path):
    array = np.arange(8, dtype="f4")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=1)
    writer.add_tensor("a", array)
    writer.add_tensor("b", array * 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = berth.open(tmp_path / "m-00002-of-00002.gguf")
    assert file["a"].numpy().tolist() == array.tolist() and file["b"].numpy()[1] == 2
    save_file({"a": array}, tmp_path / "1.safetensors")
    save_file({"b": array * 3}, tmp_path / "2.safetensors")
    index = {"metadata": {"total_size": 64}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert berth.open(tmp_path)["b"].numpy()[1] == 3


def test_loads_with_progress_checksums_and_slices(tmp_path, arrays):
    path = tmp_path / "a.safetensors"
    save_file(arrays, path)
    seen = []
    with berth.open(path) as file:
        loaded, sums = file.load(progress=lambda done, total: seen.append((done, total)), checksums=True)
        part = file.load_slice("layer.int32.weight", 1, 1, 3)
    assert seen[-1] == (sum(a.nbytes for a in arrays.values()),) * 2
    for name, array in arrays.items():
        assert loaded[name].tobytes() == array.tobytes() and loaded[name].device == "CPU"
        assert sums[name] == zlib.crc32(array.tobytes())
    assert (part.numpy() == arrays["layer.int32.weight"][:, 1:3]).all()
    assert list(berth.load(path, names=["layer.bool.weight"])) == ["layer.bool.weight"]
    assert berth.load(path, direct=True, threads=3)["layer.int64.weight"].tobytes() == arrays["layer.int64.weight"].tobytes()


def test_a_progress_callback_cancels_by_false_or_by_raising(tmp_path, arrays, no_leak):
    path = tmp_path / "a.safetensors"
    save_file(arrays, path)
    with pytest.raises(InterruptedError) as caught:
        berth.load(path, progress=lambda done, total: False)
    assert caught.value.code == "Cancelled"
    with pytest.raises(ZeroDivisionError):
        berth.load(path, progress=lambda done, total: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        berth.save(tmp_path / "b.safetensors", arrays, progress=lambda done, total: 1 / 0)
    assert not (tmp_path / "b.safetensors").exists()


@pytest.fixture
def large(tmp_path):
    """A file with one tensor of a gibibyte, 1024 rows of a mebibyte, all holes."""
    header = json.dumps({"w": {"dtype": "I8", "shape": [1 << 10, 1 << 20], "data_offsets": [0, 1 << 30]}}).encode()
    path = tmp_path / "large.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + (1 << 30))
    return path


@pytest.fixture
def alarm():
    """Ctrl-C comes a moment after the call: alarm()."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def bytes_read():
    """By all threads of this process, from files of any kind."""
    with open("/proc/self/io") as file:
        return int(file.read().split()[1])


def test_ctrl_c_stops_a_load_on_its_way(large, alarm, no_leak):
    before = bytes_read()
    with pytest.raises(KeyboardInterrupt):
        alarm()
        berth.load(large)
    assert bytes_read() - before < 1 << 30


def test_ctrl_c_stops_a_conversion_and_leaves_no_half_file(large, alarm):
    target = large.with_name("large.gguf")
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        alarm()
        berth.convert(large, target)
    assert sorted(os.listdir(large.parent)) == ["large.gguf", "large.safetensors"] and target.read_bytes() == b"old"


def test_a_slice_reads_only_its_bytes(large):
    with berth.open(large) as file:
        for axis, begin, end in ((0, 7, 9), (1, 1000, 3048)):
            before = bytes_read()
            part = file.load_slice("w", axis, begin, end)
            assert part.nbytes == 2 << 20
            assert bytes_read() - before < (2 << 20) + 4096  # and what the count itself reads


def test_other_threads_run_while_a_file_is_loaded(large):
    interval = sys.getswitchinterval()
    turns, done = 0, False

    def spin():
        nonlocal turns
        while not done:
            turns += 1
            time.sleep(0)  # lets the lock go, so that nobody has to take it away

    other = threading.Thread(target=spin)
    other.start()
    sys.setswitchinterval(1000)  # the lock changes hands only where somebody lets it go
    try:
        with berth.open(large) as file:
            before = turns
            file.load_slice("w", 0, 0, 256)
            after = turns
    finally:
        sys.setswitchinterval(interval)
        done = True
        other.join()
    assert after > before


def test_errors_name_the_file_and_the_place(tmp_path):
    with pytest.raises(FileNotFoundError):
        berth.open(tmp_path / "gone")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\x05\0\0\0\0\0\0\0{\"a\"}")
    with pytest.raises(ValueError, match="bad.safetensors: safetensors header at byte 12"):
        berth.open(bad)
    save_file({"a": np.zeros(1)}, bad)
    file = berth.open(bad)
    with pytest.raises(KeyError, match="no tensor named"):
        file["b"]
    with pytest.raises(KeyError):
        file.load(["b"])
    assert "b" not in file and "a" in file and 3 not in file
    with pytest.raises(ValueError, match="must end with"):
        berth.save(tmp_path / "x.bin", {})
    with pytest.raises(TypeError):
        berth.save(tmp_path / "x.gguf", {}, {"k": object()})


def test_buffers_outlive_their_file(tmp_path, no_leak):
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(5)}, path)
    array = np.from_dlpack(berth.open(path)["a"])
    gc.collect()
    os.remove(path)
    assert array.tolist() == [0, 1, 2, 3, 4] and not array.flags.writeable


def test_converts_both_ways(tmp_path):
    arrays = {"w": np.arange(6, dtype="f4").reshape(2, 3), "v": np.arange(3, dtype="i8")}
    save_file(arrays, tmp_path / "a.safetensors", {"note": "x"})
    berth.convert(tmp_path / "a.safetensors", tmp_path / "b.gguf")
    reader = gguf.GGUFReader(tmp_path / "b.gguf")
    assert {t.name: t.data.tobytes() for t in reader.tensors} == {n: a.tobytes() for n, a in arrays.items()}
    berth.convert(tmp_path / "b.gguf", tmp_path / "c.safetensors")
    assert all((load_file(tmp_path / "c.safetensors")[n] == a).all() for n, a in arrays.items())
    assert berth.open(tmp_path / "c.safetensors").metadata == {"note": "x"}


def test_a_thousand_opens_leak_nothing(tmp_path, no_leak):
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(5)}, path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        berth.open(path)["a"].numpy()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_tensors_arrive_in_the_background_in_the_order_requested(tmp_path, arrays, no_leak):
    path = tmp_path / "a.safetensors"
    save_file(arrays, path)
    order = sorted(arrays, reverse=True)
    for method in "threads", "ring":
        with berth.open(path) as file:
            load = file.load_async(order, berth.caching_pool(), readers=2, method=method)
        assert list(load) == load.keys() == order and len(load) == len(order) and order[0] in load and 3 not in load
        arrived = []
        for name, buffer in load.items():
            assert load.has_arrived(name) and buffer.tobytes() == arrays[name].tobytes()
            assert buffer.shape == arrays[name].shape
            arrived.append(name)
        assert arrived == order and load.method in (method, "threads")
        assert repr(load) == f"<berth.AsyncLoad {len(order)} of {len(order)} tensors arrived>"
        assert {name: buffer.tobytes() for name, buffer in load.finish().items()} == {
            name: array.tobytes() for name, array in arrays.items()}
        del load, buffer
    assert berth.load_async(path)[order[3]].tobytes() == arrays[order[3]].tobytes()
    assert berth.load_async(path, names=[]).finish() == {}
    twice = berth.load_async(path, names=order[:1] * 2)
    assert len(twice) == 1 and list(twice.finish()) == order[:1]
    with pytest.raises(KeyError, match="nobody"):
        berth.load_async(path, names=["nobody"])
    with pytest.raises(KeyError, match="nobody"):
        twice["nobody"]
    with pytest.raises(ValueError, match="threads"):
        berth.load_async(path, method="magic")
    with pytest.raises(MemoryError):
        berth.load_async(path, berth.limit("CPU", 16))


def test_a_background_load_ends_with_its_block_and_with_its_last_reference(large, no_leak):
    before = bytes_read()
    with berth.load_async(large) as load:
        assert len(load) == 1
    assert bytes_read() - before < 1 << 30
    if not load.has_arrived("w"):
        with pytest.raises(InterruptedError) as caught:
            load["w"]
        assert caught.value.code == "Cancelled"
    del load
    before = bytes_read()
    load = berth.load_async(large)
    load.cancel()
    with pytest.raises(InterruptedError):
        load.finish()
    berth.load_async(large)
    assert bytes_read() - before < 2 << 30


def test_ctrl_c_ends_a_wait_for_a_tensor_and_not_the_load(large, alarm, no_leak):
    with berth.load_async(large, readers=1) as load:
        with pytest.raises(KeyboardInterrupt):
            alarm()
            while True:  # the wait may be over before the signal
                load["w"]
        assert load["w"].nbytes == 1 << 30


def test_a_file_that_was_cut_fails_what_it_lacks_and_nothing_else(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": np.ones(1 << 20, np.float32), "b": np.ones(8 << 20, np.float32)}, path)
    with berth.open(path) as file:
        os.truncate(path, path.stat().st_size - 1000)
        load = file.load_async(["a", "b"])
    assert load["a"].numpy().sum() == 1 << 20 and not load.has_arrived("b")
    for attempt in lambda: load["b"], load.finish:
        with pytest.raises(OSError, match="a.safetensors"):
            attempt()
    assert load["a"].numpy().sum() == 1 << 20
