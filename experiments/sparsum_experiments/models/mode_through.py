"""Straight-through Gumbel-softmax as the authors of the paper have it for bits."""

from __future__ import annotations

from torch import Tensor

import sparsum as sp
from sparsum.estimators.relaxations import one_hot


class ModeThrough(sp.estimators.StraightThrough):
    r"""`sparsum.estimators.StraightThrough` whose loss sees the most probable assignment, and no sample.

    .. math:: \ell(z), \quad z = \arg\max p, \quad \partial z := \partial\, \mathrm{softmax}((\log p + g) / \tau)

    So no network learns from samples, and its value is no estimate of the expected loss. It is here to be compared with the
    numbers that the paper has of it.
    """

    def _relax(self, logits: Tensor, noise: Tensor) -> Tensor:
        sampled = super()._relax(logits, noise)
        # The hard part of it is a constant.
        return one_hot(logits.detach().expand_as(noise)) + (sampled - sampled.detach())
