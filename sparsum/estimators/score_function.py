r"""Score-function estimators (REINFORCE) and their baselines.

.. math:: \nabla \mathbb{E}[\ell(z)] = \mathbb{E}[\nabla \ell(z) + (\ell(z) - b) \nabla \log p(z)]

for every baseline b that does not depend on the sample z: b only changes the variance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.arguments import check_bool, check_int, kind_of
from sparsum.estimators.abstract import AbstractEstimator, Estimate, check_samples
from sparsum.estimators.baselines import RunningMean, in_dtype_of, perceptron, predict
from sparsum.estimators.problem import Problem
from sparsum.gibbs import Gibbs
from sparsum.structures import AbstractStructure


class ScoreFunction(AbstractEstimator):
    r"""The score function with the mean of all earlier losses as baseline, also known as REINFORCE or SFE.

    .. math:: \ell(z) + (\ell(z) - b) \log p(z), \quad z \sim p

    >>> import sparsum as sp
    >>> estimator = ScoreFunction()
    >>> scores = torch.zeros(1, 3, requires_grad=True)
    >>> estimate = estimator(scores, sp.OneOf(3), lambda z, row: z.float(), generator=torch.Generator().manual_seed(0))
    >>> estimate.calls
    tensor([1])

    Args:
        samples: the number of samples per element, which are averaged.
        decay: None for the mean of all earlier losses, or the decay of an exponential moving average.
        baseline: whether to subtract a baseline.

    References:
        - Simple statistical gradient-following algorithms for connectionist reinforcement learning (Williams, 1992),
          https://doi.org/10.1007/BF00992696
    """

    def __init__(self, samples: int = 1, *, decay: float | None = None, baseline: bool = True) -> None:
        super().__init__()
        self.samples = check_samples(samples)
        self.baseline = RunningMean(decay) if baseline else None

    def n_calls(self, structure: AbstractStructure) -> int:
        """One per sample."""
        return self.samples

    def estimate(self, problem: Problem) -> Estimate:
        """The average over samples."""
        p = problem.gibbs()
        atoms, losses = sample_losses(problem, p, self.samples)
        surrogate = losses + (losses.detach() - current(self.baseline)) * problem.log_probs(p, atoms)
        if self.training and self.baseline is not None:
            self.baseline.update(losses.detach())
        return Estimate(surrogate.mean(1), losses.mean(1), problem.calls(self.samples), p)


class SelfCritic(AbstractEstimator):
    r"""The score function with the loss of a second, independent sample as baseline: SFE+.

    .. math:: \ell(z) + (\ell(z) - \ell(z')) \log p(z), \quad z, z' \sim p

    The second sample is evaluated without gradient, so the parameters of the loss receive the gradient of one sample.

    >>> import sparsum as sp
    >>> estimate = SelfCritic()(torch.zeros(1, 3, requires_grad=True), sp.OneOf(3), lambda z, row: z.float())
    >>> estimate.calls
    tensor([2])

    Args:
        greedy: whether to use the most probable assignment instead of a second sample.

    References:
        - Self-critical sequence training for image captioning (Rennie, Marcheret, Mroueh, Ross & Goel, 2017), with the most
          probable assignment, https://arxiv.org/abs/1612.00563
    """

    def __init__(self, *, greedy: bool = False) -> None:
        super().__init__()
        self.greedy = greedy

    def n_calls(self, structure: AbstractStructure) -> int:
        """The sample and its critic."""
        return 2

    def estimate(self, problem: Problem) -> Estimate:
        """The loss of one sample, relative to the loss of another."""
        p = problem.gibbs()
        atoms, losses = sample_losses(problem, p, 1)
        with torch.no_grad():
            second = p.mode.reshape(atoms.shape) if self.greedy else problem.sample(p, 1)
            baseline = problem.sample_losses(second)
        surrogate = losses + (losses.detach() - baseline) * problem.log_probs(p, atoms)
        return Estimate(surrogate.mean(1), losses.mean(1), problem.calls(2), p)


class NVIL(AbstractEstimator):
    r"""The score function with a learned baseline: a network that predicts the loss from the ``context``.

    .. math:: \ell(z) + (\ell(z) - b(x)) \log p(z) + (\ell(z) - b(x))^2

    In the last term the loss is treated as a constant, so this term trains only the network. Pass the estimator's
    ``parameters()`` to the optimiser.

    >>> import sparsum as sp
    >>> estimator, x = NVIL(context_size=7), torch.randn(4, 7)
    >>> estimate = estimator(torch.zeros(4, 3), sp.OneOf(3), lambda z, row: z.float(), context=x)
    >>> estimate.surrogate.mean().backward()
    >>> estimator.network[0].weight.grad.shape
    torch.Size([512, 7])

    Args:
        context_size: the number of features of the context, which is flattened; creates a ReLU network with layer sizes
            context_size, *hidden, 1.
        hidden: the sizes of its hidden layers.
        network: a custom network, called with the context, (n_rows, *features); returns (n_rows,) or (n_rows, 1).
        normalise: whether to centre the residual of the network, and to divide it by its standard deviation if that is
            larger than 1, both estimated by exponential averages with a decay of 0.8. This rescales the gradient of the
            scores.

    References:
        - Neural variational inference and learning in belief networks (Mnih & Gregor, 2014), algorithm 1,
          https://arxiv.org/abs/1402.0030
    """

    def __init__(
        self,
        context_size: int | None = None,
        *,
        hidden: tuple[int, ...] = (512, 512, 512),
        network: torch.nn.Module | None = None,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        if (context_size is None) == (network is None):
            raise ValueError("pass exactly one of context_size (the number of features of the context) and network")
        if network is None:
            assert context_size is not None
            check_int("context_size", context_size, least=1)
            network = perceptron(context_size, hidden)
        if not isinstance(network, torch.nn.Module):
            raise TypeError(f"network must be a torch.nn.Module, got {kind_of(network)}")
        check_bool("normalise", normalise)
        self.network, self.context_size = network, context_size
        self.centre = RunningMean(0.8) if normalise else None
        self.square = RunningMean(0.8) if normalise else None

    @property
    def is_unbiased(self) -> bool:  # type: ignore[override]
        """Whether the gradient keeps its scale, i.e. ``normalise`` is False."""
        return self.square is None

    def n_calls(self, structure: AbstractStructure) -> int:
        """One sample."""
        return 1

    def estimate(self, problem: Problem) -> Estimate:
        """The loss of one sample, relative to the prediction."""
        context = self._context(problem)
        p = problem.gibbs()
        atoms, losses = sample_losses(problem, p, 1)
        prediction = predict(self.network, context, n_rows=problem.n_rows).unsqueeze(1)
        signal = (losses.detach() - prediction - current(self.centre)) / self._scale()
        surrogate = losses + signal.detach() * problem.log_probs(p, atoms)
        if self.training and self.centre is not None and self.square is not None:
            left = (losses - prediction).detach()
            self.square.update((left - self.centre.mean).square())
            self.centre.update(left)
        return Estimate((surrogate + signal.square()).mean(1), losses.mean(1), problem.calls(1), p)

    def _context(self, problem: Problem) -> Tensor:
        """The input of the network: flattened for the default network, unchanged for a custom one."""
        if self.context_size is not None:
            return in_dtype_of(self.network, problem.features(self.context_size))
        if problem.context is None:
            raise ValueError("NVIL needs a context as input of its network: pass context=x")
        return in_dtype_of(self.network, problem.context)

    def _scale(self) -> Tensor | float:
        """The standard deviation of the signal, at least 1."""
        return 1.0 if self.square is None else self.square.mean.sqrt().clamp_min(1.0)


class LeaveOneOut(AbstractEstimator):
    r"""The score function with several samples, each with the mean loss of the others as baseline: RLOO.

    .. math:: \frac1S \sum_s \ell(z_s) + \Bigl(\ell(z_s) - \frac1{S-1} \sum_{r \ne s} \ell(z_r)\Bigr) \log p(z_s)

    >>> import sparsum as sp
    >>> estimate = LeaveOneOut(4)(torch.zeros(1, 3, requires_grad=True), sp.OneOf(3), lambda z, row: z.float())
    >>> estimate.calls
    tensor([4])

    Args:
        samples: the number of samples S, at least 2.

    References:
        - Buy 4 REINFORCE samples, get a baseline for free! (Kool, van Hoof & Welling, 2019),
          https://openreview.net/forum?id=r1lgTGL5DE
    """

    def __init__(self, samples: int = 2) -> None:
        super().__init__()
        self.samples = check_samples(samples, least=2)

    def n_calls(self, structure: AbstractStructure) -> int:
        """One per sample."""
        return self.samples

    def estimate(self, problem: Problem) -> Estimate:
        """The average over samples."""
        p = problem.gibbs()
        atoms, losses = sample_losses(problem, p, self.samples)
        values = losses.detach()
        others = (values.sum(1, keepdim=True) - values) / (self.samples - 1)
        surrogate = losses + (values - others) * problem.log_probs(p, atoms)
        return Estimate(surrogate.mean(1), losses.mean(1), problem.calls(self.samples), p)


def sample_losses(problem: Problem, p: Gibbs, n: int) -> tuple[Tensor, Tensor]:
    """Samples for each row, (n_rows, n, *event_shape), and their losses, (n_rows, n)."""
    atoms = problem.sample(p, n)
    return atoms, problem.sample_losses(atoms)


def current(baseline: RunningMean | None) -> Tensor | float:
    """The value of a baseline, or 0 without one; a copy, since the baseline is updated in place."""
    return 0.0 if baseline is None else baseline.mean.clone()
