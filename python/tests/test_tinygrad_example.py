"""The example examples/engines/tinygrad_planner.py: the same outputs as with tinygrad's planner, in no more memory."""
import importlib.metadata
import pathlib
import subprocess
import sys

import numpy as np
import pytest

tinygrad = pytest.importorskip("tinygrad")

ENGINES = pathlib.Path(__file__).parents[2] / "examples" / "engines"
sys.path.insert(0, str(ENGINES))
import tinygrad_planner as example  # noqa: E402

from tinygrad import Tensor, TinyJit, nn  # noqa: E402


class Network:
    """Two resolutions with a skip connection, so that values of different sizes live at the same time."""

    def __init__(self):
        Tensor.manual_seed(5)
        self.layers = [nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 3, padding=1, stride=2),
                       nn.Conv2d(24, 16, 3, padding=1), nn.Conv2d(16, 4, 1)]
        for layer in self.layers:
            layer.weight.realize()

    def __call__(self, x):
        first, down, inner, last = self.layers
        kept = first(x).relu().contiguous()
        y = inner(down(kept).relu().contiguous()).relu().contiguous()
        y = y.reshape(1, 16, 12, 1, 12, 1).expand(1, 16, 12, 2, 12, 2).reshape(1, 16, 24, 24).contiguous()
        return last((y + kept).relu().contiguous()).softmax(1)


def picture(seed):
    return Tensor(np.random.default_rng(seed).standard_normal((1, 3, 24, 24), np.float32)).realize()


@pytest.fixture(scope="module")
def network():
    return Network()


def answer(network, function, seed=1):
    with example.counted(function) as plans:
        return network(picture(seed)).numpy(), max(plans)


def test_the_outputs_are_the_same_in_no_more_memory(network):
    theirs, stock_bytes = answer(network, example.stock)
    ours, our_bytes = answer(network, example.rewrite)
    assert ours.tobytes() == theirs.tobytes() and 0 < our_bytes <= stock_bytes
    assert answer(network, example.rewrite, 2)[0].tobytes() != ours.tobytes()  # otherwise it proves nothing


def test_a_broken_plan_changes_the_outputs(network, monkeypatch):
    theirs, _ = answer(network, example.stock)
    placed = example.place
    monkeypatch.setattr(example, "place", lambda lane: ([0] * len(lane), placed(lane)[1]))
    assert answer(network, example.rewrite)[0].tobytes() != theirs.tobytes()


def test_a_captured_program_is_planned_too(network):
    theirs = [answer(network, example.stock, seed)[0] for seed in range(4)]
    with example.planned_by_berth():
        fast = TinyJit(lambda x: network(x).realize())
        ours = [fast(picture(seed)).numpy() for seed in range(4)]  # the second is captured, the third is run from it
    assert [each.tobytes() for each in ours] == [each.tobytes() for each in theirs]


def test_the_patch_is_taken_back():
    with pytest.raises(KeyError), example.planned_by_berth():
        assert example.memory.memory_plan_rewrite is example.rewrite
        raise KeyError
    assert all(module.memory_plan_rewrite is example.stock for module in (example.memory, example.schedule, example.jit))


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.9.0")
    monkeypatch.delitem(sys.modules, "tinygrad_planner")
    with pytest.raises(ImportError, match="private function of tinygrad 0.14.0"):
        import tinygrad_planner  # noqa: F401


def test_the_program_says_what_both_planners_need():
    ran = subprocess.run([sys.executable, str(ENGINES / "tinygrad_planner.py")], capture_output=True, text=True, check=True)
    assert "the outputs are the same" in ran.stdout
