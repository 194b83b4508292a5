"""Makes small language models with random weights as GGUF files, for `./run bench fit`.

    fit_models.py FOLDER [--seed N]

One file for each architecture, with sizes that follow from the seed. The weights mean nothing; names, shapes and keys are
those that llama.cpp expects. Needs the packages gguf and numpy.
"""

import argparse
import os
import random

import gguf
import numpy

FAMILIES = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral", "qwen2moe", "qwen3moe", "olmo2",
            "starcoder2", "mamba", "mamba2"]


class Maker:
    def __init__(self, path, architecture, chance):
        self.writer = gguf.GGUFWriter(path, architecture)
        self.architecture = architecture
        self.chance = chance
        self.numbers = numpy.random.default_rng(chance.randrange(1 << 30))

    def key(self, name, value):
        """Adds a key of the architecture: a number, a float, or a list of numbers."""
        name = f"{self.architecture}.{name}"
        if isinstance(value, list):
            self.writer.add_array(name, value)
        elif isinstance(value, float):
            self.writer.add_float32(name, value)
        else:
            self.writer.add_uint32(name, value)

    def matrix(self, name, *shape):
        """A weight; shapes are as in NumPy. Most are of type f16, some are quantised."""
        data = (self.numbers.standard_normal(shape) * 0.02).astype(numpy.float32)
        if shape[-1] % 32 == 0 and self.chance.random() < 0.3:
            kind = gguf.GGMLQuantizationType.Q8_0
            self.writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            self.writer.add_tensor(name, data.astype(numpy.float16))

    def vector(self, name, *shape):
        self.writer.add_tensor(name, numpy.ones(shape, numpy.float32))

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def make(path, family, chance):
    architecture = {"mixtral": "llama"}.get(family, family)
    model = Maker(path, architecture, chance)
    layers = chance.randrange(2, 9)
    head = chance.choice([32, 64, 128])
    heads_kv = chance.choice([1, 2, 4])
    heads = heads_kv * chance.choice([1, 2, 4])
    embedding = heads * head if family not in ("gemma2", "gemma3", "qwen3", "qwen3moe") else 32 * chance.randrange(4, 24)
    feed_forward = 32 * chance.randrange(4, 64)
    vocabulary = 8 * chance.randrange(32, 4000)
    model.writer.add_tokenizer_model("no_vocab")
    model.key("vocab_size", vocabulary)
    model.key("context_length", 1 << chance.randrange(12, 17))
    model.key("embedding_length", embedding)
    model.key("block_count", layers)
    model.key("feed_forward_length", feed_forward)
    model.key("attention.layer_norm_epsilon" if family == "starcoder2" else "attention.layer_norm_rms_epsilon", 1e-5)
    model.matrix("token_embd.weight", vocabulary, embedding)
    model.vector("output_norm.weight", embedding)
    if family.startswith("mamba"):
        return state_space(model, family == "mamba2", layers, embedding, vocabulary, chance)
    if chance.random() < 0.5 and not family.startswith("gemma"):
        model.matrix("output.weight", vocabulary, embedding)
    elif family in ("phi3", "qwen2moe", "olmo2"):
        model.matrix("output.weight", vocabulary, embedding)
    model.key("attention.head_count", heads)
    model.key("attention.head_count_kv", heads_kv)
    model.key("attention.key_length", head)
    model.key("attention.value_length", head)
    model.key("rope.dimension_count", head)
    model.key("rope.freq_base", 10000.0)
    if family.startswith("gemma"):
        model.key("attention.sliding_window", chance.choice([256, 512, 1024]))
    if family == "gemma2":
        model.key("attn_logit_softcapping", 50.0)
        model.key("final_logit_softcapping", 30.0)
    experts = 0
    if family in ("mixtral", "qwen2moe", "qwen3moe"):
        experts = chance.choice([4, 8])
        model.key("expert_count", experts)
        model.key("expert_used_count", chance.choice([2, 4]))
    expert_width = 32 * chance.randrange(2, 24)
    shared_width = 32 * chance.randrange(2, 24)
    if family in ("qwen2moe", "qwen3moe"):
        model.key("expert_feed_forward_length", expert_width)
    if family == "qwen2moe":
        model.key("expert_shared_feed_forward_length", shared_width)
    if family == "mixtral":
        expert_width = feed_forward
    for i in range(layers):
        block = f"blk.{i}."
        if family != "olmo2":
            model.vector(block + "attn_norm.weight", embedding)
            model.vector(block + "ffn_norm.weight", embedding)
        if family == "phi3":
            model.matrix(block + "attn_qkv.weight", (heads + 2 * heads_kv) * head, embedding)
        else:
            model.matrix(block + "attn_q.weight", heads * head, embedding)
            model.matrix(block + "attn_k.weight", heads_kv * head, embedding)
            model.matrix(block + "attn_v.weight", heads_kv * head, embedding)
        if family in ("qwen2", "qwen2moe"):
            model.vector(block + "attn_q.bias", heads * head)
            model.vector(block + "attn_k.bias", heads_kv * head)
            model.vector(block + "attn_v.bias", heads_kv * head)
        if family in ("qwen3", "gemma3", "qwen3moe"):
            model.vector(block + "attn_q_norm.weight", head)
            model.vector(block + "attn_k_norm.weight", head)
        model.matrix(block + "attn_output.weight", embedding, heads * head)
        if family == "olmo2":
            model.vector(block + "attn_q_norm.weight", heads * head)
            model.vector(block + "attn_k_norm.weight", heads_kv * head)
        if family.startswith("gemma") or family == "olmo2":
            model.vector(block + "post_attention_norm.weight", embedding)
            model.vector(block + "post_ffw_norm.weight", embedding)
        if experts:
            model.vector(block + "ffn_gate_inp.weight", experts, embedding)
            model.matrix(block + "ffn_gate_exps.weight", experts, expert_width, embedding)
            model.matrix(block + "ffn_up_exps.weight", experts, expert_width, embedding)
            model.matrix(block + "ffn_down_exps.weight", experts, embedding, expert_width)
            if family == "qwen2moe":
                model.vector(block + "ffn_gate_inp_shexp.weight", embedding)
                model.matrix(block + "ffn_gate_shexp.weight", shared_width, embedding)
                model.matrix(block + "ffn_up_shexp.weight", shared_width, embedding)
                model.matrix(block + "ffn_down_shexp.weight", embedding, shared_width)
        elif family == "starcoder2":
            for name, width in (("attn_norm", embedding), ("ffn_norm", embedding), ("attn_q", heads * head),
                                ("attn_k", heads_kv * head), ("attn_v", heads_kv * head), ("attn_output", embedding),
                                ("ffn_up", feed_forward), ("ffn_down", embedding)):
                model.vector(f"{block}{name}.bias", width)
            model.matrix(block + "ffn_up.weight", feed_forward, embedding)
            model.matrix(block + "ffn_down.weight", embedding, feed_forward)
        elif family == "phi3":
            model.matrix(block + "ffn_up.weight", 2 * feed_forward, embedding)
            model.matrix(block + "ffn_down.weight", embedding, feed_forward)
        else:
            model.matrix(block + "ffn_gate.weight", feed_forward, embedding)
            model.matrix(block + "ffn_up.weight", feed_forward, embedding)
            model.matrix(block + "ffn_down.weight", embedding, feed_forward)
    if family == "starcoder2":
        model.vector("output_norm.bias", embedding)
    return model.close()


def state_space(model, second, layers, embedding, vocabulary, chance):
    """Mamba, or its second form: one projection, heads, and groups that share what controls the state."""
    inner, state, kernel, groups = 2 * embedding, chance.choice([16, 32]), 4, chance.choice([1, 2])
    rank = inner // 32 if second else (embedding + 15) // 16
    if second:
        model.key("ssm.group_count", groups)
    model.key("ssm.conv_kernel", kernel)
    model.key("ssm.inner_size", inner)
    model.key("ssm.state_size", state)
    model.key("ssm.time_step_rank", rank)
    model.matrix("output.weight", vocabulary, embedding)
    for i in range(layers):
        block = f"blk.{i}."
        model.vector(block + "attn_norm.weight", embedding)
        model.matrix(block + "ssm_out.weight", embedding, inner)
        if second:
            width = inner + 2 * groups * state
            model.matrix(block + "ssm_in.weight", inner + width + rank, embedding)
            model.vector(block + "ssm_conv1d.weight", width, kernel)
            model.vector(block + "ssm_conv1d.bias", width)
            model.vector(block + "ssm_dt.bias", rank)
            model.vector(block + "ssm_a", rank, 1)
            model.vector(block + "ssm_d", rank, 1)
            model.vector(block + "ssm_norm.weight", groups, inner // groups)
            continue
        model.matrix(block + "ssm_in.weight", 2 * inner, embedding)
        model.vector(block + "ssm_conv1d.weight", inner, kernel)
        model.vector(block + "ssm_conv1d.bias", inner)
        model.matrix(block + "ssm_x.weight", rank + 2 * state, inner)
        model.matrix(block + "ssm_dt.weight", inner, rank)
        model.vector(block + "ssm_dt.bias", inner)
        model.vector(block + "ssm_a", inner, state)
        model.vector(block + "ssm_d", inner)
    return model.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    for family in FAMILIES:
        path = os.path.join(arguments.folder, f"{family}-{arguments.seed}.gguf")
        make(path, family, random.Random(f"{family} {arguments.seed}"))
        print(path)


if __name__ == "__main__":
    main()
