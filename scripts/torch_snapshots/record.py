"""Records memory snapshots with PyTorch, for the test that compares them with the model of `berth explain`.

    python scripts/torch_snapshots/record.py FOLDER [--no-gpu] [--seeds N] [--steps N]
    BERTH_TORCH_SNAPSHOTS=FOLDER ctest --test-dir build/release -R explain

Needs a torch that was built for CUDA. With --no-gpu, no GPU and none of NVIDIA's libraries are needed: PyTorch's own
allocator runs on addresses without memory (no_gpu.py), so that what it does and writes is real, and what tensors hold
is not. The settings of the allocator are read once, so each setting has a process of its own.
"""

import argparse
import os
import random
import subprocess
import sys

import no_gpu

MIB = 1 << 20
SETTINGS = {"fixed": "", "expandable": "expandable_segments:True", "split": "max_split_size_mb:32",
            "round": "roundup_power2_divisions:4", "collect": "garbage_collection_threshold:0.5"}
# On a device of this size programs run out of memory, and the allocator gives back what it has cached.
SMALL_DEVICE_MIB = 400


def random_program(torch, seed, steps):
    """Requests of a few sizes and of any size, on one to three streams, and tensors that several streams use."""
    rng, live = random.Random(seed), []
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(seed % 3))]
    sizes = [rng.randrange(1, 4000), rng.randrange(4000, MIB), rng.randrange(MIB, 10 * MIB),
             rng.randrange(10, 60) * MIB]
    for _ in range(steps):
        if live and rng.random() < 0.48:
            tensor = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.2:
                tensor.record_stream(rng.choice(streams))
            del tensor
        else:
            size = rng.choice(sizes) if rng.random() < 0.7 else int(2 ** rng.uniform(0, 26))
            with torch.cuda.stream(rng.choice(streams)):
                try:
                    live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                except torch.cuda.OutOfMemoryError:
                    live = live[::2]
        if rng.random() < 0.01:
            torch.cuda.empty_cache()
    return live


def training(torch, seed, steps):
    """Steps of a small network with Adam, over batches that grow and shrink."""
    rng = random.Random(seed)
    width = rng.choice((256, 1024, 2048))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, device="cuda") for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(max(2, steps // 60)):
        try:
            model(torch.empty(rng.randrange(1, 2048), width, device="cuda")).square().mean().backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            pass
        optimizer.zero_grad()
    return model, optimizer


PROGRAMS = {"random": random_program, "training": training}


def record(arguments):
    """Runs in a process of its own: every program and seed under one setting."""
    import torch

    memory = torch.cuda.memory
    for name, program in PROGRAMS.items():
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            # The model needs the whole trace, so it begins with nothing allocated.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            if torch.cuda.memory_reserved() != 0:
                torch._C._cuda_clearCublasWorkspaces()
                torch.cuda.empty_cache()
            memory._record_memory_history(None)
            memory._record_memory_history("all", context="alloc" if seed % 2 == 0 else None, stacks="python")
            held = program(torch, seed, arguments.steps)
            path = os.path.join(arguments.folder, f"{name}_{arguments.setting}_{seed}.pickle")
            memory._dump_snapshot(path)
            print(path, flush=True)
            del held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--no-gpu", action="store_true", help="run PyTorch's allocator without a device")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--setting", choices=[*SETTINGS, "full"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    if arguments.setting is not None:
        if arguments.no_gpu:
            no_gpu.allow_missing_functions()
        record(arguments)
        return
    libraries = no_gpu.build() if arguments.no_gpu else None
    for setting, value in [*SETTINGS.items(), *([("full", "")] if arguments.no_gpu else [])]:
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": value}
        if libraries is not None:
            environment["LD_LIBRARY_PATH"] = libraries.name
            if setting in ("full", "collect", "split"):
                environment["NO_GPU_MIB"] = str(SMALL_DEVICE_MIB)
        subprocess.run([sys.executable, *sys.argv, "--setting", setting], check=True, env=environment)


if __name__ == "__main__":
    main()
