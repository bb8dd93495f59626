"""Fill a disk with checkpoints, in a mount namespace of its own or under a limit of the kernel.

Prints the number of the error that the disk gave, what is left, and the sentence for the user.
"""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import torch

from boldcast.errors import BoldcastError
from boldcast.parallel.world import World
from boldcast.train.checkpoint import Checkpoints
from boldcast.train.kept import find_damage


def main(folder, limited):
    run_dir = Path(folder) / "disk"
    run_dir.mkdir()
    if not limited:  # room for one checkpoint of 3 x 1 MiB, not for two
        mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(run_dir)]
        subprocess.run(mount, check=True)
    model = torch.nn.Linear(512, 512, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    made = Checkpoints(run_dir, model, optimizer, World(), keep=2, written_by={})
    made.save(1, {})
    made.wait()
    if limited:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    made.save(2, {})
    try:
        made.wait()
    except BoldcastError as error:
        number = next(n for n in (errno.ENOSPC, errno.EFBIG) if _says(str(error), n))
        left = [path.name for path in (run_dir / "checkpoints").iterdir()]
        whole = find_damage(run_dir / "checkpoints" / "step_00000001") is None
        print(number)
        print(left[0], "whole" if whole else "damaged", "alone" if len(left) == 1 else left)
        print(error)


def _says(sentence, number):
    return os.strerror(number) in sentence


if __name__ == "__main__":
    main(sys.argv[1], len(sys.argv) > 2)
