"""Berth plans the memory of tinygrad. This patches a private function.

tinygrad has no hook for its memory planner, so this example replaces `memory_plan_rewrite`, which is private and changes
from release to release. It is written for tinygrad 0.14.0 and refuses every other version.

    from tinygrad_planner import planned_by_berth

    with planned_by_berth():
        model(x).realize()          # or calls of a TinyJit

As a program it runs a small network with both planners and prints what they need.
"""

import contextlib
import importlib.metadata

import berth

VERSION = "0.14.0"
if importlib.metadata.version("tinygrad") != VERSION:
    raise ImportError(f"this example patches a private function of tinygrad {VERSION}, and tinygrad "
                      f"{importlib.metadata.version('tinygrad')} is installed")

import tinygrad.engine.jit as jit  # noqa: E402
import tinygrad.schedule as schedule  # noqa: E402
import tinygrad.schedule.memory as memory  # noqa: E402
from tinygrad.dtype import dtypes  # noqa: E402
from tinygrad.helpers import NO_MEMORY_PLANNER, round_up  # noqa: E402
from tinygrad.uop.ops import Ops, UOp  # noqa: E402

ALIGNMENT = 256  # tinygrad's own

stock = memory.memory_plan_rewrite


def lifetimes(linear, held):
    """The buffers to place by lane, which is a device and whether a copy uses the buffer: (buffer, first, last)."""
    first, last, copied = {}, {}, set()
    for step, call in enumerate(linear.src):
        buffers = [each for source in call.src[1:] for each in memory._collect_bufs(source)
                   if memory._can_plan(each, held)]
        for each in buffers:
            first.setdefault(each, step)
            last[each] = step
        if call.src[0].op is Ops.COPY:
            copied.update(buffers)
    lanes = {}
    for each in first:
        # A copy may still be under way when the next kernels run, so tinygrad holds its buffers for longer.
        hold = last[each] - first[each] + 1 if each in copied else 0
        lanes.setdefault((each.device, each in copied), []).append((each, first[each], last[each] + 1 + hold))
    return lanes


def place(lane):
    """Where the buffers of a lane are: their offsets and the size of the arena."""
    plan = berth.plan([(round_up(each.max_numel() * each.dtype.itemsize, ALIGNMENT), first, last)
                       for each, first, last in lane], alignment=ALIGNMENT)
    return plan.offsets, plan.size


def rewrite(linear, held_bufs=None):
    """What memory_plan_rewrite does: each buffer becomes a part of an arena."""
    if NO_MEMORY_PLANNER:
        return linear
    replaced = {}
    for (device, _), lane in lifetimes(linear, held_bufs or set()).items():
        offsets, size = place(lane)
        arena = UOp.new_buffer(device, size, dtypes.int8)
        for (each, _, _), offset in zip(lane, offsets):
            replaced[each] = arena[offset:offset + each.nbytes()].bitcast(each.dtype)
    return linear.substitute(replaced, name="memory plan", walk=True) if replaced else linear


@contextlib.contextmanager
def planned_by_berth(function=rewrite):
    """Programs that tinygrad schedules inside are planned by Berth."""
    places = [(module, module.memory_plan_rewrite) for module in (memory, schedule, jit)]
    for module, _ in places:
        module.memory_plan_rewrite = function
    try:
        yield
    finally:
        for module, before in places:
            module.memory_plan_rewrite = before


@contextlib.contextmanager
def counted(function):
    """As planned_by_berth, with a list of the bytes that the arenas of each plan have."""
    plans = []

    def count(linear, held_bufs=None):
        planned = function(linear, held_bufs)
        before = {each for each in linear.toposort() if each.op is Ops.BUFFER}
        plans.append(sum(each.max_numel() * each.dtype.itemsize for each in planned.toposort()
                         if each.op is Ops.BUFFER and each not in before))
        return planned

    with planned_by_berth(count):
        yield plans


def main():
    from tinygrad import Tensor, nn

    Tensor.manual_seed(1)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 8, 3, padding=1)]
    x = Tensor.rand(1, 3, 48, 48).realize()
    answers = []
    for name, function in (("tinygrad", stock), ("berth", rewrite)):
        with counted(function) as plans:
            y = x
            for layer in layers:
                y = layer(y).relu().contiguous()
            answers.append((y + y.mean()).numpy())
        print(f"{name:<10}{max(plans):>12} bytes")
    if answers[0].tobytes() != answers[1].tobytes():
        raise SystemExit("the outputs differ")
    print("the outputs are the same")


if __name__ == "__main__":
    main()
