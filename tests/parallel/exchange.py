"""Ranks as threads of one process, whose collectives only move data, exactly as they should."""

import threading

from boldcast.parallel.world import World


class Finished:
    """A collective that has ended."""

    def wait(self):
        return True


class Exchange:
    """The collectives of a group of threads; counts the elements that leave each rank."""

    def __init__(self, n_ranks):
        self.n_ranks = n_ranks
        self.sent = [0] * n_ranks
        self._rank = threading.local()
        self._inputs = [None] * n_ranks
        self._barrier = threading.Barrier(n_ranks, timeout=60)

    def run(self, work):
        """Return ``work(world)`` of every rank."""
        results, errors = [None] * self.n_ranks, []

        def rank_main(rank):
            self._rank.number = rank
            try:
                results[rank] = work(World(rank, rank, self.n_ranks, self.n_ranks))
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=rank_main, args=(r,)) for r in range(self.n_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def all_to_all_single(self, output, source, output_sizes, input_sizes, async_op=False):
        me = self._rank.number
        assert source.numel() == sum(input_sizes)
        everyone = self._share((source.clone(), input_sizes))
        pieces = [data.split(sizes)[me] for data, sizes in everyone]
        assert [p.numel() for p in pieces] == output_sizes
        assert output.numel() == sum(output_sizes)
        for part, piece in zip(output.split(output_sizes), pieces, strict=True):
            part.copy_(piece)
        self.sent[me] += sum(input_sizes) - input_sizes[me]
        return Finished()

    def all_gather_single(self, output, source, async_op=False):
        me = self._rank.number
        everyone = self._share(source.clone())
        assert output.numel() == source.numel() * self.n_ranks
        for part, piece in zip(output.chunk(self.n_ranks), everyone, strict=True):
            part.copy_(piece)
        self.sent[me] += source.numel() * (self.n_ranks - 1)
        return Finished()

    def _share(self, value):
        self._inputs[self._rank.number] = value
        self._barrier.wait()
        everyone = list(self._inputs)
        self._barrier.wait()
        return everyone
