"""Everything public has an example, and the examples in the docstrings and in docs/python.md run as written."""
import doctest
import inspect
import pathlib

import pytest

import berth

PUBLIC = {name: getattr(berth, name) for name in berth.__all__}
FLAGS = doctest.ELLIPSIS


def documented(thing):
    """The object and its public members, by name, as far as they have a docstring."""
    for name in [None, *(vars(thing) if inspect.isclass(thing) else [])]:
        member = thing if name is None else getattr(thing, name)
        if getattr(member, "__doc__", None) and not (name or "").startswith("__"):
            yield name, member.__doc__


def run(text, name):
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test).failed == 0
    return len(test.examples)


@pytest.mark.parametrize("name", [None, *PUBLIC])
def test_everything_public_has_an_example_that_runs(name):
    if name is None:
        assert run(berth.__doc__, "berth") > 0
        return
    examples = {member: run(text, f"{name}.{member}") for member, text in documented(PUBLIC[name])}
    assert examples.get(None), f"berth.{name} has no example"


def test_examples_in_the_guide(tmp_path, monkeypatch):
    guide = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
    if not guide.exists():
        pytest.skip("the source tree is not here")
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(guide), module_relative=False, optionflags=FLAGS)
    assert result.attempted > 10 and result.failed == 0
