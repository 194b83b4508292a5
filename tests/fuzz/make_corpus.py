"""Makes the seed files under corpus/ with the formats' own packages: safetensors, gguf, numpy and ml_dtypes. The files
named real_* are the headers of model files that ship inside packages of scripts/requirements-models.txt, with the
tensors' data left out or cut to a few bytes; none of their weights are kept.

    build/venv/bin/python tests/fuzz/make_corpus.py
"""
import io
import json
import pathlib
import pickle
import struct
import sys
import tempfile

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save

HERE = pathlib.Path(__file__).parent / "corpus"


def put(kind, name, data):
    folder = HERE / kind
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors_files():
    rng = np.random.default_rng(7)
    every = {}
    for dtype in ("bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "float64",
                  "int64", "uint64", "complex64"):
        every[f"tensor.{dtype}"] = rng.integers(0, 2, (2, 3)).astype(dtype)
    put("safetensors", "every_numpy_type", save(every))
    put("safetensors", "with_metadata", save({"a": np.zeros((1, 2), np.float32)}, {"format": "pt", "note": "ü \"x\""}))
    put("safetensors", "empty", save({}))
    put("safetensors", "zero_size", save({"none": np.zeros((0, 4), np.float32), "one": np.ones((), np.int8)}))
    layer = {}
    for i in range(3):
        for part in ("attention.self.query.weight", "attention.self.query.bias", "output.LayerNorm.weight"):
            layer[f"encoder.layer.{i}.{part}"] = np.zeros((2, 2), np.float16)
    put("safetensors", "like_a_transformer", save(layer))
    for name, header in {
        "narrow_types": {"p": {"dtype": "F4", "shape": [2, 2], "data_offsets": [0, 2]},
                         "s": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [2, 4]},
                         "t": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [4, 7]},
                         "b": {"dtype": "BF16", "shape": [1], "data_offsets": [7, 9]}},
        "extra_keys": {"a": {"dtype": "U8", "more": [{"x": [1, -2.5e3, True, None]}], "shape": [1],
                             "data_offsets": [0, 1]}},
    }.items():
        text = json.dumps(header).encode()
        put("safetensors", name, struct.pack("<Q", len(text)) + text + bytes(9 if name == "narrow_types" else 1))
    text = rb'{"\u0061\ud83d\ude00\n":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}  '
    put("safetensors", "escapes", struct.pack("<Q", len(text)) + text + b"abc")
    index = {"metadata": {"total_size": 24}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                                            "b": "model-00002-of-00002.safetensors"}}
    put("safetensors_index", "two_shards", json.dumps(index, indent=2).encode())
    put("safetensors_index", "empty_map", b'{"weight_map":{}}')


def config_files():
    """config.json of models, with the names that the transformers library gives them."""
    llama = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 256, "vocab_size": 1000,
             "max_position_embeddings": 4096, "num_attention_heads": 8, "num_key_value_heads": 2,
             "intermediate_size": 512}
    configs = {
        "llama": llama,
        "gemma3": {**llama, "model_type": "gemma3_text", "head_dim": 64, "sliding_window": 512,
                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "mixtral": {**llama, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        "latent": {**llama, "model_type": "deepseek_v2", "kv_lora_rank": 64, "qk_rope_head_dim": 16, "v_head_dim": 32,
                   "qk_nope_head_dim": 32, "q_lora_rank": None, "n_routed_experts": 4, "moe_intermediate_size": 64},
        "mamba": {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100, "state_size": 16,
                  "conv_kernel": 4, "intermediate_size": 128, "time_step_rank": 4},
        "unknown": {"model_type": "unheard-of", "n_layer": 2, "n_embd": 64},
        "no_heads": {**llama, "num_attention_heads": 0},
        "huge": {**llama, "num_hidden_layers": 4294967295, "hidden_size": 4294967295},
        "wrong_types": {**llama, "num_hidden_layers": "3", "layer_types": 7},
        "nothing": {},
    }
    for name, config in configs.items():
        put("config", name, json.dumps(config).encode())
    put("config", "no_object", b"[[[[1]]]]")
    put("config", "cut_short", json.dumps(llama).encode()[:40])


def remote_wire_files():
    """What ranks of a cluster publish and send, without the seal, which the fuzz target makes; see src/remote/wire.cpp."""
    def blob(data):
        return struct.pack("<I", len(data)) + data
    card = struct.pack("<IIIIIIQB", 0x43425242, 1, 3, 9, 1, 13, 1 << 33, 1) + blob(b"machine/boot") + blob(b"net:[1]")
    put("remote_wire", "card", b"\0" + card + blob(bytes(50)))
    put("remote_wire", "card_of_version_2", b"\0" + card[:4] + b"\2" + card[5:] + blob(bytes(50)))
    message = struct.pack("<BIIQ7Q", 6, 1, 2, 99, *range(7)) + blob(b"key")
    put("remote_wire", "message", b"\1" + message)
    put("remote_wire", "message_cut_short", b"\1" + message[:-2])
    window = struct.pack("<IIQQQB", 0x57425242, 4, 77, 1 << 60, 48, 0) + blob(b"f32") + struct.pack("<BQQ", 2, 6, 2)
    put("remote_wire", "window", b"\2" + window)
    put("remote_wire", "window_with_nine_axes", b"\2" + window[:-17] + b"\x09" + bytes(72))
    put("remote_wire", "without_a_seal", b"\3" + bytes(100))


def real_header(path, keep):
    """A real safetensors header: names, types and order as they are, `keep` tensors of it, shapes and data made tiny."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    small, at = {}, 0
    for name, entry in list(header.items()):
        if name == "__metadata__":
            small[name] = entry
            continue
        if len(small) > keep:
            break
        shape = [1] * len(entry["shape"])
        width = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}.get(entry["dtype"], 1)
        small[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": [at, at + width]}
        at += width
    text = json.dumps(small, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def real_files():
    packages = pathlib.Path(np.__file__).parents[1]
    put("safetensors", "real_audio_model", real_header(packages / "silero_vad/data/silero_vad_16k.safetensors", 16))
    put("safetensors", "real_embeddings",
        real_header(packages / "wordllama/weights/l2_supercat_256.safetensors", 16))
    # The same names and shapes as a GGUF file, written by the format's own package.
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a.gguf"
        writer = gguf.GGUFWriter(path, "silero")
        header = real_header(packages / "silero_vad/data/silero_vad_16k.safetensors", 16)
        for name, entry in json.loads(header[8:8 + struct.unpack("<Q", header[:8])[0]]).items():
            if name != "__metadata__":
                writer.add_tensor(name, np.zeros(entry["shape"], np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        put("gguf", "real_audio_model", path.read_bytes())


def gguf_files():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint8("k.u8", 1)
        writer.add_int8("k.i8", -1)
        writer.add_uint16("k.u16", 2)
        writer.add_int16("k.i16", -2)
        writer.add_uint32("k.u32", 3)
        writer.add_int32("k.i32", -3)
        writer.add_uint64("k.u64", 4)
        writer.add_int64("k.i64", -4)
        writer.add_float32("k.f32", 0.5)
        writer.add_float64("k.f64", 0.25)
        writer.add_bool("k.bool", True)
        writer.add_string("k.string", "text")
        writer.add_array("k.numbers", [1, 2, 3])
        writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "ü"])
        writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("output_norm.weight", np.zeros(3, np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        data = path.read_bytes()
        put("gguf", "every_value_type", data)
        put("gguf", "version_2", data[:4] + struct.pack("<I", 2) + data[8:])
    put("gguf", "nothing_inside", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    key = b"nested"
    nested = struct.pack("<Q", len(key)) + key + struct.pack("<I", 9)
    nested += struct.pack("<IQ", 9, 2) + struct.pack("<IQ", 0, 2) + b"\1\2" + struct.pack("<IQ", 8, 1) + struct.pack("<Q", 1) + b"z"
    align = b"general.alignment"
    entry = struct.pack("<Q", len(align)) + align + struct.pack("<II", 4, 64)
    put("gguf", "nested_array_and_alignment", b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + nested + entry)


def dlpack_files():
    """Tensors as dlpack_fuzz.cpp reads them: a byte of switches, then the fields, 16 extents and 16 strides."""
    versioned, strided, never_copy, null, raw = 1, 2, 4, 8, 16
    least = -(1 << 63)

    def tensor(name, form, dtype, shape, strides=(), *, device=(1, 0), flags=0, offset=0, data=0, major=1, rank=None):
        code, bits, lanes = dtype
        padded = [list(values) + [0] * (16 - len(values)) for values in (shape, strides)]
        put("dlpack", name, struct.pack("<BBBHiiiIQQQ", form, code, bits, lanes, *device,
                                        len(shape) if rank is None else rank, major, flags, offset, data)
            + struct.pack("<32q", *padded[0], *padded[1]))

    f32, u8, f4 = (2, 32, 1), (1, 8, 1), (17, 4, 1)
    tensor("dense", versioned | strided, f32, (3, 4), (4, 1))
    tensor("without_strides", 0, f32, (3, 4), offset=16)
    tensor("transposed", versioned | strided, f32, (4, 3), (1, 4))
    tensor("backwards", strided, f32, (3, 4), (-4, -1), data=44)
    tensor("broadcast", strided, f32, (2, 3), (0, 4))
    tensor("strided_and_never_copied", strided | never_copy, u8, (2, 2), (4, 1))
    tensor("empty_and_strided", strided, f32, (0, 3), (6, 2))
    tensor("empty_and_null", versioned | strided | null, f32, (3, 0), (least, 7), offset=(1 << 64) - 1)
    tensor("scalar_read_only", versioned, f32, (), flags=1)
    tensor("eight_dimensions", 0, u8, (1, 2, 1, 2, 1, 2, 1, 2))
    tensor("nine_dimensions", 0, u8, (1,) * 9)
    tensor("no_dimensions_but_many", 0, u8, (1,), rank=1 << 20)
    tensor("packed", 0, f4, (2, 3))
    tensor("padded", versioned, f4, (2, 3), flags=4)
    tensor("wrapping_offset", versioned, f32, (2,), offset=(1 << 64) - 8)
    tensor("wrapping_address", versioned | raw, f32, (4,), data=(1 << 64) - 16)
    tensor("wrapping_strides", strided, u8, (3, 3), (1 << 62, least))
    tensor("huge", versioned | raw, u8, (1 << 62,), data=1 << 40)
    tensor("newer", versioned, f32, (1,), major=2)
    tensor("lanes", 0, (2, 32, 4), (1,))
    tensor("unknown_device", 0, f32, (1,), device=(10, 0))


def numpy_files():
    for dtype in ("<f4", "|b1", "<i8", "<c8", "<f2"):
        stream = io.BytesIO()
        np.save(stream, np.zeros((2, 3), dtype))
        put("npy", dtype.strip("<|"), stream.getvalue())
    stream = io.BytesIO()
    np.save(stream, np.asfortranarray(np.zeros((2, 3))))
    put("npy", "fortran", stream.getvalue())
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.zeros(2, np.int8), version=(2, 0))
    put("npy", "version_2", stream.getvalue())
    stream = io.BytesIO()
    np.save(stream, np.zeros(2, ml_dtypes.bfloat16))
    put("npy", "brain_float", stream.getvalue())
    # As Python 2 wrote them: long integers with their letter, and no more padding than was needed then.
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2L, 3L), }"
    header += b" " * (-(len(header) + 11) % 16) + b"\n"
    put("npy", "old_python", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(48))
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}, None, "text"], dtype=object), allow_pickle=True)
    put("npy", "objects", stream.getvalue())
    # The arrays of a sparse matrix beside a text without dimensions, as scientific packages save one.
    stream = io.BytesIO()
    np.savez(stream, indices=np.array([0, 2, 1], np.int32), indptr=np.array([0, 1, 3], np.int32), format=np.array(b"csc"),
             shape=np.array([3, 2], np.int64), data=np.array([1.5, -2.0, 0.25]))
    put("npz", "sparse_matrix", stream.getvalue())
    stream = io.BytesIO()
    np.savez(stream, weight=np.zeros((2, 2), np.float32), bias=np.ones(3, np.int8))
    put("npz", "stored", stream.getvalue())
    stream = io.BytesIO()
    np.savez_compressed(stream, weight=np.zeros((8, 8), np.float32))
    put("npz", "compressed", stream.getvalue())
    stream = io.BytesIO()
    np.savez(stream)
    put("npz", "empty", stream.getvalue())


def replay_plan_files():
    """Saved replay plans, as src/run/replay_plan.cpp writes them: 64-bit numbers, texts with their length, an FNV."""

    def number(value):
        return struct.pack("<Q", value)

    def text(value):
        return number(len(value)) + value

    def plan(key, requests, releases, size, bound):
        body = text(key) + number(len(requests))
        for nbytes, alignment, released, kept, offset in requests:
            body += number(nbytes) + number(alignment) + number(released | kept << 32) + number(offset)
        body += number(len(releases)) + b"".join(number(request) for request in releases)
        return body + number(size) + number(bound) + text(b"greedy") + number(0)

    never, nowhere = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
    chain = plan(b"x:1,3", [(64, 64, 2, 0, 0), (128, 64, 3, 0, 64), (64, 64, 3, 0, 0)], [0, 1, 2], 192, 192)
    kept = plan(b"x:2,3", [(64, 64, never, 1, nowhere), (100, 4, 2, 0, 0)], [1], 100, 100)
    for name, plans in {"none": [], "a_chain": [chain], "two_plans": [chain, kept]}.items():
        body = b"berth replay plans 1\n" + text(b"stamp") + number(len(plans)) + b"".join(plans)
        hashed = 0xCBF29CE484222325
        for byte in body:
            hashed = (hashed ^ byte) * 0x100000001B3 & nowhere
        put("replay_plan", name, body + number(hashed))


def kv_recording_files():
    """Calls of key-value caches (berth/kv/recording.h)."""
    def numbers(*values):
        out = bytearray()
        for value in values:
            while value >= 0x80:
                out.append(value & 0x7f | 0x80)
                value >>= 7
            out.append(value)
        return bytes(out)

    magic = b"BRTHKVC1"
    opened = numbers(1, 0, 0, 4, 1, 5, 1, 2, 3, 4, 5)
    calls = opened + numbers(4, 0) + numbers(2, 1, 0, 0xffffffff) + numbers(5, 0) + numbers(6, 1, 3) \
        + numbers(3, 1, 2, 9, 9) + numbers(7, 0) + numbers(8, 1000, 0) + numbers(8, 5, 1)
    put("kv_recording", "empty", magic)
    put("kv_recording", "calls", magic + calls + opened)
    put("kv_recording", "closed_twice", magic + opened + numbers(8, 0, 0) + numbers(8, 0, 0))
    put("kv_recording", "many_tokens", magic + numbers(1, 0, 0, 0, 1, 1 << 40, 1))
    put("kv_recording", "long_number", magic + b"\x01" + b"\xff" * 11)
    put("kv_recording", "cut", (magic + calls)[:-1])


def torch_snapshot_files():
    """Memory snapshots of PyTorch, made as the tests of `berth explain` make them."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
    import torch_snapshot

    for name, protocol, expandable, steps in (("empty", 4, False, 0), ("small", 2, False, 12),
                                              ("expandable", 4, True, 30), ("several", 5, False, 60)):
        allocator = torch_snapshot.Allocator(expandable=expandable)
        torch_snapshot.random_program(allocator, 1, steps, streams=2)
        put("torch_snapshot", name, pickle.dumps(allocator.snapshot(), protocol=protocol))


if __name__ == "__main__":
    torch_snapshot_files()
    replay_plan_files()
    kv_recording_files()
    safetensors_files()
    gguf_files()
    config_files()
    remote_wire_files()
    dlpack_files()
    numpy_files()
    real_files()
