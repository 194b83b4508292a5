import array
import gc
import threading

import numpy as np
import pytest

import berth


def test_describes_itself():
    buffer = berth.Buffer((2, 3), "bf16", label="weights", zero=True)
    assert repr(buffer) == '<berth.Buffer bf16[2, 3] on CPU, 12 B, label "weights">'
    assert (buffer.dtype, buffer.shape, buffer.ndim, buffer.size, buffer.nbytes) == ("bf16", (2, 3), 2, 6, 12)
    assert len(buffer) == 2
    assert buffer.address % 64 == 0


def test_takes_numpys_dtypes_and_integers_as_shape():
    assert berth.Buffer(4, np.float64).dtype == "f64"
    assert berth.Buffer([4], "float32").dtype == "f32"
    assert berth.Buffer((), np.dtype("int16")).shape == ()
    with pytest.raises(TypeError, match="no dtype is called"):
        berth.Buffer(4, "f31")
    with pytest.raises(TypeError, match="is no dtype"):
        berth.Buffer(4, object())
    with pytest.raises(ValueError, match="negative"):
        berth.Buffer(-1)


def test_views_share_memory_and_have_their_own_ids():
    buffer = berth.Buffer(8, "i32", zero=True)
    view = buffer.view(8, 8)
    assert view.storage_id == buffer.storage_id and view.id != buffer.id
    view.numpy()[0] = 7
    assert buffer.numpy()[2] == 7
    assert buffer.reshape((2, 4)).shape == (2, 4)
    assert buffer.view_as("u8", (32,)).shape == (32,)
    assert not buffer.is_unique


def test_errors_are_pythons_with_berths_text_and_code():
    buffer = berth.Buffer(4, "f32")
    with pytest.raises(ValueError, match="outside the buffer's 16 bytes") as caught:
        buffer.view(8, 16)
    assert caught.value.code == "InvalidView"
    with pytest.raises(MemoryError) as caught:
        berth.Buffer(1 << 60, "u8")
    assert caught.value.code == "OutOfMemory"
    with pytest.raises(OSError) as caught:
        berth.Buffer(4, "f32", "CUDA:7")
    assert caught.value.code == "DeviceUnavailable"
    with pytest.raises(ValueError, match="names no device"):
        berth.device("TOASTER")
    with pytest.raises(TypeError, match="a device is a name"):
        berth.Buffer(4, "f32", 3)
    with pytest.raises(ValueError) as caught:
        buffer.copyin(b"123")
    assert caught.value.code == "SizeMismatch"


def test_lazy_buffers_take_no_memory_until_used():
    buffer = berth.Buffer((1 << 30,), "u8", lazy=True)
    assert not buffer.is_allocated and "lazy" in repr(buffer)
    with pytest.raises(ValueError):
        buffer.tobytes()


def test_shares_memory_through_the_buffer_protocol():
    for dtype, letter in [("i8", "b"), ("u16", "H"), ("f16", "e"), ("f64", "d"), ("bool", "?"), ("c64", "Zf")]:
        buffer = berth.Buffer((2, 2), dtype, zero=True)
        view = memoryview(buffer)
        assert (view.format, view.shape, view.readonly) == (letter, (2, 2), False)
    raw = memoryview(berth.Buffer(32, "q4_0", zero=True))
    assert (raw.format, raw.nbytes) == ("B", 18)
    assert memoryview(berth.Buffer((0, 3), "f32")).nbytes == 0


def test_a_memoryview_outlives_release_and_collection(no_leak):
    buffer = berth.Buffer(4, "u8", zero=True)
    view = memoryview(buffer)
    buffer.release()
    del buffer
    gc.collect()
    view[0] = 9
    assert view.tolist() == [9, 0, 0, 0]
    view.release()


def test_copies_in_and_out():
    buffer = berth.Buffer(4, "u8")
    buffer.copyin(b"abcd")
    assert buffer.tobytes() == b"abcd"
    target = bytearray(4)
    buffer.copyout(target)
    assert target == b"abcd"
    other = berth.Buffer(4, "u8")
    other.copy_from(buffer)
    assert other.tobytes() == b"abcd"
    assert buffer.to("CPU").tobytes() == b"abcd"
    buffer.view(1, 3).copy_from(buffer.view(0, 3))
    assert buffer.tobytes() == b"aabc"
    with pytest.raises(BufferError):
        buffer.copyout(b"1234")


def test_buffers_made_one_after_another_are_of_one_device():
    before = berth.device("CPU").counters()["allocations"]
    for _ in range(3):
        berth.Buffer(4, "f32")
    assert berth.device("CPU").counters()["allocations"] == before + 3


def test_item_is_the_only_element():
    for dtype, value in [("i64", -5), ("u8", 200), ("f32", 0.5), ("bool", True), ("f16", 1.5), ("bf16", 2.0)]:
        buffer = berth.Buffer(1, dtype)
        buffer.numpy()[0] = value
        assert buffer.item() == value
    with pytest.raises(ValueError, match="exactly one"):
        berth.Buffer(2, "f32", zero=True).item()


def test_is_a_context_manager(no_leak):
    with berth.Buffer(1 << 20, "u8") as buffer:
        assert buffer.is_allocated
    assert repr(buffer) == "<berth.Buffer released>"
    with pytest.raises(ValueError, match="released"):
        buffer.view(0, 1)
    with pytest.raises(ValueError, match="released"):
        buffer.__dlpack_device__()
    with pytest.raises(BufferError):
        memoryview(buffer)


def test_imports_objects_with_the_buffer_protocol():
    owner = array.array("f", [1, 2, 3])
    buffer = berth.from_dlpack(owner)
    assert (buffer.dtype, buffer.nbytes, buffer.is_foreign) == ("u8", 12, True)
    assert buffer.view_as("f32", 3).numpy().tolist() == [1, 2, 3]
    assert berth.from_dlpack(b"abc").is_read_only
    with pytest.raises(TypeError):
        berth.from_dlpack(3)


def test_buffers_are_made_and_dropped_from_many_threads(no_leak):
    def work():
        for _ in range(200):
            buffer = berth.Buffer(1000, "f32", zero=True)
            assert buffer.view(0, 4).item() == 0.0

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def test_devices_are_listed_with_reasons():
    rows = {row["name"].split(":")[0]: row for row in berth.devices()}
    assert rows["CPU"]["available"]
    assert {"CPU", "DISK", "CUDA", "METAL", "WEBGPU", "REMOTE"} <= set(rows)
    assert berth.device("CPU").residency() is None or "commits" in berth.device("CPU").residency()
    assert berth.dtype_info("q4_0") == ("q4_0", 32, 18)
    assert "nvfp4" in berth.dtypes()
