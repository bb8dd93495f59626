"""A rank that sums known gradients over real processes and writes what it holds and has sent."""

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from boldcast.parallel import bucket
from boldcast.parallel.reduce import GradientSum, gather_rows, sum_rows
from boldcast.parallel.world import World, share

SHAPES = ((3, 5), (7,), (1,), (64, 64))


class Counted:
    """torch.distributed, counting the elements that leave this rank."""

    def __init__(self):
        self.sent = 0

    def all_to_all_single(self, output, source, output_sizes, input_sizes, **options):
        self.sent += sum(input_sizes) - input_sizes[dist.get_rank()]
        return dist.all_to_all_single(output, source, output_sizes, input_sizes, **options)

    def all_gather_single(self, output, source, **options):
        self.sent += source.numel() * (dist.get_world_size() - 1)
        return dist.all_gather_single(output, source, **options)


def leaf_gradients(leaf):
    generator = torch.Generator().manual_seed(leaf)
    scale = 10.0 ** float(leaf % 5)
    return [torch.randn(shape, generator=generator) * scale for shape in SHAPES]


def summed(n_micro, world, *, during, bucket_mib):
    """Sum twice, the second time in the buffers of the first, and return the digest."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    total = GradientSum(parameters, n_micro, world, bucket_mib)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = None
        for leaf in total.leaves:
            if during:
                with total.during(leaf):
                    torch.autograd.backward([p * 1.0 for p in parameters], leaf_gradients(leaf))
            else:
                for parameter, gradient in zip(parameters, leaf_gradients(leaf), strict=True):
                    parameter.grad = gradient
            total.add(leaf)
        total.finish(divisor=float(n_micro))
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


@record
def main(folder, counts):
    world = World.from_env()
    results, sent = {}, {}
    bucket.dist = counted = Counted()
    with world.process_group(torch.device("cpu"), 60):
        for n_micro in counts:
            counted.sent = 0
            results[n_micro] = summed(n_micro, world, during=False, bucket_mib=25.0)
            sent[n_micro] = counted.sent / 2
            early = summed(n_micro, world, during=True, bucket_mib=1e-5)
            assert early == results[n_micro]
            counts_of = [len(share(n_micro, world.world_size, r)) for r in range(world.world_size)]
            rows = torch.tensor(
                [[float(leaf), 1.0] for leaf in world.share(n_micro)], dtype=torch.float64
            )
            everyone = gather_rows(rows.view(-1, 2), counts_of, world)
            assert everyone[:, 0].tolist() == list(range(n_micro))
            assert sum_rows(everyone).tolist() == [n_micro * (n_micro - 1) / 2, n_micro]
    (folder / f"rank_{world.rank}.json").write_text(json.dumps([results, sent]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(n) for n in sys.argv[2:]])
