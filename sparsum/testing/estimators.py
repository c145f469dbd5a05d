"""Check an estimator against the exact sum over all assignments."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.estimators import AbstractEstimator, Estimate
from sparsum.structures import AbstractStructure, Bits, Groups, OneOf, Scores
from sparsum.structures import Sequence as Tags
from sparsum.structures.scores import as_tuple, flatten, unflatten
from sparsum.testing.report import Report

#: A loss of packed assignments and their rows.
Loss = Callable[[Tensor, Tensor], Tensor]

#: The number of features of the context that `check_estimator` passes.
CONTEXT_SIZE = 2
#: Returns the context of a batch of a given shape.
Context = Callable[[Sequence[int]], Tensor]

#: The largest deviation of a mean, in standard errors; a single number exceeds it by chance once in a million.
_LIMIT = 5.0
_N_WARM = 20


def _same_floats(shape: Sequence[int]) -> Tensor:
    """The same features for every element: (*shape, CONTEXT_SIZE)."""
    return torch.linspace(-1, 1, CONTEXT_SIZE, device="cpu").expand(*shape, CONTEXT_SIZE)


@dataclass(frozen=True)
class _Toy:
    """A small problem: the same scores in every row, and a loss with separate weights per row."""

    structure: AbstractStructure
    flat: Tensor  # shape: (n_parts,)
    form: Scores  # scores of one row
    weights: Tensor  # shape: (3, n_parts)
    context: Context

    @classmethod
    def draw(cls, structure: AbstractStructure, generator: torch.Generator, device: torch.device, context: Context) -> _Toy:
        form: Scores = torch.zeros(1, *structure.score_shape, dtype=torch.float64, device=device)
        if isinstance(structure, Tags):
            form = (form, form.new_zeros(1, structure.length - 1, structure.n_tags, structure.n_tags))
        flat = flatten(form)[0]
        n_first = as_tuple(form)[0][0].numel()
        return cls(
            structure,
            torch.randn(flat.shape, dtype=torch.float64, generator=generator).to(device),
            form,
            torch.randn(3, n_first, dtype=torch.float64, generator=generator).to(device),
            context,
        )

    def leaves(self, n: int) -> tuple[Tensor, Tensor]:
        """Scores and weights of n rows as leaf tensors: (n, n_parts) and (n, 3, n_parts)."""
        flat, weights = self.flat.expand(n, -1).clone(), self.weights.expand(n, -1, -1).clone()
        return flat.requires_grad_(), weights.requires_grad_()

    def scores(self, flat: Tensor, batch_shape: Sequence[int] | None = None) -> Scores:
        """Scores in the form that the structure expects."""
        rows = unflatten(flat, like=self.form)
        shape = [len(flat)] if batch_shape is None else batch_shape
        shaped = tuple(tensor.reshape(*shape, *tensor.shape[1:]) for tensor in as_tuple(rows))
        return shaped if isinstance(rows, tuple) else shaped[0]

    def loss(self, weights: Tensor) -> Loss:
        """A loss of atoms or vectors that is neither linear nor quadratic, with a non-zero mean."""
        structure = self.structure.bind(self.form).structure

        def loss(z: Tensor, row: Tensor) -> Tensor:
            is_vector = z.is_floating_point() and tuple(z.shape[1:]) == tuple(self.structure.score_shape)
            vectors = z if is_vector else as_tuple(structure.vectors(z))[0]
            linear, squared, bent = (vectors.double().flatten(1).unsqueeze(1) * weights[row]).sum(-1).unbind(1)
            return 1 + linear + squared.square() + 2 * torch.tanh(2 * bent)

        return loss

    def members(self) -> Tensor:
        """All assignments: (count, *event_shape)."""
        return self.structure.topk(self.form, round(math.exp(self.structure.log_count())))[0]


def check_estimator(
    estimator: AbstractEstimator | Callable[[AbstractStructure], AbstractEstimator],
    *,
    structures: Sequence[AbstractStructure] = (OneOf(3), Bits(3), Groups(2, 3), Tags(3, 2)),
    draws: int = 20_000,
    seed: int = 0,
    device: str | torch.device = "cpu",
    context: Context | None = None,
) -> Report:
    """Check an estimator on small problems against the sum over all assignments.

    Checks that

    - shapes are correct, and the value of the surrogate is ``value``;
    - ``calls`` is the number of assignments passed to the loss, and matches `n_calls`;
    - baselines depend neither on their own sample nor on other rows;
    - the mean value and the mean gradient, with respect to the scores and to the weights of the loss, are those of the
      exact sum under the returned distribution, within standard errors, if the estimator declares to be unbiased, and the
      gradient is not if it declares to be biased;
    - state changes only in training, and is restored by ``load_state_dict``;
    - the same generator gives the same result;
    - it works without gradients;
    - a NaN raises an error that names its row;
    - unsupported structures raise a TypeError.

    >>> import sparsum as sp
    >>> report = check_estimator(sp.estimators.LeaveOneOut(2), draws=1000)
    >>> report.counts["unbiased"]
    16

    Args:
        estimator: the estimator, which is copied, or a function that returns one for a structure. The context has
            ``CONTEXT_SIZE`` features.
        structures: small structures to check on.
        draws: the number of draws to average.
        seed: the seed of the problems and draws.
        device: the device of the scores, to which the estimator is moved.
        context: called with the shape of a batch, returns its context, (*batch, *features); for estimators that read
            something other than ``CONTEXT_SIZE`` floats, for example the index of each example.

    Returns:
        The number of checks of each kind.

    Raises:
        AssertionError: at the first failed check, with the actual and the expected result.
        ValueError: if the estimator does not support any of the structures.
    """
    report, generator = Report(), torch.Generator().manual_seed(seed)
    shows_bias = []
    for structure in structures:
        toy = _Toy.draw(structure, generator, torch.device(device), _same_floats if context is None else context)
        made = copy.deepcopy(estimator) if isinstance(estimator, AbstractEstimator) else estimator(structure)
        made.to(device).train()
        if not made.needs.is_met(structure):
            _check_refusal(report, made, toy)
            continue
        _check_state(report, made, toy, seed)
        made.eval()
        _check_form(report, made, toy, seed)
        distance = _check_mean(report, made, toy, draws, seed)
        shows_bias.append(distance > _LIMIT)
    if not report.counts.get("form"):
        raise ValueError(f"structures must contain one that the estimator supports, got {structures}")
    if not made.is_unbiased:
        report.check("biased", any(shows_bias), "declared biased, but no bias was measured: set is_unbiased = True")
    return report


def _run(
    made: AbstractEstimator, toy: _Toy, flat: Tensor, loss: Loss, seed: int, shape: Sequence[int] | None = None
) -> Estimate:
    """Call the estimator once for all rows of ``flat``."""
    shape = [len(flat)] if shape is None else shape
    context = toy.context(shape).to(flat.device)
    generator = torch.Generator(flat.device).manual_seed(seed)
    return made(toy.scores(flat, shape), toy.structure, loss, context=context, generator=generator)


def _gradients(made: AbstractEstimator, toy: _Toy, n: int, seed: int) -> tuple[Estimate, Tensor]:
    """An estimate for n rows, and the gradient of each with respect to scores and weights: (n, n_numbers)."""
    flat, weights = toy.leaves(n)
    estimate = _run(made, toy, flat, toy.loss(weights), seed)
    found = torch.autograd.grad(estimate.surrogate.sum(), (flat, weights), materialize_grads=True)
    return estimate, torch.cat([tensor.flatten(1) for tensor in found], 1)


def _check_refusal(report: Report, made: AbstractEstimator, toy: _Toy) -> None:
    flat, weights = toy.leaves(1)
    try:
        _run(made, toy, flat, toy.loss(weights), 0)
    except TypeError:
        report.check("refusal", True, "")
    else:
        report.check("refusal", False, f"needs is not met by {toy.structure!r}, but a call did not raise a TypeError")


def _check_state(report: Report, made: AbstractEstimator, toy: _Toy, seed: int) -> None:
    """Train for a few steps; check that evaluation keeps the state, and that ``load_state_dict`` restores it."""
    fresh = copy.deepcopy(made)
    parameters = [parameter for parameter in made.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=1e-3) if parameters else None
    for step in range(_N_WARM):
        flat, weights = toy.leaves(16)
        _run(made, toy, flat, toy.loss(weights), seed + step).surrogate.mean().backward()
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()
    made.eval()
    before = copy.deepcopy(made.state_dict())
    first, gradient = _gradients(made, toy, 16, seed)
    _, again = _gradients(made, toy, 16, seed)
    report.check("generator", torch.equal(gradient, again), "the same generator state gave a different gradient")
    is_same = all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    report.check("state", is_same, "evaluation changed the state")
    fresh.load_state_dict(before)
    fresh.eval()
    restored, gradient_restored = _gradients(fresh, toy, 16, seed)
    is_same = torch.equal(restored.value, first.value) and torch.equal(gradient_restored, gradient)
    report.check("state", is_same, "the result differs after load_state_dict")


def _check_form(report: Report, made: AbstractEstimator, toy: _Toy, seed: int) -> None:
    """Check shapes, values and calls for several batch shapes, and the error for a NaN."""
    for shape in ((2, 3), (), (4,), (0,)):
        n = math.prod(shape)
        flat, weights = toy.leaves(n)
        seen = torch.zeros(n, dtype=torch.int64, device=flat.device)
        loss = toy.loss(weights)

        def counting(z: Tensor, row: Tensor, seen: Tensor = seen, loss: Loss = loss) -> Tensor:
            seen.index_add_(0, row, torch.ones_like(row))
            return loss(z, row)

        estimate = _run(made, toy, flat, counting, seed, shape)
        for name in ("surrogate", "value", "calls"):
            got = tuple(getattr(estimate, name).shape)
            report.check("form", got == shape, f"{name} must have the batch shape {shape}, got {got}")
        got = tuple(estimate.distribution.batch_shape)
        report.check("form", got == shape, f"the distribution must have the batch shape {shape}, got {got}")
        report.check("form", not estimate.value.requires_grad, "value must not require a gradient")
        report.check("form", torch.equal(estimate.surrogate, estimate.value), "surrogate must be equal to value")
        calls = estimate.calls.reshape(-1)
        report.check("calls", torch.equal(calls, seen), f"calls is {calls.tolist()}, but the loss got {seen.tolist()} atoms")
        declared = made.n_calls(toy.structure)
        is_right = declared is None or bool((calls == declared).all())
        report.check("calls", is_right, f"n_calls declares {declared}, but the loss got {seen.tolist()} atoms")
    with torch.no_grad():
        flat, weights = toy.leaves(2)
        without = _run(made, toy, flat, toy.loss(weights), seed).value
    with_gradient, _ = _gradients(made, toy, 2, seed)
    report.check("form", torch.equal(without, with_gradient.value), "the value differs under torch.no_grad()")
    _check_nan(report, made, toy)


def _check_nan(report: Report, made: AbstractEstimator, toy: _Toy) -> None:
    flat, weights = (tensor.detach() for tensor in toy.leaves(3))
    flat[1, 0] = torch.nan
    try:
        _run(made, toy, flat, toy.loss(weights), 0)
    except ValueError as error:
        report.check("nan", "row 1" in str(error), f"the error for a NaN in row 1 does not name the row: {error}")
    else:
        report.check("nan", False, "a NaN in the scores does not raise a ValueError")


def _check_mean(report: Report, made: AbstractEstimator, toy: _Toy, draws: int, seed: int) -> float:
    """Check the mean value and gradient; returns the largest deviation of the gradient in standard errors."""
    flat, weights = toy.leaves(1)
    members = toy.members()
    row = torch.zeros(len(members), dtype=torch.int64, device=members.device)
    q = _run(made, toy, flat, toy.loss(weights), seed).distribution
    probs = q.log_prob_of(members, row).exp()  # type: ignore[attr-defined]
    exact = (probs * toy.loss(weights)(members, row)).sum()
    found = torch.autograd.grad(exact, (flat, weights))
    wanted = torch.cat([tensor.flatten(1) for tensor in found], 1)
    estimate, gradients = _gradients(made, toy, draws if _is_random(made, toy, seed) else 2, seed)
    error = _standard_errors(gradients, wanted)
    if made.is_unbiased:
        _check_baseline(report, made, toy, seed)
        for i, name in enumerate(("scores", "weights")):
            part = slice(0, flat.shape[1]) if i == 0 else slice(flat.shape[1], None)
            off = error[part].max().item()
            message = f"{toy.structure!r}: the mean gradient of the {name} is {off:.1f} standard errors off the exact one"
            report.check("unbiased", off < _LIMIT, message)
        off = _standard_errors(estimate.value.unsqueeze(1), exact.detach().reshape(1, 1)).item()
        report.check("unbiased", off < _LIMIT, f"{toy.structure!r}: the mean value is {off:.1f} standard errors off")
        is_finite = bool(gradients.isfinite().all())
        report.check("unbiased", is_finite, f"{toy.structure!r}: a gradient is not finite")
    return error.max().item()


def _check_baseline(report: Report, made: AbstractEstimator, toy: _Toy, seed: int) -> None:
    """Check that the baseline of a row depends neither on its own sample nor on those of other rows."""
    _, gradient = _gradients(made, toy, 16, seed)
    training = copy.deepcopy(made).train()
    _, trained = _gradients(training, toy, 16, seed)
    report.check("baseline", torch.equal(trained, gradient), "the gradient differs in training: it sees its own update")
    flat, weights = toy.leaves(16)
    loss = toy.loss(weights)

    def other_loss(z: Tensor, row: Tensor) -> Tensor:
        return torch.where(row == 0, loss(z, row), 10 - loss(z, row))

    surrogate = _run(made, toy, flat, other_loss, seed).surrogate
    (other,) = torch.autograd.grad(surrogate.sum(), flat)
    is_same = torch.allclose(other[0], gradient[0, : flat.shape[1]], rtol=1e-9, atol=1e-12)
    report.check("baseline", is_same, "the gradient of a row depends on the losses of other rows")


def _is_random(made: AbstractEstimator, toy: _Toy, seed: int) -> bool:
    """Whether the estimator draws from its generator; comparing results is not enough, they may be equal by chance."""
    flat, weights = toy.leaves(1)
    generator = torch.Generator(flat.device).manual_seed(seed)
    before = generator.get_state()
    context = toy.context([1]).to(flat.device)
    made(toy.scores(flat), toy.structure, toy.loss(weights), context=context, generator=generator)
    return not torch.equal(before, generator.get_state())


def _standard_errors(
    draws: Tensor,  # shape: (n, m)
    wanted: Tensor,  # shape: (1, m)
) -> Tensor:
    """The deviation of the means in standard errors, which include rounding errors: (m,)."""
    spread = draws.std(0) / math.sqrt(len(draws))
    return (draws.mean(0) - wanted[0]).abs() / (spread + 1e-7 * (1 + wanted[0].abs()))
