"""How long a step waits for a checkpoint, written behind it and waited for; run on purpose.

    python tests/train/bench_checkpoint.py [folder]

Prints a line per model size: the size of the state, the median time that ``save`` holds a step up
both ways, and their ratio.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from boldcast.parallel.world import World
from boldcast.train.checkpoint import Checkpoints

ROUNDS = 5


def stalls(folder, width, n_layers, background):
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(n_layers)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    made = Checkpoints(
        folder, model, optimizer, World(), keep=1, written_by={}, background=background
    )
    times = []
    for step in range(1, ROUNDS + 2):
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        began = time.perf_counter()
        made.save(step, {"step": step})
        times.append(time.perf_counter() - began)
        made.wait()  # the next one must not pay for this one
    size = 3 * 4 * sum(p.numel() for p in model.parameters())
    return statistics.median(times[1:]), size  # the first allocates the copy


def main(folder):
    torch.set_num_threads(1)
    print(f"{'state':>10} {'waited for':>12} {'behind':>10} {'ratio':>7}")
    for width, n_layers in ((64, 4), (256, 8), (512, 16), (1024, 24)):
        with (
            tempfile.TemporaryDirectory(dir=folder) as one,
            tempfile.TemporaryDirectory(dir=folder) as other,
        ):
            waited, size = stalls(Path(one), width, n_layers, background=False)
            behind, _ = stalls(Path(other), width, n_layers, background=True)
        print(
            f"{size / 2**20:7.1f} MiB {waited * 1e3:9.1f} ms {behind * 1e3:7.1f} ms "
            f"{behind / waited:7.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
