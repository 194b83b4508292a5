"""Checks that every layer of the library looks only at the layers below it.

Three things are read: the #include lines of include/ and src/, the symbols that the library's objects define and use,
and the #include lines of the programs around the library (cli, python, bench, examples, tests). An include or a symbol
of a higher layer is a failure. So is code that asks for the operating system outside of src/base/os.

usage: check_layers.py SOURCE_ROOT NM OBJECT_LIST
OBJECT_LIST is a file with the path of one object of the library per line.
"""

import pathlib
import re
import subprocess
import sys

# Which layers the files of a layer may include and call, besides their own.
MAY_SEE = {
    "base": [],
    "memory": ["base"],
    "devices": ["base", "memory"],
    "alloc": ["base", "memory"],
    "tensor": ["base", "memory", "alloc"],
    "plan": ["base", "memory", "alloc", "tensor"],
    "run": ["base", "memory", "alloc", "tensor", "plan"],
    "weights": ["base", "memory", "alloc", "tensor", "plan", "run"],
    "kv": ["base", "memory", "alloc", "tensor", "plan", "run", "weights"],
    "remote": ["base", "memory", "alloc", "tensor", "plan", "run", "weights"],
    "interop": ["base", "memory", "alloc", "tensor", "plan", "run", "weights", "kv", "remote"],
    "engines": ["base", "memory", "alloc", "tensor", "plan", "run", "weights", "kv", "remote", "interop"],
}
MAY_SEE["testing"] = list(MAY_SEE)
MAY_SEE["berth.h"] = list(MAY_SEE)
MAY_SEE["format.h"] = ["base"]

# The device folders that a layer above may use, by the start of a path. The typed interface of one device works on that
# device itself; a cluster offers its devices to the list of devices, and calls the driver that is opened there.
MAY_SEE_DEVICE = {
    "src/remote/": ["src/devices/remote/"],
    "src/interop/cuda.cpp": ["src/devices/cuda/"],
    "src/interop/cuda_graph.cpp": ["src/devices/cuda/"],
    "src/interop/metal.cpp": ["src/devices/metal/", "src/devices/host/"],
    "src/interop/metal_absent.cpp": ["src/devices/metal/"],
}

# The device folders that another device may use. built_in.cpp lists the devices and sees them all.
DEVICE_MAY_SEE = {
    "cpu": ["host"],
    "disk": ["cpu", "host"],
    "cuda": ["host"],
    "metal": ["host"],
    "webgpu": ["host"],
    "built_in.cpp": ["cpu", "disk", "cuda", "metal", "webgpu", "remote"],
}

# The one function that is declared in a lower layer and defined in a higher one.
MAY_LOOK_UP = re.compile(r"\bbuilt_in_backends\b")

# Pieces of one layer that must not use each other: the validator must not repeat a mistake of the planner.
STRANGERS = [("src/plan/validate", ["src/plan/placement/", "src/plan/order/", "src/plan/plan.cpp"])]

# The private headers that programs around the library may include, and why no public header serves.
PRIVATE_HEADERS = {
    # Macros stay out of the public headers.
    "base/try.h": ["cli", "python"],
    # What the program writes appears complete or not at all, as what the library writes.
    "base/atomic_file.h": ["cli"],
    # What it reads and keeps is treated with the same care: no endless files, and damage is found.
    "base/input_file.h": ["cli"],
    "base/checksum.h": ["cli"],
    # Names from files are checked before they reach the terminal.
    "base/utf8.h": ["cli"],
    # `berth explain` predicts what a caching pool would hold.
    "alloc/caching_pool/size_class.h": ["cli"],
    # The program finds its own file to start itself again. This is the operating system's business, not the library's.
    "base/os/program_path.h": ["cli"],
    # Runs without a cap are measured beside the default, which is one for each processor.
    "base/os/processors.h": ["bench"],
    # The session of `berth run`. Its interface is not yet promised to users.
    "engines/onnxruntime_session.h": ["cli", "bench"],
    # The Python module is opened by the engine itself, and speaks its interface.
    "engines/onnxruntime_abi.h": ["python"],
    "engines/onnxruntime_library.h": ["cli", "bench", "python"],
    "engines/ort_format.h": ["cli"],
    # The program looks for an order of execution that needs less memory.
    "engines/ort_graph.h": ["cli"],
    "engines/node_memory.h": ["cli"],
    # Benches that measure one part by itself.
    "engines/host_pages.h": ["bench"],
    "run/hazards.h": ["bench"],
    "tensor/f16_paths.h": ["bench"],
    "devices/webgpu/webgpu_device.h": ["bench"],
}

# What one program's folder may include of another's.
SHARED = {
    "tests/support/": ["bench"],  # instances of planning problems, and the counters of the driver doubles
    "examples/networks/": ["tests"],  # the networks that an example runs, run harder by a test
}

# The files outside of src/base/os that may ask which system they are compiled for, and why.
MAY_ASK_FOR_SYSTEM = {
    "src/devices/metal/metal_open.h": "what to do about a missing METAL differs on Apple's system",
}

INCLUDE = re.compile(r'\s*#\s*include\s*["<]([^">]+)[">]')
ASKS_FOR_SYSTEM = re.compile(r"\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b(?:__linux__|__APPLE__|_WIN32|__FreeBSD__)")
PROGRAMS = ["cli", "python", "bench", "examples", "tests"]


def layer_of(path):
    """The layer of a path in include/berth or src, such as "alloc" of "src/alloc/limit.cpp"."""
    parts = path.split("/")
    first = parts[2] if parts[0] == "include" else parts[1]
    if first.startswith("testing."):
        return "testing"
    return first


def sources(root, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".in") and path.is_file():
                yield path.relative_to(root).as_posix()


def includes_of(root, path):
    """The files of the project that `path` includes, each with its line number and as it is written."""
    for number, line in enumerate((root / path).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        written = match[1]
        beside = pathlib.PurePosixPath(path).parent
        for base in ("include", "src", beside, "tests", "examples", pathlib.PurePosixPath(path).parts[0]):
            candidate = (root / base / written).resolve()
            if candidate.is_file() and candidate.is_relative_to(root):
                yield number, written, candidate.relative_to(root).as_posix()
                break


def strangers_of(path):
    for start, others in STRANGERS:
        if path.startswith(start):
            return others
    return []


def judge(user, used):
    """What is wrong with `user` looking at `used`, both paths in include/ or src/; None if nothing is."""
    own, other = layer_of(user), layer_of(used)
    if any(used.startswith(stranger) for stranger in strangers_of(user)):
        return f"must share no code with {used}"
    if own == other == "devices" and user.startswith("src/") and used.startswith("src/"):
        own_device, other_device = user.split("/")[2], used.split("/")[2]
        if own_device != other_device and other_device not in DEVICE_MAY_SEE.get(own_device, []):
            return f"the device {own_device} must not look at the device {other_device}"
        return None
    if own == other or other in MAY_SEE[own]:
        return None
    if used.startswith("include/berth/devices/") and "memory" in MAY_SEE[own]:
        return None  # plain values that describe a device
    for start, folders in MAY_SEE_DEVICE.items():
        if user.startswith(start) and any(used.startswith(folder) for folder in folders):
            return None
    return f"{own} must not look at {other}"


def check_includes(root):
    for path in sources(root, ["include", "src"]):
        if layer_of(path) not in MAY_SEE:
            yield f"{path}: the folder {layer_of(path)} is not in the table of layers"
            continue
        for number, written, target in includes_of(root, path):
            problem = judge(path, target)
            if problem:
                yield f"{path}:{number}: includes {written}: {problem}"


def check_system(root):
    for path in sources(root, ["include", "src"]):
        if path.startswith("src/base/os/") or path in MAY_ASK_FOR_SYSTEM:
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            if ASKS_FOR_SYSTEM.match(line):
                yield f"{path}:{number}: asks which system this is; only src/base/os knows systems"


def check_programs(root):
    for path in sources(root, PROGRAMS):
        program = path.split("/")[0]
        for number, written, target in includes_of(root, path):
            folder = target.split("/")[0]
            if folder == "src" and program != "tests" and program not in PRIVATE_HEADERS.get(written, []):
                yield f"{path}:{number}: includes {written}: a program uses public headers only"
            shared = any(target.startswith(start) and program in users for start, users in SHARED.items())
            if folder in PROGRAMS and folder != program and not shared:
                yield f"{path}:{number}: includes {written}: {program} must not look at {folder}"


def source_of(object_path):
    """The source below src/ that an object was compiled from, such as "src/alloc/limit.cpp". Several that were compiled
    as one (cmake/united.cmake) are named by their folder, such as "src/alloc/united-0"."""
    united = re.search(r"/unity_(src-.+)-(\d+)_cxx\.cxx\.(o|obj)$", object_path)
    if united:
        return f"{united[1].replace('-', '/')}/united-{united[2]}"
    at = object_path.rfind("/src/")
    return re.sub(r"\.(o|obj)$", "", object_path[at + 1:])


def symbols_of(nm, objects):
    """For each object its defined and its undefined global symbols, demangled."""
    result = {}
    for path in objects:
        lines = subprocess.run([nm, "-g", "-C", "-P", path], check=True, capture_output=True, text=True).stdout
        defined, undefined = set(), set()
        for line in lines.splitlines():
            # "name type value size"; a demangled name has blanks itself.
            match = re.match(r"(.+?) ([A-Za-z])(?: [0-9a-fA-F]*)*\s*$", line)
            if match:
                (undefined if match[2] in "Uwv" else defined).add(match[1])
        result[source_of(path)] = (defined, undefined)
    return result


def check_symbols(nm, objects):
    symbols = symbols_of(nm, objects)
    owners = {}
    for source, (defined, _) in symbols.items():
        for name in defined:
            owners.setdefault(name, set()).add(source)
    for source, (_, undefined) in sorted(symbols.items()):
        for name in sorted(undefined):
            found = owners.get(name, set())
            if not found or MAY_LOOK_UP.search(name):
                continue
            problems = {owner: judge(source, owner) for owner in found}
            if all(problems.values()):
                owner, problem = sorted(problems.items())[0]
                yield f"{source}: uses {name}, defined in {owner}: {problem}"


def main():
    root, nm, object_list = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    lines = pathlib.Path(object_list).read_text().splitlines()
    objects = [line for line in lines if line.endswith((".o", ".obj"))]  # a precompiled header is no object
    if not objects:
        sys.exit(f"{object_list} names no objects: the symbols cannot be checked")
    problems = [*check_includes(root), *check_system(root), *check_programs(root), *check_symbols(nm, objects)]
    for problem in problems:
        print(problem)
    sys.exit(f"{len(problems)} violations of the layers" if problems else 0)


if __name__ == "__main__":
    main()
