"""The entry point: compare estimators on one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.diagnosis.case import Case, Progress
from sparsum.diagnosis.diagnosis import Diagnosis
from sparsum.diagnosis.exact import Exact
from sparsum.diagnosis.measure import measure
from sparsum.diagnosis.reference import reference_of
from sparsum.distribution.loss import Loss
from sparsum.estimators import AbstractEstimator
from sparsum.structures import AbstractStructure, Scores


def diagnose(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    loss: Loss,
    estimators: Mapping[str, AbstractEstimator] | Sequence[AbstractEstimator],
    *,
    context: Tensor | None = None,  # shape: (*batch, *features)
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
    draws: int = 100,
    warm_up: int = 100,
    max_terms: int = 2**22,
    reference_samples: int = 4096,
    seed: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    r"""Measure variance, bias and cost of estimators on a batch of your own model.

    With g the gradient of ``surrogate.sum()`` with respect to the scores, over draws of the same training step,

    .. math:: \mathrm{variance} = \frac{1}{n_{\mathrm{rows}}} \mathrm{tr} \, \mathrm{Cov}(g), \quad
        \mathrm{bias} = \frac{|\mathbb{E}[g] - \nabla_t \sum_z q(z) \ell(z)|}{|\nabla_t \sum_z q(z) \ell(z)|}

    where q is the distribution of the estimator: an exact sum over few assignments has neither variance nor bias. The
    contribution of the noise of the draws to the bias is subtracted, and the size of this noise is reported.

    To compare estimators that have different distributions, their mean gradients are also set beside a common reference,
    the gradient under the dense distribution p of `sparsum.Gibbs`:

    .. math:: \mathrm{distance} = \frac{|\mathbb{E}[g] - g_0|}{|g_0|}, \quad
        \mathrm{cosine} = \frac{\mathbb{E}[g]^\top g_0}{|\mathbb{E}[g]| \, |g_0|}, \quad
        g_0 = \nabla_t \sum_z p(z) \ell(z) .

    A sparse distribution has another expected loss to descend, so a distance from the dense gradient is not an error. And a
    small distance is not a promise: which method trains the best model, only training tells.

    >>> import sparsum as sp
    >>> scores, weight = torch.tensor([[1.0, 0.5, -1.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> def loss(z, row):
    ...     return (sp.embed(z, weight) - 0.5).square().sum(-1)
    >>> estimators = [sp.estimators.Sparse(), sp.estimators.ScoreFunction(), sp.estimators.Disarm()]
    >>> diagnosis = diagnose(scores, sp.OneOf(3), loss, estimators)
    >>> diagnosis["Sparse"].variance, diagnosis["Sparse"].calls
    (0.0, 2.0)
    >>> diagnosis["ScoreFunction"].is_biased
    False
    >>> print(diagnosis)  # doctest: +ELLIPSIS
    method         calls ...  variance  var x calls  var x ms    bias  noise  distance  noise  cosine
    Sparse             2 ...         0            0         0  0.000   0.000     1.339  0.000   0.994
    ScoreFunction      1 ...
    Disarm: TypeError: Disarm takes Bits, got OneOf(n=3); estimators for this structure: ...
    bias: of the mean gradient, from the exact one of the method's own distribution. It is 0 for exact
    ...

    The scores, the estimators and the gradients of all parameters are not changed. Modules in the loss keep their mode: for
    example, dropout in training mode adds noise to the variance and to the exact gradient.

    Args:
        scores: the scores of a typical batch, e.g. after some training.
        structure: the set of assignments.
        loss: the loss, as for estimators; relaxations pass float vectors to it, others atoms.
        estimators: a dict from names to estimators, or a list, whose estimators are named by class; see
            `sparsum.estimators`.
        context: the input of learned baselines.
        mask: True where a part is allowed; see `sparsum.AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        draws: the number of gradients to average, at least 2; exact sums, which do not vary, are drawn at most 10 times.
        warm_up: the number of calls, each with a step of Adam on its parameters, that train the copy of an estimator with
            state before measuring; 0 for estimators that were trained with the model.
        max_terms: the largest number of assignments times examples to sum, in chunks, for the exact gradient under a
            `sparsum.Gibbs` distribution; if there are more, the bias is unknown.
        reference_samples: the number of samples per example for the common reference, if there are more terms than that; at
            least 4, or 0 for no reference then. Its standard error is reported, and is part of the noise of the distance.
        seed: the seed of all randomness. Each estimator starts from it, so that the results do not depend on the others.
        progress: called with the name of the current task, the number of steps done, and the total number of steps.

    Returns:
        A table with one row per estimator: ``print`` or ``plot`` it. For an estimator that does not support the structure
        or the loss, the row holds the reason.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the scores do not match the structure, there are no estimators, or a number is out of range.
    """
    check_int("draws", draws, least=2)
    check_int("warm_up", warm_up, least=0)
    check_int("max_terms", max_terms, least=0)
    check_int("reference_samples", reference_samples, least=0)
    if 0 < reference_samples < 4:
        raise ValueError(f"reference_samples must be 0 or at least 4, got {reference_samples}")
    check_int("seed", seed)
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function or None, got {type(progress).__name__}")
    named = _named(estimators)
    case = Case.of(scores, structure, loss, context, mask, temperature)
    exact = Exact(case, max_terms, progress if progress is not None else lambda *_: None)
    with torch.enable_grad():
        reference = reference_of(case, exact, reference_samples, seed)
        rows = [
            measure(name, estimator, case, exact, reference, draws=draws, warm_up=warm_up, seed=seed)
            for name, estimator in named.items()
        ]
    return Diagnosis(tuple(rows), reference)


def _named(estimators: Any) -> dict[str, AbstractEstimator]:
    """Estimators by name; those of a list by class, with arguments and then a number if there are several of a class."""
    if not isinstance(estimators, Mapping | list | tuple):
        raise TypeError(f"estimators must be a list, or a dict with names as keys, got {type(estimators).__name__}")
    if not estimators:
        raise ValueError(f"estimators must contain at least one estimator, got {estimators!r}")
    if isinstance(estimators, Mapping):
        named = dict(estimators)
    else:
        named, n_seen = {}, Counter[str]()
        for estimator in estimators:
            kind = type(estimator).__name__
            if sum(type(other) is type(estimator) for other in estimators) > 1 and isinstance(estimator, AbstractEstimator):
                kind = f"{kind}({estimator.extra_repr()})"
            n_seen[kind] += 1
            named[kind if n_seen[kind] == 1 else f"{kind} {n_seen[kind]}"] = estimator
    for name, estimator in named.items():
        if not isinstance(estimator, AbstractEstimator):
            seen = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
            raise TypeError(f"estimators must contain estimators such as ScoreFunction(), got {seen} as {name!r}")
    return named
