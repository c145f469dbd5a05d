"""Perturb-and-MAP with a gradient from a second, moved optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.distribution.generator import check_generator
from sparsum.estimators.abstract import AbstractEstimator, Estimate
from sparsum.estimators.arguments import check_number, check_samples
from sparsum.estimators.noise import gumbel, logistic
from sparsum.estimators.problem import Problem
from sparsum.gibbs.chain import FORBIDDEN
from sparsum.gibbs.choices import keeps_to
from sparsum.gibbs.gibbs import GIBBS_STRUCTURES
from sparsum.structures import AbstractStructure, Bits, Budget
from sparsum.structures.bad_rows import is_unusable, raise_bad_rows
from sparsum.structures.parts import Scores, flatten_parts, select_rows, tensors_of, unflatten_parts

#: Noise of a shape, in the dtype and on the device of a tensor.
Noise = Callable[[Sequence[int], Tensor, torch.Generator | None], Tensor]


class Imle(AbstractEstimator):
    r"""Implicit maximum likelihood: samples are optima of perturbed scores, for any structure that has an argmax.

    .. math:: z = \arg\max_z a_z^\top (t + \epsilon), \quad
        \nabla_t \approx \frac1\lambda \Bigl( a_z - a_{z'} \Bigr), \quad
        z' = \arg\max_{z'} a_{z'}^\top \bigl( t + \epsilon - \lambda \nabla_{a_z} \ell \bigr)

    The loss is evaluated at the vectors of assignments alone, and must be differentiable there; of scores that are a pair,
    it gets the first part of the vectors, the one-hot tags. Biased; the bias depends on the step.

    >>> import sparsum as sp
    >>> scores, target = torch.zeros(1, 3, 3, requires_grad=True), torch.eye(3)
    >>> loss = lambda z, row: (z - target).square().sum((-1, -2))
    >>> estimate = Imle()(scores, sp.Matching(3), loss, generator=torch.Generator().manual_seed(0))
    >>> estimate.surrogate.sum().backward()

    Args:
        step: :math:`\lambda`, how far the scores move against the gradient of the loss, larger than 0; it wants to be
            tuned to the scale of the loss.
        samples: how many samples per element are averaged.
        noise: a function of a shape, a tensor like which the noise shall be, and a generator; by default standard logistic
            noise for `Bits` and `Budget` and Gumbel noise else, both of which make samples exact for independent choices.

    Returns:
        As distribution the `sparsum.Gibbs` one, where it can be summed over: the samples follow it exactly over `OneOf`,
        `Groups` and `Bits`, else nearly. Over other structures a `PerturbAndMap`, which has no entropy.

    References:
        - Implicit MLE: backpropagating through discrete exponential family distributions (Niepert, Minervini &
          Franceschi, 2021), algorithm 1, https://arxiv.org/abs/2106.01798
        - Perturb-and-MAP random fields (Papandreou & Yuille, 2011), https://doi.org/10.1109/ICCV.2011.6126242
    """

    is_unbiased = False
    needs_relaxed_loss = True
    structures = (AbstractStructure,)

    def __init__(self, step: float = 1.0, *, samples: int = 1, noise: Noise | None = None) -> None:
        super().__init__()
        check_number("step", step, above=0.0)
        self.step, self.samples, self.noise = float(step), check_samples(samples), noise

    def n_calls(self, structure: AbstractStructure) -> int:
        """One per sample."""
        return self.samples

    def estimate(self, problem: Problem) -> Estimate:
        """The average over samples."""
        noise = self.noise if self.noise is not None else default_noise(problem.structure)
        p = problem.gibbs() if keeps_to(problem.structure, GIBBS_STRUCTURES) else _perturb_and_map(problem, noise)
        flat = flatten_parts(problem.rows)
        flat = flat.float() if torch.finfo(flat.dtype).bits == 16 else flat
        row = problem.row(self.samples)
        structure = problem.structure.select(row)
        like = select_rows(problem.rows, row)
        fixed = flat.detach()[row]
        perturbed = fixed + noise(fixed.shape, fixed, problem.generator)
        chosen = structure.vectors(structure.argmax(unflatten_parts(perturbed, like)))
        first = tensors_of(chosen)[0].to(problem.dtype)
        with torch.enable_grad():
            point = first.unflatten(0, (problem.n_rows, self.samples)).requires_grad_()
            losses = problem.relaxed_losses(point)
        surrogate = losses.mean(1)
        if flat.requires_grad and torch.is_grad_enabled():
            (slope,) = torch.autograd.grad(losses.sum(), point, retain_graph=True)
            slope = torch.nn.functional.pad(slope.flatten(2).flatten(0, 1), (0, fixed.shape[1] - first.shape[1:].numel()))
            moved = structure.vectors(structure.argmax(unflatten_parts(perturbed - self.step * slope, like)))
            gradient = (flatten_parts(chosen) - flatten_parts(moved)).to(flat.dtype) / self.step
            # An optimum of scores that are no numbers says nothing.
            gradient = torch.where(slope.isfinite().all(-1, keepdim=True), gradient, torch.nan)
            along = gradient.unflatten(0, (problem.n_rows, self.samples)).mean(1)
            surrogate = surrogate + (along * flat.clamp_min(FORBIDDEN)).sum(-1)
        return Estimate(surrogate, losses.mean(1), problem.calls(self.samples), p)


class PerturbAndMap(Distribution):
    """The distribution of the optima of perturbed scores: known by its samples alone.

    Args:
        problem: rows of scores and their structure.
        noise: what perturbs the scores.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, problem: Problem, noise: Noise) -> None:
        self.structure, self._rows, self._noise = problem.structure, problem.rows, noise
        best = problem.structure.argmax(problem.rows)
        #: The best assignment without noise: (*batch_shape, *event_shape).
        self.best = best.reshape(problem.batch_shape + best.shape[1:])
        super().__init__(problem.batch_shape, best.shape[1:], validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The best assignment without noise: (*batch_shape, *event_shape)."""
        return self.best

    def sample(self, sample_shape: int | Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws: (*sample_shape, *batch_shape, *event_shape)."""
        check_generator(generator)
        shape = torch.Size([sample_shape] if isinstance(sample_shape, int) else sample_shape)
        flat = flatten_parts(self._rows).detach()
        flat = flat.float() if torch.finfo(flat.dtype).bits == 16 else flat
        row = torch.arange(len(flat), device=flat.device).repeat(shape.numel())
        perturbed = flat[row] + self._noise((len(row), flat.shape[1]), flat, generator)
        scores: Scores = unflatten_parts(perturbed, select_rows(self._rows, row))
        atoms = self.structure.select(row).argmax(scores)
        return atoms.reshape(shape + self.batch_shape + self.event_shape)

    def entropy(self) -> Tensor:
        """Nobody knows it."""
        raise NotImplementedError(
            f"the entropy of optima of perturbed scores over {self.structure!r} is not known; SparseMAP and TopK have one"
        )


def _perturb_and_map(problem: Problem, noise: Noise) -> PerturbAndMap:
    """The distribution of a problem, if all rows have one."""
    p = PerturbAndMap(problem, noise)
    if problem.validate_args:
        flat = flatten_parts(problem.rows).detach()
        best = p.best.reshape(problem.n_rows, *p.event_shape)
        is_bad = is_unusable(flat) | (problem.structure.score(problem.rows, best, problem.row(1)).detach() == -torch.inf)
        if bool(is_bad.any()):
            raise_bad_rows(is_bad, flat)
    return p


def default_noise(structure: AbstractStructure) -> Noise:
    """Logistic noise where a score decides against 0, Gumbel noise where scores compete."""
    return logistic if isinstance(structure, Bits | Budget) else gumbel
