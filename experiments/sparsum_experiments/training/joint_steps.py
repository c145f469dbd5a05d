"""Training steps of one model on several devices, by torch's DistributedDataParallel.

A batch is split over the ranks. Each computes the mean loss of its share, which counts by its size: the sum over the ranks
is the mean over the batch, however many atoms each share has. A step has two sums over the ranks: of the gradients, while
they are computed, and of what is logged.
"""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from sparsum_experiments.experiment import AbstractExperiment, Step
from sparsum_experiments.training.ranks import Ranks
from sparsum_experiments.training.steps import Steps


def share_of(n: int, ranks: Ranks) -> slice:
    """The part of a batch of n examples that is this rank's; the first ranks have one more if it does not divide.

    >>> [share_of(5, Ranks(rank, 3)) for rank in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    least, others = divmod(n, ranks.n)
    begin = ranks.rank * least + min(ranks.rank, others)
    return slice(begin, begin + least + (ranks.rank < others))


class JointSteps(Steps):
    """Steps of one rank. Their results are those of the whole batch, the same on all ranks."""

    def __init__(self, experiment: AbstractExperiment, fabric: Fabric, ranks: Ranks) -> None:
        self.ranks = ranks
        super().__init__(experiment, fabric)

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        """Sum gradients over ranks. Buffers, such as a running mean as baseline, are rank 0's at each step."""
        return DistributedDataParallel(model)

    def take(self, order: Tensor, i: int) -> Step:
        """Step i of an epoch."""
        size = self.experiment.args.batch_size
        batch = order[..., i * size : (i + 1) * size]
        n = batch.shape[-1]
        share = share_of(n, self.ranks)
        # A rank without examples takes part in all collectives, with an example of another rank that counts nothing.
        mine = batch[..., share] if share.start < share.stop else batch[..., :1]
        weight = (share.stop - share.start) / n
        # The sum of the gradients is divided by the number of ranks.
        step = self.advance(self.experiment.batch(mine, 0, self.generator), weight * self.ranks.n)
        return self._joint(step, n, share, weight)

    def _joint(self, step: Step, n: int, share: slice, weight: float) -> Step:
        """The means and calls of the whole batch; the size of what is sent depends on the size of the batch alone."""
        means = torch.stack([value.double() for value in (step.objective, *step.terms.values())]) * weight
        calls = means.new_zeros(n)
        calls[share] = step.calls[: share.stop - share.start].double()
        both = torch.cat([means, calls])
        distributed.all_reduce(both)
        objective, *terms = both[: len(means)].unbind()
        return Step(objective, dict(zip(step.terms, terms, strict=True)), both[len(means) :].long())
