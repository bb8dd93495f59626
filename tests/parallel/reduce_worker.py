"""A rank that sums known gradients over real processes and prints what it holds."""

import hashlib
import json
import sys

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from boldcast.parallel.reduce import GradientSum, gather_rows, sum_rows
from boldcast.parallel.world import World, share


def leaf_gradients(leaf):
    generator = torch.Generator().manual_seed(leaf)
    scale = 10.0 ** float(leaf % 5)
    return [torch.randn(shape, generator=generator) * scale for shape in ((3, 5), (7,), (1,))]


@record
def main(counts):
    world = World.from_env()
    results = {}
    with world.process_group(torch.device("cpu"), 60):
        for n_micro in counts:
            parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in leaf_gradients(0)]
            total = GradientSum(parameters, n_micro, world)
            for _ in range(2):  # the second round runs in the buffers of the first
                for leaf in total.leaves:
                    for parameter, gradient in zip(parameters, leaf_gradients(leaf), strict=True):
                        parameter.grad = gradient
                    total.add(leaf)
                total.finish(divisor=float(n_micro))
            flat = torch.cat([p.grad.reshape(-1) for p in parameters])
            results[n_micro] = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
            counts_of = [len(share(n_micro, world.world_size, r)) for r in range(world.world_size)]
            rows = torch.tensor([[float(leaf), 1.0] for leaf in total.leaves], dtype=torch.float64)
            everyone = gather_rows(rows.view(-1, 2), counts_of, world)
            assert everyone[:, 0].tolist() == list(range(n_micro))
            assert sum_rows(everyone).tolist() == [n_micro * (n_micro - 1) / 2, n_micro]
    print("RESULT", world.rank, json.dumps(results), flush=True)


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]])
