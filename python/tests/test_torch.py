"""Zero copies between Berth and PyTorch, where it is installed: ./test does not install it, because it is gigabytes."""
import gc
import random

import pytest

import berth

torch = pytest.importorskip("torch")

DTYPES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "f16": torch.float16,
    "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64,
}


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_both_ways_without_copies(name):
    ours = berth.Buffer((2, 3), name, zero=True)
    theirs = torch.from_dlpack(ours)
    assert theirs.data_ptr() == ours.address and theirs.shape == (2, 3) and theirs.dtype == DTYPES[name]
    made = torch.ones((2, 3), dtype=DTYPES[name])
    back = berth.from_dlpack(made)
    assert back.address == made.data_ptr() and back.shape == (2, 3) and back.dtype == name and back.is_foreign
    assert torch.equal(torch.from_dlpack(back), made)


def test_writes_are_seen_on_both_sides():
    ours = berth.Buffer(4, "f32", zero=True)
    theirs = torch.from_dlpack(ours)
    theirs[1] = 5
    ours.numpy()[2] = 6
    assert ours.numpy().tolist() == theirs.tolist() == [0, 5, 6, 0]


def test_a_view_keeps_its_parent_after_everything_else_is_gone(no_leak):
    theirs = torch.from_dlpack(berth.Buffer(64, "f32", zero=True).view(16, 32))
    gc.collect()
    assert theirs.tolist() == [0.0] * 8
    del theirs


def test_a_tensor_outlives_its_name_in_ours():
    made = torch.arange(1000)
    ours = berth.from_dlpack(made)
    del made
    gc.collect()
    torch.zeros(1000, dtype=torch.int64)  # would take its place
    assert ours.numpy().tolist() == list(range(1000))


def test_strided_tensors_are_copied_unless_forbidden():
    turned = torch.arange(6, dtype=torch.float32).reshape(2, 3).T
    assert berth.from_dlpack(turned).numpy().tolist() == turned.tolist()
    with pytest.raises(ValueError, match="strided"):
        berth.from_dlpack(turned, copy=False)
    part = torch.arange(6)[2:5]
    assert berth.from_dlpack(part, copy=False).address == part.data_ptr()


def test_capsules_of_the_older_form_are_taken():
    made = torch.arange(3)
    ours = berth.from_dlpack(torch.utils.dlpack.to_dlpack(made))
    assert ours.address == made.data_ptr()


def test_a_tensor_with_a_gradient_is_refused_by_torch_itself():
    with pytest.raises((BufferError, RuntimeError), match="require"):
        berth.from_dlpack(torch.ones(2, requires_grad=True))


def test_a_thousand_round_trips_leak_nothing(no_leak):
    buffer = berth.Buffer(1000, "f32", zero=True)
    for _ in range(1000):
        tensor = torch.from_dlpack(berth.from_dlpack(torch.from_dlpack(buffer)))
    assert tensor.data_ptr() == buffer.address
    del tensor, buffer


def test_collection_in_any_order_is_safe(no_leak):
    for seed in range(50):
        buffer = berth.Buffer(16, "i32", zero=True)
        tensor = torch.from_dlpack(buffer)
        held = [buffer, tensor, berth.from_dlpack(tensor), tensor[1:], buffer.reshape((4, 4))]
        del buffer, tensor
        random.Random(seed).shuffle(held)
        while held:
            last = held.pop()
            gc.collect()
            assert torch.from_dlpack(last).sum() == 0
            del last


def test_weights_go_both_ways_byte_for_byte(tmp_path):
    files = pytest.importorskip("safetensors.torch")
    theirs = {f"{name}.w": torch.ones((3, 5), dtype=dtype) for name, dtype in DTYPES.items() if name != "c64"}
    theirs["empty"] = torch.zeros((0, 3))
    files.save_file(theirs, tmp_path / "theirs.safetensors")
    opened = berth.open(tmp_path / "theirs.safetensors")
    for name, tensor in theirs.items():
        assert opened[name].shape == tuple(tensor.shape)
        assert opened[name].tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes()
    berth.save(tmp_path / "ours.safetensors", {name: berth.from_dlpack(tensor) for name, tensor in theirs.items()})
    again = files.load_file(tmp_path / "ours.safetensors")
    assert again.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(again[name], tensor) and again[name].dtype == tensor.dtype


def test_a_tensor_of_a_file_is_read_in_place(tmp_path):
    berth.save(tmp_path / "m.safetensors", {"w": berth.from_dlpack(torch.arange(4, dtype=torch.float32))})
    mapped = berth.open(tmp_path / "m.safetensors")["w"]
    assert torch.from_dlpack(berth.load(tmp_path / "m.safetensors")["w"]).tolist() == [0, 1, 2, 3]
    try:
        theirs = torch.from_dlpack(mapped)
    except BufferError as refusal:  # one that asks for the older form, which cannot say that memory is read-only
        assert "before 1.0" in str(refusal)
    else:
        assert theirs.data_ptr() == mapped.address and theirs.tolist() == [0, 1, 2, 3]
