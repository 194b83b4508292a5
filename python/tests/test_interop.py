"""Zero copies between Berth and NumPy, ml_dtypes, JAX and tinygrad: pointers are compared, not values alone."""
import gc
import os
import random
import threading

import ml_dtypes
import numpy as np
import pytest

import berth
from berth import _dtypes

NUMPY = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
         "float64", "complex64"]
NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_both_ways_without_copies(name):
    theirs = np.arange(6).astype(name).reshape(2, 3)
    ours = berth.from_dlpack(theirs)
    assert ours.address == theirs.ctypes.data and ours.shape == (2, 3)
    for back in (ours.numpy(), np.from_dlpack(ours), np.asarray(ours)):
        assert back.ctypes.data == theirs.ctypes.data
        assert back.dtype == theirs.dtype and (back == theirs).all()


@pytest.mark.parametrize("name", NARROW)
def test_ml_dtypes_keep_their_bits(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    buffer = berth.Buffer((2, 4), dtype)
    array = buffer.numpy()
    assert array.dtype == dtype and array.shape == (2, 4) and array.ctypes.data == buffer.address
    array[:] = 1
    assert (buffer.numpy().astype("f4") == 1).all()


def test_foreign_memory_is_counted_as_such():
    counters = berth.device("CPU").counters
    gc.collect()
    before = counters()
    ours = berth.from_dlpack(np.zeros(1000, "u1"))
    assert counters()["foreign_bytes"] - before["foreign_bytes"] == 1000
    assert counters()["foreign_count"] - before["foreign_count"] == 1
    assert counters()["live_bytes"] == before["live_bytes"]
    with pytest.raises(MemoryError, match="foreign buffer"):
        berth.Buffer(1 << 60, "u8")
    ours.release()
    assert counters()["foreign_bytes"] == before["foreign_bytes"]


def test_types_without_a_numpy_type_say_what_to_do():
    with pytest.raises(TypeError, match="view_as"):
        berth.Buffer(32, "q4_0").numpy()


def test_read_only_stays_read_only():
    theirs = np.arange(4)
    theirs.flags.writeable = False
    ours = berth.from_dlpack(theirs)
    assert ours.is_read_only
    assert not ours.numpy().flags.writeable
    assert not np.from_dlpack(ours).flags.writeable
    with pytest.raises(BufferError, match="before 1.0"):
        ours.__dlpack__()


def test_strided_arrays_are_copied_unless_forbidden():
    theirs = np.arange(12, dtype="f4").reshape(3, 4).T
    ours = berth.from_dlpack(theirs)
    assert not ours.is_foreign and (ours.numpy() == theirs).all()
    negative = np.arange(5)[::-1]
    assert berth.from_dlpack(negative).numpy().tolist() == [4, 3, 2, 1, 0]
    with pytest.raises(ValueError, match="strided"):
        berth.from_dlpack(theirs, copy=False)
    assert not berth.from_dlpack(np.arange(3), copy=True).is_foreign


@pytest.mark.parametrize("dtype", ["float32", "uint8", "complex64"])
def test_arrays_without_elements_come_whole_whatever_their_strides(dtype, no_leak):
    whole = np.empty((6, 6, 6), dtype)
    slices = [slice(0, 0), slice(None), slice(None, None, 2), slice(None, None, -3), slice(6, None), slice(4, 2, -1)]
    for a in slices:
        for b in slices:
            for c in slices:
                theirs = whole[a, b, c]
                if theirs.size:
                    continue
                for array in (theirs, theirs.T, theirs.transpose(2, 0, 1)):
                    ours = berth.from_dlpack(array, copy=False)
                    assert ours.shape == array.shape and ours.nbytes == 0 and ours.tobytes() == b""
                    assert np.from_dlpack(ours).shape == array.shape
    assert berth.from_dlpack(np.empty((0, 6), np.float32)[:, ::2]).shape == (0, 3)


def test_dlpack_refuses_arguments_that_are_none_of_the_protocol():
    buffer = berth.Buffer(4, "f32", zero=True)
    for version in (("one", 0), (None, 1), 1, ()):
        with pytest.raises((TypeError, IndexError)):
            buffer.__dlpack__(max_version=version)
    with pytest.raises((TypeError, RuntimeError)):
        buffer.__dlpack__(dl_device=("cpu", 0))
    buffer.release()
    for call in (buffer.__dlpack__, buffer.__dlpack_device__, lambda: buffer.__dlpack__(dl_device=(1, 0))):
        with pytest.raises(ValueError, match="released"):
            call()


def test_buffers_say_whether_the_host_can_reach_them():
    lazy = berth.Buffer(4, "f32", lazy=True)
    assert lazy.cpu_accessible and not lazy.is_allocated
    assert repr(lazy) == "<berth.Buffer f32[4] on CPU, 16 B, lazy>"


def test_dlpack_arguments_are_honoured():
    buffer = berth.Buffer(4, "f32", zero=True)
    assert buffer.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(buffer.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" not in repr(buffer.__dlpack__(max_version=(0, 8)))
    assert np.from_dlpack(buffer, copy=True).ctypes.data != buffer.address
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))
    capsule = buffer.__dlpack__()
    berth.from_dlpack(capsule)
    with pytest.raises(ValueError, match="used already"):
        berth.from_dlpack(capsule)


def test_numpy_is_writable_where_the_memory_is():
    buffer = berth.Buffer((2, 3), "f32", zero=True)
    buffer.numpy()[1, 2] = 7
    assert buffer.numpy().flags.writeable and buffer.numpy()[1, 2] == 7
    assert buffer.numpy().ctypes.data == buffer.address
    lazy = berth.Buffer(4, "i8", lazy=True)
    assert lazy.numpy().shape == (4,) and lazy.is_allocated
    assert berth.Buffer((0, 3), "f32").numpy().shape == (0, 3) and berth.Buffer((), "f64").numpy().shape == ()
    old = _dtypes.array_of(buffer)  # as with a NumPy before 2.1
    assert old.ctypes.data == buffer.address and old.flags.writeable and old.dtype == "f4"


def test_a_foreign_deleter_runs_once_on_any_thread(no_leak):
    ours = [berth.from_dlpack(np.arange(4)) for _ in range(100)]
    threads = [threading.Thread(target=ours.clear)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not ours


def test_a_thousand_round_trips_leak_nothing(no_leak):
    buffer = berth.Buffer(1000, "f32", zero=True)
    for _ in range(1000):
        array = np.from_dlpack(berth.from_dlpack(np.from_dlpack(buffer)))
        buffer.__dlpack__()  # a capsule that nobody takes
    assert array.ctypes.data == buffer.address
    del array, buffer


def test_collection_in_any_order_is_safe(no_leak):
    for seed in range(50):
        buffer = berth.Buffer(16, "i32", zero=True)
        array = np.from_dlpack(buffer.view(16, 16))
        held = [buffer, array, memoryview(buffer), berth.from_dlpack(array), array[1:], buffer.reshape((4, 4))]
        del buffer, array
        random.Random(seed).shuffle(held)
        while held:
            last = held.pop()
            gc.collect()
            assert bytes(memoryview(last)).count(0) > 0
            del last


def test_jax_shares_memory():
    jax = pytest.importorskip("jax")
    buffer = berth.Buffer((4, 8), "f32", zero=True)
    theirs = jax.dlpack.from_dlpack(buffer)
    assert theirs.unsafe_buffer_pointer() == buffer.address
    made = jax.numpy.arange(8, dtype="float32")
    ours = berth.from_dlpack(made)
    assert ours.address == made.unsafe_buffer_pointer()
    assert ours.numpy().tolist() == list(range(8))
    narrow = jax.numpy.ones(3, dtype="bfloat16")
    assert berth.from_dlpack(narrow).dtype == "bf16"


def test_jax_keeps_the_memory_after_everything_else_is_gone(no_leak):
    jax = pytest.importorskip("jax")
    theirs = jax.dlpack.from_dlpack(berth.Buffer(64, "f32", zero=True))
    gc.collect()
    assert float(theirs.sum()) == 0.0
    del theirs


def test_tinygrad_shares_memory():
    tinygrad = pytest.importorskip("tinygrad")
    buffer = berth.Buffer(4, "f32")
    buffer.numpy()[:] = [1, 2, 3, 4]
    theirs = tinygrad.Tensor.from_blob(buffer.address, buffer.shape, dtype=tinygrad.dtypes.float32, device="CPU")
    buffer.numpy()[0] = 9  # written after it was handed over
    assert theirs.numpy().tolist() == [9, 2, 3, 4]
    made = tinygrad.Tensor([5.0, 6.0], device="CPU").contiguous().realize()
    memory = made.uop.base.buffer.as_memoryview(force_zero_copy=True)
    ours = berth.from_dlpack(memory)
    assert ours.is_foreign and ours.address == np.frombuffer(memory, "u1").ctypes.data
    assert ours.view_as("f32", 2).numpy().tolist() == [5.0, 6.0]


@pytest.fixture
def gpu(monkeypatch):
    """CUDA through the double of its driver, which the tests of the C++ library build."""
    double = os.environ.get("BERTH_CUDA_DOUBLE")
    if not double:
        pytest.skip("BERTH_CUDA_DOUBLE names no double of the CUDA driver")
    monkeypatch.setenv("BERTH_CUDA_LIBRARY", double)
    yield "CUDA:0"
    gc.collect()


class Producer:
    """A GPU array of another library: what it hands out is a Berth buffer's capsule."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.asked = []

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None):
        self.asked.append((stream, max_version))
        return self.buffer.__dlpack__(stream=stream, max_version=max_version)


def test_a_gpu_producer_is_given_the_stream_to_make_wait(gpu):
    buffer = berth.Buffer(4, "f32", gpu)
    buffer.copyin(np.arange(4, dtype="f4"))
    assert buffer.__dlpack_device__() == (2, 0)
    producer = Producer(buffer)
    ours = berth.from_dlpack(producer)
    stream, version = producer.asked[-1]  # the first answer showed that it is on a GPU
    assert isinstance(stream, int) and stream not in (0, 1, 2) and version == (1, 1)
    assert ours.is_foreign and ours.device == buffer.device
    assert np.frombuffer(ours.tobytes(), "f4").tolist() == [0, 1, 2, 3]


def test_gpu_memory_goes_to_the_host_only_by_a_copy_that_is_allowed(gpu):
    buffer = berth.Buffer(4, "f32", gpu)
    buffer.copyin(np.arange(4, dtype="f4"))
    on_host = berth.from_dlpack(buffer.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert on_host.device == "CPU" and on_host.numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(BufferError, match="another device"):
        buffer.__dlpack__(dl_device=(1, 0), copy=False)


def test_gpu_memory_is_asked_for_by_its_number_and_copied_where_it_is(gpu):
    buffer = berth.Buffer(4, "f32", gpu)
    buffer.copyin(np.arange(4, dtype="f4"))
    with pytest.raises(BufferError, match="another device"):
        buffer.__dlpack__(dl_device=(2, 1))
    copied = berth.from_dlpack(buffer.__dlpack__(copy=True, max_version=(1, 0)))
    assert copied.device == buffer.device and copied.tobytes() == buffer.tobytes()
    buffer.copyin(np.zeros(4, "f4"))
    assert np.frombuffer(copied.tobytes(), "f4").tolist() == [0, 1, 2, 3]


def test_a_lazy_gpu_buffer_takes_no_memory_to_be_refused(gpu):
    lazy = berth.Buffer(4, "f32", gpu, lazy=True)
    with pytest.raises(BufferError, match="host"):
        memoryview(lazy)
    assert lazy.__dlpack_device__() == (2, 0) and lazy.address == 0
    assert not lazy.cpu_accessible and not lazy.is_allocated
