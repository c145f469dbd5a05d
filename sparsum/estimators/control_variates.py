r"""Score functions whose baseline depends on a relaxed sample, with a correction that keeps them unbiased.

Perturbed log-probabilities :math:`\zeta = \log p + g` determine the assignment z; :math:`\tilde\zeta` is a second draw,
conditioned on determining the same z. For every function c,

.. math:: \nabla \ell(z) + (\ell(z) - c(\tilde\zeta)) \nabla \log p(z) + \nabla c(\zeta) - \nabla c(\tilde\zeta)

is unbiased. The closer c is to the loss, the smaller the variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_bool, check_int, check_number
from sparsum.estimators.abstract import AbstractEstimator, Estimate, Needs
from sparsum.estimators.baselines import in_dtype_of, perceptron, predict
from sparsum.estimators.noise import exponential
from sparsum.estimators.problem import Problem
from sparsum.estimators.relaxations import logits_of, one_hot, vectors_of
from sparsum.estimators.temperature import Anneal, temperature_of
from sparsum.structures import AbstractStructure


@dataclass(frozen=True)
class Coupled:
    """A sample with two sets of perturbed log-probabilities, as functions of a copy of the logits."""

    leaf: Tensor  # shape: (n_rows, n_choosers, n_choices), the copy
    log_prob: Tensor  # shape: (n_rows,), of the sample
    hard: Tensor  # shape: (n_rows, n_choosers, n_choices), the sample, one-hot
    perturbed: Tensor  # shape: (n_rows, 2, n_choosers, n_choices): unconditional, and given the sample

    @classmethod
    def draw(cls, problem: Problem, logits: Tensor) -> Coupled:
        """A sample for each row of a problem."""
        leaf = logits.detach().requires_grad_()
        log_probs = leaf.log_softmax(-1)
        free = log_probs - exponential(leaf.shape, leaf, problem.generator).log()
        hard = one_hot(free.detach())
        # Given the sample, its perturbed value is the largest and independent of it; the others are truncated below it.
        log_noise = exponential(leaf.shape, leaf, problem.generator).log()
        largest = (hard * log_noise).sum(-1, keepdim=True)
        given = -torch.where(hard > 0, largest, torch.logaddexp(log_noise - log_probs, largest))
        return cls(
            leaf,
            (hard * log_probs).sum((-1, -2)),
            hard,
            torch.stack([free, given], 1),
        )

    def gradient(self, values: Tensor, *, create_graph: bool = False) -> Tensor:
        """The gradient of the sum of values with respect to the logits."""
        return torch.autograd.grad(values.sum(), self.leaf, retain_graph=True, create_graph=create_graph)[0]


class Rebar(AbstractEstimator):
    r"""The score function with the loss of a relaxed sample as control variate: c is :math:`\eta` times the relaxed loss.

    The relaxed losses contribute only to the gradient of the scores; the parameters of the loss receive the gradient of
    the sample.

    >>> import sparsum as sp
    >>> estimator, weight = Rebar(), torch.randn(3, 5)
    >>> scores = torch.zeros(2, 3, requires_grad=True)
    >>> estimator(scores, sp.OneOf(3), lambda z, row: sp.embed(z, weight).square().sum(-1)).calls
    tensor([3, 3])

    Args:
        temperature: of the relaxed sample, a number larger than 0, or `Anneal`.
        scale: the initial value of :math:`\eta`.
        learn_scale: whether the scale is learned; its gradient is that of the variance of the estimate.

    References:
        - REBAR: low-variance, unbiased gradient estimates for discrete latent variable models (Tucker, Mnih, Maddison,
          Lawson & Sohl-Dickstein, 2017), equation 7, https://arxiv.org/abs/1703.07370
    """

    needs_relaxed_loss = True
    needs = Needs.FREE_CHOICES

    def __init__(self, temperature: float | Anneal = 0.5, *, scale: float = 1.0, learn_scale: bool = True) -> None:
        super().__init__()
        check_number("scale", scale)
        check_bool("learn_scale", learn_scale)
        self.temperature = temperature_of(temperature)
        self.scale = torch.nn.Parameter(torch.tensor(float(scale)), requires_grad=learn_scale)

    def n_calls(self, structure: AbstractStructure) -> int:
        """One sample and two relaxed ones."""
        return 3

    def estimate(self, problem: Problem) -> Estimate:
        """The loss of the sample and the control variate."""
        p, logits = problem.gibbs(), logits_of(problem)
        if not torch.is_grad_enabled():  # the control variate only affects the gradient
            losses = _vector_losses(problem, _first_sample(problem, logits))
            return Estimate(losses, losses, problem.calls(1), p)
        with torch.enable_grad():
            sample = Coupled.draw(problem, logits)
            vectors = vectors_of(problem, (sample.perturbed / self.temperature()).softmax(-1))
            point = vectors.detach().requires_grad_()
            relaxed = problem.relaxed_losses(point)
            (slope,) = torch.autograd.grad(relaxed.sum(), point)
            # With the slope held constant, the control variate is differentiated without calling the loss again.
            paths = (slope * vectors).flatten(2).sum(-1)
            score = sample.gradient(sample.log_prob)
            path = sample.gradient(paths[:, 0] - paths[:, 1])
        losses = _vector_losses(problem, sample.hard)
        plain = losses.detach()[:, None, None] * score
        control = relaxed[:, 1].detach()[:, None, None] * score - path
        gradient = plain - self.scale * control
        surrogate = losses + _along(gradient.detach(), logits)
        if self.training:
            self.temperature.advance()
            surrogate = surrogate + gradient.square().sum((-1, -2))
        return Estimate(surrogate, losses, problem.calls(3), p)


class Relax(AbstractEstimator):
    r"""The score function with a learned control variate: c is a network of the relaxed sample and the ``context``.

    The loss need not be differentiable and is called once. The network is trained to reduce the variance of the estimate:
    the surrogate includes the gradient, with respect to the network's parameters, of the squared norm of the gradient with
    respect to the scores.

    >>> import sparsum as sp
    >>> estimator, x = Relax(n_scores=3, context_size=7), torch.randn(4, 7)
    >>> scores = torch.zeros(4, 3, requires_grad=True)
    >>> estimator(scores, sp.OneOf(3), lambda z, row: z.float(), context=x).surrogate.mean().backward()
    >>> estimator.network[0].weight.grad.shape
    torch.Size([128, 10])

    Args:
        n_scores: the number of scores of one element: n for `OneOf` and `Bits`, n_groups * n_each for `Groups`.
        context_size: the number of features of the context, which is flattened; 0 for a network without context.
        hidden: the sizes of the hidden layers.
        temperature: of the relaxed sample, a number larger than 0, or `Anneal`.

    References:
        - Backpropagation through the void (Grathwohl, Choi, Wu, Roeder & Duvenaud, 2018), equation 8,
          https://arxiv.org/abs/1711.00123
    """

    needs = Needs.FREE_CHOICES

    def __init__(
        self,
        n_scores: int,
        context_size: int = 0,
        *,
        hidden: tuple[int, ...] = (128, 128),
        temperature: float | Anneal = 1.0,
    ) -> None:
        super().__init__()
        check_int("n_scores", n_scores, least=1)
        check_int("context_size", context_size, least=0)
        self.n_scores, self.context_size = n_scores, context_size
        self.temperature = temperature_of(temperature)
        self.network = perceptron(n_scores + context_size, hidden)

    def n_calls(self, structure: AbstractStructure) -> int:
        """One sample."""
        return 1

    def estimate(self, problem: Problem) -> Estimate:
        """The loss of the sample, and the control variate of the network."""
        p, logits = problem.gibbs(), logits_of(problem)
        if not torch.is_grad_enabled():
            losses = _atom_losses(problem, _first_sample(problem, logits))
            return Estimate(losses, losses, problem.calls(1), p)
        with torch.enable_grad():
            sample = Coupled.draw(problem, logits)
            vectors = vectors_of(problem, (sample.perturbed / self.temperature()).softmax(-1))
            free, given = (self._control(problem, vectors[:, i].flatten(1)) for i in range(2))
            score = sample.gradient(sample.log_prob)
            path = sample.gradient(free - given, create_graph=self.training)
        losses = _atom_losses(problem, sample.hard)
        gradient = (losses.detach() - given)[:, None, None] * score + path
        surrogate = losses + _along(gradient.detach(), logits)
        if self.training:
            self.temperature.advance()
            surrogate = surrogate + gradient.square().sum((-1, -2))
        return Estimate(surrogate, losses, problem.calls(1), p)

    def _control(self, problem: Problem, vectors: Tensor) -> Tensor:
        """The network's output for relaxed samples: (n_rows, n_scores) -> (n_rows,)."""
        if vectors.shape[1] != self.n_scores:
            raise ValueError(
                f"n_scores must be the number of scores of the structure, {vectors.shape[1]} for {problem.structure!r}, "
                f"got n_scores={self.n_scores}; create Relax(n_scores={vectors.shape[1]})"
            )
        inputs = [vectors]
        if self.context_size:
            inputs.append(problem.features(self.context_size))
        joined = torch.cat([in_dtype_of(self.network, tensor) for tensor in inputs], 1)
        return predict(self.network, joined, n_rows=len(vectors)).to(vectors.dtype)


def _first_sample(problem: Problem, logits: Tensor) -> Tensor:
    """The sample that `Coupled.draw` would draw, one-hot: (n_rows, n_choosers, n_choices)."""
    return one_hot(logits - exponential(logits.shape, logits, problem.generator).log())


def _vector_losses(problem: Problem, hard: Tensor) -> Tensor:
    """The losses of one-hot choices as vectors, for a loss of vectors: (n_rows,)."""
    return problem.losses(vectors_of(problem, hard.unsqueeze(1)).flatten(0, 1).to(problem.dtype), problem.row(1))


def _atom_losses(problem: Problem, hard: Tensor) -> Tensor:
    """The losses of one-hot choices as atoms: (n_rows,)."""
    return problem.losses(problem.structure.choices_to_atoms(hard.argmax(-1), problem.dtype), problem.row(1))


def _along(gradient: Tensor, logits: Tensor) -> Tensor:
    """A function of the logits with the given gradient: (n_rows,)."""
    return (gradient * logits).flatten(1).sum(-1)
