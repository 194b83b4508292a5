"""The type stub says what the compiled module has, no less and no more; mypy takes it and the package for sound."""
import ast
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import berth
from berth import _berth

STUB = pathlib.Path(berth.__file__).with_name("_berth.pyi")
# What every class or module has without saying so, and what nanobind adds to them.
IMPLIED = {"__doc__", "__module__", "__name__", "__package__", "__spec__", "__loader__", "__file__", "__new__",
           "__weakref__", "__dict__", "__nb_signature__", "__buffer__", "__release_buffer__", "__hash__"}


def stubbed(nodes):
    """Names with the signatures that a stub gives them, as text without defaults' values; None for what is no function."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
            found.setdefault(node.name, []).append(None if is_property else shape(node))
        elif isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found[target.id] = None
    return found


def shape(node):
    """A function's parameters and its result: names, kinds and types."""
    def type_text(annotation):
        return annotation and re.sub(r"\w+\.", "", ast.unparse(annotation))  # the stub imports what the module names in full

    arguments = node.args
    named = [(a.arg, type_text(a.annotation)) for a in
             [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    optional = len(arguments.defaults) + sum(default is not None for default in arguments.kw_defaults)
    return (tuple(named), len(arguments.posonlyargs), len(arguments.kwonlyargs), optional, type_text(node.returns))


def signatures(function):
    """What the compiled function itself says of its overloads."""
    for text, *_ in function.__nb_signature__:
        for i, value in enumerate(_[-1] if _ and isinstance(_[-1], tuple) else ()):
            text = text.replace(f"\\{i}", "...")
        yield shape(ast.parse(f"{text}: ...").body[0])


def plain(name):
    return name not in IMPLIED


def same_names(compiled, stub, where):
    # A class that only functions make has an __init__ without a signature, which refuses.
    ours = {name for name, thing in compiled.items()
            if plain(name) and (name != "__init__" or hasattr(thing, "__nb_signature__"))}
    theirs = {name for name in stub if plain(name)}
    assert ours == theirs, f"{where}: only in the module {sorted(ours - theirs)}, only in the stub {sorted(theirs - ours)}"


@pytest.fixture(scope="module")
def stub():
    return stubbed(ast.parse(STUB.read_text()).body)


def test_the_stub_names_what_the_module_has(stub):
    same_names(vars(_berth), stub, "the module")


@pytest.mark.parametrize("name", sorted(n for n, thing in vars(_berth).items() if isinstance(thing, type)))
def test_the_stub_names_what_a_class_has(stub, name):
    same_names(vars(getattr(_berth, name)), stubbed(stub[name].body), name)


def test_the_stub_has_the_signature_of_every_function(stub):
    compared = 0
    owners = [(_berth, stub)] + [(thing, stubbed(stub[name].body)) for name, thing in vars(_berth).items()
                                 if isinstance(thing, type)]
    for owner, said in owners:
        for name, thing in vars(owner).items():
            if not hasattr(thing, "__nb_signature__") or name not in said:
                continue
            assert list(signatures(thing)) == said[name], f"{owner.__name__}.{name}"
            compared += 1
    assert compared > 80


def test_every_public_name_is_the_modules_own_or_written_here():
    assert sorted(berth.__all__) == sorted(set(berth.__all__))
    for name in berth.__all__:
        assert hasattr(berth, name), name
    compiled = {n for n in vars(_berth) if not n.startswith("_")}
    assert compiled <= set(berth.__all__), compiled - set(berth.__all__)


def mypy(*arguments):
    pytest.importorskip("mypy")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir=/dev/null", "--strict",
                          *arguments], capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


def test_mypy_follows_a_program_that_uses_the_types(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent("""
        import berth

        with berth.open("model.safetensors") as file:
            names: list[str] = file.keys()
            mapped: berth.Buffer = file[names[0]]
            loaded: dict[str, berth.Buffer] = file.load(names, threads=2)
            both: tuple[dict[str, berth.Buffer], dict[str, int]] = file.load(checksums=True)
            arriving: berth.AsyncLoad = file.load_async(names, readers=2)
        for name, buffer in arriving.items():
            size: int = len(name) + buffer.nbytes
        rows: tuple[int, ...] = mapped.shape
        berth.load("model.gguf", names=names, progress=lambda done, total: done < total)
        plan: berth.Plan = berth.plan([(4096, 0, 2)])
        arena = berth.Arena(plan, "CPU")
        address: int = arena.buffer(0).address
    """))
    assert mypy(str(program)) == (0, "Success: no issues found in 1 source file\n")
    program.write_text("import berth\nberth.Buffer(4).no_such_thing()\nberth.load(3)\nberth.Buffer(4).view('a', 2)\n")
    status, text = mypy(str(program))
    assert status == 1 and "Found 3 errors" in text, text
