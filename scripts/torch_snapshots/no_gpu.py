"""Libraries in place of NVIDIA's, with which a PyTorch that was built for CUDA starts without a GPU.

no_gpu.c has the functions that mean something. Every other one that PyTorch asks for returns 0. All of them are in
libcuda.so.1; the other libraries have their name and nothing else.
"""

import glob
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

FUNCTION = re.compile(r"_*(cu[A-Z]|cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|cupti|nccl|nv)")
LIBRARY = re.compile(r"lib(cu|nv|nccl)")
COMPILER = os.environ.get("CC", "cc")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def link(folder, name, *inputs):
    subprocess.run([COMPILER, "-shared", "-Wl,--no-as-needed", f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN", "-o",
                    os.path.join(folder, name), *inputs], check=True)


def build():
    """Returns a temporary folder of libraries for the PyTorch that this Python would import."""
    root = os.path.dirname(importlib.util.find_spec("torch").origin)
    own = [*glob.glob(f"{root}/lib/*.so*"), *glob.glob(f"{root}/_C.*.so")]
    needed, wanted, known = set(), set(), set()
    for path in own:
        needed.update(re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", path)))
        for line in output_of("nm", "-D", path).splitlines():
            kind, name = line.split()[-2:]
            (wanted if kind in "Uwv" else known).add(name.split("@")[0])
        if "c10_cuda" in path:  # it looks functions up by their names
            with open(path, "rb") as file:
                wanted.update(name.decode() for name in re.findall(rb"\0((?:cu[A-Z]|nvml)\w+)(?=\0)", file.read()))
    runtime = re.search(r"libcudart\.so\.(\d+)", " ".join(needed))
    if runtime is None:
        sys.exit("this PyTorch was not built for CUDA")
    folder = tempfile.TemporaryDirectory(prefix="no_gpu_")
    inside = os.path.join(folder.name, "no_gpu.o"), os.path.join(folder.name, "others.s")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "no_gpu.c")
    subprocess.run([COMPILER, "-c", "-fPIC", "-O1", f"-DCUDA_MAJOR={runtime.group(1)}", source, "-o", inside[0]],
                   check=True)
    known.update(line.split()[-1] for line in output_of("nm", inside[0]).splitlines())
    with open(inside[1], "w", encoding="ascii") as file:
        for name in sorted(filter(FUNCTION.match, wanted - known)):
            file.write(f".globl {name}\n.type {name}, @function\n{name}:\n")
        file.write("xorl %eax, %eax\nret\n.section .note.GNU-stack\n")
    link(folder.name, "libcuda.so.1", *inside)
    shipped = {os.path.basename(path) for path in own}
    for name in sorted(filter(LIBRARY.match, needed - shipped - {"libcuda.so.1"})):
        link(folder.name, name, os.path.join(folder.name, "libcuda.so.1"))
    # Older versions insist on a library that they ask for nothing here.
    link(folder.name, "libnvidia-ml.so.1", os.path.join(folder.name, "libcuda.so.1"))
    return folder


def allow_missing_functions():
    """Has functions looked up when they are called, as PyTorch's libraries were linked for."""
    sys.setdlopenflags(os.RTLD_LAZY)
