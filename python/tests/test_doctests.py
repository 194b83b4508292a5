"""The examples in the docstrings and in docs/python.md run as written."""
import doctest
import pathlib

import pytest

import berth

OBJECTS = [berth, berth.Buffer, berth.Device, berth.WeightFile, berth.open, berth.device, berth.from_dlpack,
           berth.Buffer.numpy, berth.Device.counters, berth.plan, berth.Arena, berth.ScheduleBuilder, berth.BufferPool,
           berth.pool, berth.limit, berth.trace]


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: getattr(thing, "__name__", str(thing)))
def test_examples_in_docstrings(thing):
    tests = [doctest.DocTestParser().get_doctest(thing.__doc__, {}, str(thing), None, 0)]
    assert tests[0].examples or thing in (berth.Device, berth.WeightFile)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        assert runner.run(test).failed == 0


def test_examples_in_the_guide(tmp_path, monkeypatch):
    guide = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
    if not guide.exists():
        pytest.skip("the source tree is not here")
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(guide), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 10 and result.failed == 0
