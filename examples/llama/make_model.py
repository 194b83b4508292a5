"""Makes a model with random weights as a GGUF file, to try the decoder with.

    make_model.py FILE [--type f32|f16|q8_0|q4_0] [--architecture llama|qwen2] [--seed N] [--layers N] ...

The weights mean nothing; names, shapes, keys and the vocabulary are those that other programs expect too. Needs the
packages gguf and numpy.
"""

import argparse

import gguf
import numpy

TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}


def make(path, kind="f32", architecture="llama", seed=1, layers=2, embedding=128, heads=4, heads_kv=2, feed_forward=192,
         vocabulary=320, context=4096, tied=False, keys=()):
    """Writes the file. `keys` are pairs of a name and a number that replace keys of the architecture, true or not."""
    chance = numpy.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {"context_length": context, "embedding_length": embedding, "block_count": layers,
               "feed_forward_length": feed_forward, "attention.head_count": heads, "attention.head_count_kv": heads_kv,
               "rope.dimension_count": embedding // heads, "vocab_size": vocabulary} | dict(keys)
    for name, number in numbers.items():
        writer.add_uint32(f"{architecture}.{name}", number)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    add_vocabulary(writer, vocabulary)

    def matrix(name, rows, columns):
        # Every matrix keeps the size of what it multiplies, so that each layer has its say.
        data = (chance.standard_normal((rows, columns)) / numpy.sqrt(columns)).astype(numpy.float32)
        writer.add_tensor(name, gguf.quants.quantize(data, TYPES[kind]), raw_dtype=TYPES[kind])

    def vector(name, elements, middle):
        writer.add_tensor(name, (middle + 0.2 * chance.standard_normal(elements)).astype(numpy.float32))

    width, width_kv = embedding, embedding // heads * heads_kv
    matrix("token_embd.weight", vocabulary, embedding)
    vector("output_norm.weight", embedding, 1)
    if not tied:
        matrix("output.weight", vocabulary, embedding)
    for layer in range(layers):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", embedding, 1)
        vector(block + "ffn_norm.weight", embedding, 1)
        matrix(block + "attn_q.weight", width, embedding)
        matrix(block + "attn_k.weight", width_kv, embedding)
        matrix(block + "attn_v.weight", width_kv, embedding)
        matrix(block + "attn_output.weight", embedding, width)
        matrix(block + "ffn_gate.weight", feed_forward, embedding)
        matrix(block + "ffn_up.weight", feed_forward, embedding)
        matrix(block + "ffn_down.weight", embedding, feed_forward)
        if architecture == "qwen2":
            vector(block + "attn_q.bias", width, 0)
            vector(block + "attn_k.bias", width_kv, 0)
            vector(block + "attn_v.bias", width_kv, 0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer, size):
    """Three special tokens, all bytes, and words."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [f"▁w{i}" for i in range(size - len(tokens))]
    types = [2, 3, 3] + [6] * 256 + [1] * (size - 259)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens[:size])
    writer.add_token_scores([-float(i) for i in range(size)])
    writer.add_token_types(types[:size])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--type", choices=TYPES, default="f32")
    parser.add_argument("--architecture", choices=["llama", "qwen2"], default="llama")
    parser.add_argument("--tied", action="store_true", help="the table of tokens also computes the logits")
    for name, value in (("seed", 1), ("layers", 2), ("embedding", 128), ("heads", 4), ("heads-kv", 2),
                        ("feed-forward", 192), ("vocabulary", 320), ("context", 4096)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = vars(parser.parse_args())
    make(arguments.pop("file"), arguments.pop("type"), **arguments)


if __name__ == "__main__":
    main()
