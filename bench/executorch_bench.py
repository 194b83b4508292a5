"""Planned memory of ExecuTorch programs: with ExecuTorch's own planner, with Berth's, and with outputs in place.

Networks of seven families and more, with random weights, are exported, planned three times and run by the released
runtime. The sizes are deterministic, so nothing is timed. `./run bench executorch [NAME...]` runs some of them only.
"""

import copy
import functools
import logging
import math
import sys
import warnings

MISSING = """bench executorch: {error}
This bench needs the packages torch and executorch, which are gigabytes and therefore not installed for you:
    python3 -m venv FOLDER && FOLDER/bin/pip install executorch torch
    BERTH_BENCH_PYTHON=FOLDER/bin/python ./run bench executorch
The Python must be of the same version as that of build/venv, for which Berth's module is built."""

try:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import torch
    from torch import nn
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.runtime import Runtime
except ImportError as error:
    sys.exit(MISSING.format(error=error))

from berth.executorch import planner  # noqa: E402


class Apply(nn.Module):
    """A module whose forward is a function of it."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def convolution(inside, outside, size=3, stride=1, groups=1, activation=nn.ReLU):
    parts = [nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(outside)]
    return nn.Sequential(*parts, *([activation()] if activation else []))


def residual(body, last=None):
    return Apply(lambda self, x: self.last(x + self.body(x)), body=body, last=last or nn.Identity())


def joined(*branches):
    return Apply(lambda self, x: torch.cat([branch(x) for branch in self.branches], 1), branches=nn.ModuleList(branches))


def pooled(channels, classes=10):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def mobilenet():
    layers, channels = [convolution(3, 32, stride=2, activation=nn.ReLU6)], 32
    for expand, out, repeat, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 2, 2), (6, 96, 2, 1)):
        for i in range(repeat):
            wide = channels * expand
            body = nn.Sequential(*([convolution(channels, wide, 1, activation=nn.ReLU6)] if expand > 1 else []),
                                 convolution(wide, wide, 3, stride if i == 0 else 1, wide, nn.ReLU6),
                                 convolution(wide, out, 1, activation=None))
            layers.append(residual(body) if channels == out else body)
            channels = out
    return nn.Sequential(*layers, pooled(channels)), (1, 3, 112, 112)


def resnet():
    layers = [convolution(3, 32, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for inside, outside in ((32, 32), (32, 64), (64, 128)):
        if inside != outside:
            layers.append(convolution(inside, outside, 3, 2))
        layers += [residual(nn.Sequential(convolution(outside, outside), convolution(outside, outside, activation=None)),
                            nn.ReLU()) for _ in range(2)]
    return nn.Sequential(*layers, pooled(128)), (1, 3, 128, 128)


def densenet():
    layers, channels = [convolution(3, 32)], 32
    for block in range(3):
        for _ in range(4):
            grow = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 48, 1, bias=False),
                                 nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 16, 3, padding=1, bias=False))
            layers.append(joined(nn.Identity(), grow))
            channels += 16
        if block < 2:
            layers += [convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, pooled(channels)), (1, 3, 64, 64)


def inception():
    def block(inside):
        return joined(convolution(inside, 32, 1), nn.Sequential(convolution(inside, 32, 1), convolution(32, 48)),
                      nn.Sequential(convolution(inside, 16, 1), convolution(16, 32, 5)),
                      nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(inside, 16, 1)))

    return nn.Sequential(convolution(3, 32, 3, 2), block(32), block(128), nn.MaxPool2d(2), block(128), block(128),
                         pooled(128)), (1, 3, 96, 96)


def unet():
    def double(inside, outside):
        return nn.Sequential(convolution(inside, outside), convolution(outside, outside))

    def level(inside, outside, below):
        def forward(self, x):
            x = self.down(x)
            return self.merge(torch.cat([x, self.grow(self.below(self.shrink(x)))], 1))

        return Apply(forward, down=double(inside, outside), shrink=nn.MaxPool2d(2), below=below,
                     grow=nn.Upsample(scale_factor=2), merge=double(3 * outside, outside))

    deepest = double(64, 128)
    return nn.Sequential(level(3, 32, level(32, 64, deepest)), nn.Conv2d(32, 2, 1)), (1, 3, 64, 64)


def attention(width, heads):
    def forward(self, x):
        rows, tokens, _ = x.shape
        q, k, v = (part.reshape(rows, tokens, heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(width // heads), -1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, tokens, width))

    return Apply(forward, qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))


def perceptron(width, inside, activation=nn.GELU):
    return nn.Sequential(nn.Linear(width, inside), activation(), nn.Linear(inside, width))


def transformer():
    blocks = [residual(nn.Sequential(nn.LayerNorm(128), body)) for _ in range(4)
              for body in (attention(128, 4), perceptron(128, 512))]
    return nn.Sequential(*blocks, nn.LayerNorm(128), nn.Linear(128, 16)), (1, 128, 128)


def mixer():
    def across(body):
        return Apply(lambda self, x: self.body(x.transpose(1, 2)).transpose(1, 2), body=body)

    blocks = [residual(nn.Sequential(nn.LayerNorm(96), body)) for _ in range(4)
              for body in (across(perceptron(196, 256)), perceptron(96, 384))]
    return nn.Sequential(*blocks, nn.LayerNorm(96), nn.Linear(96, 10)), (1, 196, 96)


def convnext():
    def block(width):
        body = Apply(lambda self, x: self.mix(self.norm(self.depth(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2),
                     depth=nn.Conv2d(width, width, 7, padding=3, groups=width), norm=nn.LayerNorm(width),
                     mix=perceptron(width, 4 * width))
        return residual(body)

    return nn.Sequential(nn.Conv2d(3, 48, 4, 4), block(48), block(48), nn.Conv2d(48, 96, 2, 2), block(96), block(96),
                         pooled(96)), (1, 3, 128, 128)


def squeeze():
    def gated(width):
        gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.SiLU(),
                             nn.Conv2d(width // 4, width, 1), nn.Sigmoid())
        return residual(nn.Sequential(convolution(width, width, activation=nn.SiLU),
                                      Apply(lambda self, x: x * self.gate(x), gate=gate)))

    return nn.Sequential(convolution(3, 32, 3, 2, activation=nn.SiLU), gated(32), gated(32),
                         convolution(32, 64, 3, 2, activation=nn.SiLU), gated(64), gated(64), pooled(64)), (1, 3, 96, 96)


def pyramid():
    """A feature pyramid: three resolutions, joined from the top, with an output each."""
    def forward(self, x):
        c1 = self.c1(x)
        c2 = self.c2(c1)
        c3 = self.c3(c2)
        p3 = self.l3(c3)
        p2 = self.l2(c2) + self.grow(p3)
        p1 = self.l1(c1) + self.grow(p2)
        return self.o1(p1), self.o2(p2), self.o3(p3)

    lateral = {f"l{i}": convolution(32 * i, 64, 1) for i in (1, 2, 3)}
    outputs = {f"o{i}": convolution(64, 64) for i in (1, 2, 3)}
    return Apply(forward, c1=convolution(3, 32, 3, 2), c2=convolution(32, 64, 3, 2), c3=convolution(64, 96, 3, 2),
                 grow=nn.Upsample(scale_factor=2), **lateral, **outputs), (1, 3, 128, 128)


MODELS = [mobilenet, resnet, densenet, inception, unet, transformer, mixer, convnext, squeeze, pyramid]


def outputs(program, image):
    found = Runtime.get().load_program(program.buffer).load_method("forward").execute((image,))
    return [each.clone() for each in found]


def same_bits(ours, theirs):
    return len(ours) == len(theirs) and all(torch.equal(a.view(torch.int32), b.view(torch.int32))
                                            for a, b in zip(ours, theirs))


def main():
    chosen = [make for make in MODELS if not sys.argv[1:] or make.__name__ in sys.argv[1:]]
    if not chosen:
        sys.exit(f"bench executorch: NAME is one of {' '.join(make.__name__ for make in MODELS)}")
    print(f"{'model':<14}{'kernels':>8}{'stock':>12}{'planned':>12}{'in place':>12}{'bound':>12}{'stock over each':>16}"
          f"  {'outputs'}")
    planned_logs, in_place_logs, same, at_bound, larger = [], [], 0, 0, 0
    for make in chosen:
        torch.manual_seed(1)
        module, shape = make()
        images = [torch.rand(shape), torch.rand(shape) * 2 - 1]
        edge = to_edge(torch.export.export(module.eval(), (images[0],), strict=False))
        programs, plans = [], {}
        for algorithm in (None, functools.partial(planner, in_place=False),
                          functools.partial(planner, report=plans.__setitem__)):
            planning = MemoryPlanningPass(memory_planning_algo=algorithm)
            programs.append(copy.deepcopy(edge).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)))
        stock, planned, in_place = (sum(p.executorch_program.execution_plan[0].non_const_buffer_sizes) for p in programs)
        bound = sum(each.lower_bound for each in plans.values())
        answers = [[outputs(program, image) for image in images] for program in programs]
        if same_bits(*answers[0]):
            sys.exit(f"bench executorch: the outputs of {make.__name__} do not depend on its input and prove nothing")
        equal = all(same_bits(ours, theirs) for each in answers[1:] for ours, theirs in zip(each, answers[0]))
        kernels = len(programs[0].executorch_program.execution_plan[0].chains[0].instructions)
        print(f"{make.__name__:<14}{kernels:>8}{stock:>12}{planned:>12}{in_place:>12}{bound:>12}{stock / planned:>8.3f}"
              f"{stock / in_place:>8.3f}  {'same' if equal else 'DIFFERENT'}", flush=True)
        planned_logs.append(math.log(stock / planned))
        in_place_logs.append(math.log(stock / in_place))
        same += equal
        at_bound += in_place == bound
        larger += planned > stock or in_place > stock
    count = len(chosen)
    print(f"\ngeometric mean of stock over planned {math.exp(sum(planned_logs) / count):.3f}, "
          f"over in place {math.exp(sum(in_place_logs) / count):.3f}")
    for text, met, found in (("same outputs, bit for bit (goal: all)", same == count, same),
                             ("at the bound (goal: all)", at_bound == count, at_bound),
                             ("larger than ExecuTorch's own plan (goal: none)", larger == 0, larger)):
        print(f"{text:<52}{found:>4} of {count:<4}{'met' if met else 'missed'}")
    return 0 if same == count and larger == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
