"""Model and data files that ship inside PyPI packages, compared byte for byte with what the formats' own packages read.

scripts/requirements-models.txt names the packages; one that is not installed is skipped.
"""
import importlib.util
import pathlib
import struct
import zipfile
import zlib

import gguf
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

import berth

MODELS = {"silero_vad": "data/silero_vad_16k.safetensors", "wordllama": "weights/l2_supercat_256.safetensors"}


def folder(package):
    """Where a package is, without importing it: only its files are wanted."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    return pathlib.Path(spec.origin).parent


@pytest.fixture(params=MODELS)
def model(request):
    return folder(request.param) / MODELS[request.param]


def test_lists_a_model_as_the_reference_does(model):
    with berth.open(model) as ours, safetensors.safe_open(model, "np") as theirs:
        assert sorted(ours.keys()) == sorted(theirs.keys()) and len(ours) > 0
        assert ours.metadata == (theirs.metadata() or {})
        for name in ours:
            assert list(ours.info(name)["shape"]) == theirs.get_slice(name).get_shape()
        offsets = [ours.info(name)["offset"] for name in ours]
        assert offsets == sorted(offsets)


def test_maps_and_loads_a_models_bytes(model, no_leak):
    theirs = load_file(model)
    with berth.open(model) as file:
        loaded, sums = file.load(checksums=True)
        for name, array in theirs.items():
            assert file[name].tobytes() == array.tobytes()
            assert loaded[name].tobytes() == array.tobytes()
            assert sums[name] == zlib.crc32(array.tobytes())
            half = array.shape[0] // 2
            assert file.load_slice(name, 0, 0, half).tobytes() == array[:half].tobytes()
    del loaded, file


def test_a_model_survives_the_way_to_gguf_and_back(model, tmp_path):
    berth.convert(model, tmp_path / "a.gguf")
    theirs = load_file(model)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert set(tensors) == set(theirs)
    for name, array in theirs.items():
        assert tensors[name].data.tobytes() == array.tobytes()
    berth.convert(tmp_path / "a.gguf", tmp_path / "b.safetensors")
    back = load_file(tmp_path / "b.safetensors")
    assert all(back[name].tobytes() == array.tobytes() for name, array in theirs.items())


def test_a_model_cut_anywhere_is_an_error(model, tmp_path):
    data = model.read_bytes()
    (header,) = struct.unpack("<Q", data[:8])
    path = tmp_path / "cut.safetensors"
    for length in [0, 7, 8, 9, 8 + header // 2, 8 + header - 1, 8 + header, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises((ValueError, OSError), match="cut.safetensors"):
            berth.open(path)


@pytest.mark.parametrize("package", ["numpy", "scipy"])
def test_numpys_own_files_are_read_or_refused_with_a_reason(package):
    read = refused = 0
    for path in sorted([*folder(package).rglob("*.npy"), *folder(package).rglob("*.npz")]):
        try:
            file = berth.open(path)
        except ValueError as error:  # objects, compressed members, big-endian or long numbers
            assert error.code in ("Unsupported", "InvalidData") and path.name in str(error)
            refused += 1
            continue
        theirs = np.load(path)
        arrays = dict(theirs) if path.suffix == ".npz" else {file.keys()[0]: theirs}
        assert set(file.keys()) == set(arrays)
        for name, array in arrays.items():
            assert file[name].shape == array.shape and file[name].tobytes() == array.tobytes()
        read += 1
    if read + refused == 0:
        pytest.skip(f"{package} is installed without its test data")
    assert read > 0


def test_compressed_members_are_the_ones_refused():
    for path in sorted(folder("scipy").rglob("*.npz")):
        kinds = {member.compress_type for member in zipfile.ZipFile(path).infolist()}
        if kinds != {zipfile.ZIP_STORED}:
            with pytest.raises(ValueError, match="compress"):
                berth.open(path)
