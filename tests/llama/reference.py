"""A decoder in NumPy, as plain as it can be: what examples/llama must agree with, token by token.

Weights are dequantised exactly, everything is computed in f64, and only keys and values are rounded to f16, as the
decoder's cache does.
"""

import gguf
import numpy


class Reference:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.weights = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float64)
                        for tensor in reader.tensors}
        self.architecture = reader.get_field("general.architecture").contents()
        self.layers = self.key(reader, "block_count")
        self.heads = self.key(reader, "attention.head_count")
        self.heads_kv = self.key(reader, "attention.head_count_kv")
        self.epsilon = self.key(reader, "attention.layer_norm_rms_epsilon")
        self.base = self.key(reader, "rope.freq_base")

    def key(self, reader, name):
        return reader.get_field(f"{self.architecture}.{name}").contents()

    def normalise(self, x, name):
        return x / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon) * self.weights[name]

    def multiply(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def rotate(self, x, first):
        """x is [token, head, element]; the first token has the position `first`."""
        size = x.shape[2]
        pairs = numpy.arange(size // 2)
        angle = (first + numpy.arange(x.shape[0]))[:, None] * self.base ** (-2.0 * pairs / size)
        cosine, sine = numpy.cos(angle)[:, None, :], numpy.sin(angle)[:, None, :]
        a, b = (pairs, pairs + size // 2) if self.architecture == "qwen2" else (2 * pairs, 2 * pairs + 1)
        result = numpy.empty_like(x)
        result[:, :, a] = x[:, :, a] * cosine - x[:, :, b] * sine
        result[:, :, b] = x[:, :, a] * sine + x[:, :, b] * cosine
        return result

    def logits(self, tokens, cache):
        """The logits after the last of `tokens`, which continue what the cache has."""
        first = cache[0][0].shape[0] if cache else 0
        x = self.weights["token_embd.weight"][tokens]
        for layer in range(self.layers):
            block = f"blk.{layer}."
            normed = self.normalise(x, block + "attn_norm.weight")
            size = self.weights[block + "attn_q.weight"].shape[0] // self.heads
            q = self.rotate(self.multiply(normed, block + "attn_q").reshape(len(tokens), self.heads, size), first)
            k = self.rotate(self.multiply(normed, block + "attn_k").reshape(len(tokens), self.heads_kv, size), first)
            v = self.multiply(normed, block + "attn_v").reshape(len(tokens), self.heads_kv, size)
            k, v = (one.astype(numpy.float32).astype(numpy.float16).astype(numpy.float64) for one in (k, v))
            if len(cache) <= layer:
                cache.append((k, v))
            else:
                cache[layer] = tuple(numpy.concatenate(pair) for pair in zip(cache[layer], (k, v)))
            keys, values = (numpy.repeat(one, self.heads // self.heads_kv, axis=1) for one in cache[layer])
            scores = numpy.einsum("qhe,khe->hqk", q, keys) / numpy.sqrt(size)
            ahead = numpy.arange(keys.shape[0])[None, :] > first + numpy.arange(len(tokens))[:, None]
            scores[:, ahead] = -numpy.inf
            scores = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            x = x + self.multiply(numpy.einsum("hqk,khe->qhe", scores, values).reshape(len(tokens), -1),
                                  block + "attn_output")
            normed = self.normalise(x, block + "ffn_norm.weight")
            gate = self.multiply(normed, block + "ffn_gate")
            x = x + self.multiply(gate / (1 + numpy.exp(-gate)) * self.multiply(normed, block + "ffn_up"),
                                  block + "ffn_down")
        output = "output" if "output.weight" in self.weights else "token_embd"
        return self.multiply(self.normalise(x[-1:], "output_norm.weight"), output)[0]

    def greedy(self, prompt, count):
        """The most likely `count` tokens after the prompt, and by how much the closest choice was decided."""
        cache, result, margin, tokens = [], [], numpy.inf, list(prompt)
        for _ in range(count):
            logits = self.logits(tokens, cache)
            best = int(numpy.argmax(logits))
            margin = min(margin, logits[best] - numpy.partition(logits, -2)[-2])
            result.append(best)
            tokens = [best]
        return result, margin
