"""Planned memory of tinygrad programs: with tinygrad's planner, and with Berth's by examples/engines/tinygrad_planner.py.

Networks with random weights are captured by TinyJit and run. The sizes are deterministic, so nothing is timed.
`./run bench tinygrad [NAME...]` runs some of them only. tinygrad compiles its kernels with clang, or with what CC names.
"""

import math
import os
import pathlib
import shutil
import sys

if "CC" not in os.environ and not shutil.which("clang"):
    found = next((name for name in (f"clang-{version}" for version in range(30, 12, -1)) if shutil.which(name)), None)
    if found is None:
        sys.exit("bench tinygrad: tinygrad compiles its kernels with clang, which is not installed: apt-get install clang")
    os.environ["CC"] = found
os.environ["DEV"] = "CPU"
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples" / "engines"))

import numpy as np  # noqa: E402
import tinygrad_planner as example  # noqa: E402
from tinygrad import Tensor, TinyJit, nn  # noqa: E402

import berth  # noqa: E402


def convolution(inside, outside, size=3, stride=1, groups=1):
    layer = nn.Conv2d(inside, outside, size, stride=stride, padding=size // 2, groups=groups)
    return lambda x: layer(x).relu().contiguous()


def linear(inside, outside):
    layer = nn.Linear(inside, outside)
    return lambda x: layer(x).contiguous()


def mobilenet():
    layers, channels = [convolution(3, 16, 3, 2)], 16
    for wide, out, stride in ((96, 24, 2), (144, 24, 1), (144, 32, 2), (192, 32, 1)):
        body = [convolution(channels, wide, 1), convolution(wide, wide, 3, stride, wide), convolution(wide, out, 1)]
        layers.append((lambda x, body=body: (x + body[2](body[1](body[0](x)))).contiguous()) if channels == out
                      else (lambda x, body=body: body[2](body[1](body[0](x)))))
        channels = out
    return lambda x: run(layers, x).mean((2, 3)), (1, 3, 96, 96)


def run(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def resnet():
    first = convolution(3, 32, 3, 2)
    blocks = [(convolution(32, 32), convolution(32, 32)) for _ in range(3)]

    def forward(x):
        x = first(x)
        for one, two in blocks:
            x = (x + two(one(x))).relu().contiguous()
        return x.mean((2, 3))

    return forward, (1, 3, 64, 64)


def unet():
    down = [convolution(3, 16), convolution(16, 32), convolution(32, 64)]
    up = [convolution(64 + 32, 32), convolution(32 + 16, 16)]
    last = convolution(16, 2, 1)

    def forward(x):
        a = down[0](x)
        b = down[1](a.max_pool2d(2).contiguous())
        c = down[2](b.max_pool2d(2).contiguous())
        for kept, merge in ((b, up[0]), (a, up[1])):
            c = merge(c.interpolate(kept.shape[2:], mode="nearest").cat(kept, dim=1).contiguous())
        return last(c)

    return forward, (1, 3, 64, 64)


def densenet():
    layers = [convolution(3 + 12 * i, 12) for i in range(6)]

    def forward(x):
        for layer in layers:
            x = x.cat(layer(x), dim=1).contiguous()
        return x.mean((2, 3))

    return forward, (1, 3, 48, 48)


def inception():
    blocks = [[convolution(c, 16, 1), convolution(c, 24, 3), convolution(c, 8, 5)] for c in (3, 48, 48)]

    def forward(x):
        for block in blocks:
            parts = [branch(x) for branch in block]
            x = parts[0].cat(*parts[1:], dim=1).contiguous()
        return x.mean((2, 3))

    return forward, (1, 3, 48, 48)


def gpt():
    width, heads = 64, 4
    blocks = [(linear(width, 3 * width), linear(width, width), linear(width, 4 * width), linear(4 * width, width))
              for _ in range(3)]

    def forward(x):
        rows, tokens, _ = x.shape
        for qkv, out, wide, narrow in blocks:
            q, k, v = (part.reshape(rows, tokens, heads, -1).transpose(1, 2).contiguous()
                       for part in qkv(x.layernorm().contiguous()).chunk(3, -1))
            seen = ((q @ k.transpose(2, 3)) / math.sqrt(width // heads)).softmax(-1).contiguous()
            x = (x + out((seen @ v).transpose(1, 2).reshape(rows, tokens, width).contiguous())).contiguous()
            x = (x + narrow(wide(x.layernorm().contiguous()).gelu().contiguous())).contiguous()
        return x

    return forward, (1, 64, 64)


MODELS = [mobilenet, resnet, unet, densenet, inception, gpt]


def measured(function, forward, shape):
    """The outputs for two inputs, the bytes of the arenas, and the bound of the lifetimes."""
    bounds = []

    def with_bound(linear, held_bufs=None):
        lanes = example.lifetimes(linear, held_bufs or set())
        bounds.append(sum(berth.plan([(example.round_up(b.max_numel() * b.dtype.itemsize, example.ALIGNMENT), *levels)
                                      for b, *levels in lane], alignment=example.ALIGNMENT).lower_bound
                          for lane in lanes.values()))
        return function(linear, held_bufs)

    random = np.random.default_rng(1)
    inputs = [Tensor(random.standard_normal(shape, np.float32)).realize() for _ in range(3)]
    with example.counted(with_bound) as plans:
        captured = TinyJit(lambda x: forward(x).realize())
        answers = [captured(x).numpy().tobytes() for x in inputs]
    return answers, max(plans), max(bounds)


def main():
    chosen = [make for make in MODELS if not sys.argv[1:] or make.__name__ in sys.argv[1:]]
    if not chosen:
        sys.exit(f"bench tinygrad: NAME is one of {' '.join(make.__name__ for make in MODELS)}")
    print(f"{'model':<14}{'stock':>12}{'planned':>12}{'bound':>12}{'ratio':>8}  outputs")
    logs, same, at_bound, larger = [], 0, 0, 0
    for make in chosen:
        Tensor.manual_seed(1)
        forward, shape = make()
        theirs, stock, _ = measured(example.stock, forward, shape)
        ours, planned, bound = measured(example.rewrite, forward, shape)
        if theirs[0] == theirs[1]:
            sys.exit(f"bench tinygrad: the outputs of {make.__name__} do not depend on its input and prove nothing")
        print(f"{make.__name__:<14}{stock:>12}{planned:>12}{bound:>12}{stock / planned:>8.3f}  "
              f"{'same' if ours == theirs else 'DIFFERENT'}", flush=True)
        logs.append(math.log(stock / planned))
        same += ours == theirs
        at_bound += planned == bound
        larger += planned > stock
    count = len(chosen)
    print(f"\ngeometric mean of stock over planned {math.exp(sum(logs) / count):.3f}")
    for text, met, number in (("same outputs, bit for bit (goal: all)", same == count, same),
                              ("at the bound (goal: all)", at_bound == count, at_bound),
                              ("larger than tinygrad's own plan (goal: none)", larger == 0, larger)):
        print(f"{text:<52}{number:>4} of {count:<4}{'met' if met else 'missed'}")
    return 0 if same == count and larger == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
