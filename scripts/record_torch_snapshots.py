"""Records memory snapshots with PyTorch on a GPU, for the test that compares them with the model of `berth explain`.

    python scripts/record_torch_snapshots.py FOLDER
    BERTH_TORCH_SNAPSHOTS=FOLDER ctest --test-dir build/release -R explain

Needs torch with CUDA. Each snapshot is recorded in a process of its own, because the settings of the allocator are read
once, and from the first allocation on, because the model needs the whole trace.
"""

import os
import random
import subprocess
import sys

PROGRAMS = ("random", "training")
SETTINGS = {"fixed": "", "expandable": "expandable_segments:True", "split": "max_split_size_mb:32"}


def record(path, program):
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    if program == "random":
        rng, live = random.Random(7), []
        for _ in range(2000):
            if live and rng.random() < 0.48:
                live.pop(rng.randrange(len(live)))
            else:
                live.append(torch.empty(int(2 ** rng.uniform(0, 26)), dtype=torch.uint8, device="cuda"))
            if rng.random() < 0.005:
                torch.cuda.empty_cache()
    else:
        layers = [torch.nn.Linear(1024, 1024, device="cuda") for _ in range(8)]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(5):
            loss = model(torch.randn(64 * (step + 1), 1024, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot(path)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--record":
        record(sys.argv[2], sys.argv[3])
        return
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for program in PROGRAMS:
        for name, setting in SETTINGS.items():
            path = os.path.join(folder, f"{program}_{name}.pickle")
            subprocess.run([sys.executable, __file__, "--record", path, program], check=True,
                           env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting})
            print(path)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
