"""Check a structure against brute force over all its assignments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.inference import sparsemap, topk_sparsemax
from sparsum.simplex import sparsemax
from sparsum.solvers import AbstractSolver
from sparsum.structures import AbstractStructure, BoundScores, Scores
from sparsum.structures.scores import as_tuple, flatten, unflatten
from sparsum.testing.gibbs import check_gibbs
from sparsum.testing.report import Report, index_of, shown

_MAX_MEMBERS = 5000
_N_ROWS = 5

RandomScores = Callable[[torch.Generator, int], Scores]


@dataclass(frozen=True)
class _Case:
    """A structure with all its members, for brute-force comparisons."""

    structure: AbstractStructure
    atoms: Tensor  # shape: (n_members, *event_shape)
    vectors: Tensor  # shape: (n_members, n_parts), float64

    def scores(self, flat: Tensor) -> Tensor:
        """The score of every member in every row: (n_rows, n_members); 0 * -inf is 0."""
        is_forbidden = flat == -torch.inf
        finite = flat.masked_fill(is_forbidden, 0.0) @ self.vectors.T
        return finite.masked_fill(is_forbidden.double() @ (self.vectors != 0).double().T > 0, -torch.inf)

    def index(self, atoms: Tensor) -> Tensor:
        """The index of each packed atom among the members, or -1: (n_atoms,)."""
        return index_of(atoms, self.atoms)


def check_structure(
    structure: AbstractStructure,
    *,
    members: Tensor | None = None,
    random_scores: RandomScores | None = None,
    solver: AbstractSolver | None = None,
    seed: int = 0,
) -> Report:
    """Check a small structure against brute force over all its assignments.

    Checks

    - the number of assignments;
    - `argmax` and `topk` for random and tied scores, for scores with forbidden parts, and for fully masked rows;
    - that results do not depend on the position of a row in the batch;
    - that `sparsemap` is optimal and its gradient is correct;
    - that `topk_sparsemax` is exact where ``is_exact`` says so;
    - what the structure declares: `is_fixed_size`, `group_size`, `contains` and `bit_counts`;
    - the log-partition function, marginals, entropy and samples of `sparsum.Gibbs`, if the structure defines `potentials`,
      or `log_partition` and `sample`.

    >>> import sparsum as sp
    >>> report = check_structure(sp.OneOf(4))
    >>> report.counts["argmax"]
    20

    Args:
        structure: a structure with at most 5000 assignments.
        members: all assignments as atoms, (n_members, *event_shape); by default those that `topk` finds, whose number must
            match `log_count`.
        random_scores: called with a generator and a number of rows; by default normal scores of shape
            (n_rows, *structure.score_shape).
        solver: the solver for `sparsemap`; by default that of the structure.
        seed: the seed of the scores.

    Returns:
        The number of checks of each kind.

    Raises:
        AssertionError: at the first failed check, with the actual and the expected result.
        TypeError: if ``structure`` is not an `AbstractStructure`.
        ValueError: if the structure has ``lengths``, or too many assignments.
    """
    report, generator = Report(), torch.Generator().manual_seed(seed)
    if not isinstance(structure, AbstractStructure):
        raise TypeError(f"structure must be an AbstractStructure, got {type(structure).__name__}")
    if getattr(structure, "lengths", None) is not None:
        raise ValueError("structure must not have lengths, which tie it to one batch: check it without lengths")
    draw = _in_double(random_scores if random_scores is not None else _normal_scores(structure))
    bound = structure.bind(draw(generator, _N_ROWS))
    _check_all_forbidden(report, bound, members)
    case = _enumerate(report, bound, members)
    _check_declared(report, case)
    for kind in ("random", "integer", "equal", "forbidding"):
        scores = _transform(kind, draw(generator, _N_ROWS), case, generator)
        _check_search(report, case, kind, scores)
    for _ in range(3):
        scores = draw(generator, _N_ROWS)
        _check_batch(report, case, scores)
        _check_sparsemap(report, case, scores, solver)
        _check_gradient(report, case, scores, solver, generator)
        _check_topk_sparsemax(report, case, scores)
    if structure.has_partition:
        for kind in ("random", "forbidding"):
            scores = _transform(kind, draw(generator, _N_ROWS), case, generator)
            check_gibbs(
                report, case.structure.bind(scores), case.atoms, case.vectors, case.scores(flatten(scores)), generator
            )
    return report


def _normal_scores(structure: AbstractStructure) -> RandomScores:
    shape = structure.score_shape
    return lambda generator, n: torch.randn(n, *shape, dtype=torch.float64, generator=generator, device="cpu")


def _in_double(draw: RandomScores) -> RandomScores:
    def converted(generator: torch.Generator, n: int) -> Scores:
        scores = draw(generator, n)
        return tuple(tensor.double() for tensor in scores) if isinstance(scores, tuple) else scores.double()

    return converted


def _check_all_forbidden(report: Report, bound: BoundScores, members: Tensor | None) -> None:
    """Check that `argmax` returns an assignment even for fully masked rows."""
    forbidding = bound.map(lambda tensor: torch.full_like(tensor, -torch.inf))
    try:
        atoms = forbidding.argmax()
    except Exception as error:  # whatever the user's code raises
        raise AssertionError(
            f"all forbidden: with all scores at -inf, argmax raises {type(error).__name__}: {error}; it must return any "
            "assignment of the structure"
        ) from error
    is_member = bound.structure.contains(atoms)
    if members is not None:
        is_member = is_member & (index_of(atoms, members.to(atoms)) >= 0)
    report.check(
        "all forbidden",
        bool(is_member.all()),
        f"with all scores at -inf, argmax returns atoms that are not assignments: {shown(atoms[~is_member])}; it must "
        "return any assignment of the structure",
    )


def _enumerate(report: Report, bound: BoundScores, members: Tensor | None) -> _Case:
    """Enumerate all members, and check their number and that they are distinct."""
    structure, log_count = bound.structure, bound.structure.log_count()
    first = bound.select(torch.zeros(1, dtype=torch.int64, device=bound.device))
    found = first.structure.topk(first.scores, _MAX_MEMBERS + 1)[0]
    if len(found) > _MAX_MEMBERS:
        raise ValueError(
            f"structure must have at most {_MAX_MEMBERS} assignments, got {structure!r}: check a smaller one of its class"
        )
    if math.isfinite(log_count):
        count = round(math.exp(log_count))
        report.check(
            "log_count",
            len(found) == count,
            f"topk finds {len(found)} assignments, but log_count says {count}; found: {shown(found)}",
        )
    vectors = flatten(structure.vectors(found)).double()
    n_different = len(torch.unique(found.flatten(1) if found.ndim > 1 else found, dim=0))
    report.check("distinct", n_different == len(found), f"{len(found)} atoms, but only {n_different} distinct ones")
    case = _Case(structure, found, vectors)
    if members is not None:
        is_known = index_of(found, members.to(found)) >= 0
        report.check("members", bool(is_known.all()), f"topk finds atoms that are not members: {shown(found[~is_known])}")
        is_found = case.index(members.to(found)) >= 0
        report.check("members", bool(is_found.all()), f"topk does not find the members {shown(members[~is_found])}")
    return case


def _check_declared(report: Report, case: _Case) -> None:
    """Check the declared properties of a structure on all its assignments."""
    structure, vectors, atoms = case.structure, case.vectors, case.atoms
    is_binary = ((vectors == 0) | (vectors == 1)).all(-1)
    if structure.is_fixed_size:
        is_right = is_binary & (vectors.sum(-1) == vectors[0].sum())
        message = f"vectors are not 0/1 with {vectors[0].sum():g} ones for the atoms {shown(atoms[~is_right])}"
        report.check("is_fixed_size", bool(is_right.all()), message)
    if structure.group_sizes is not None:
        tensors, sizes = as_tuple(structure.vectors(atoms)), structure.group_sizes
        groups = [tensor.flatten(1).unflatten(-1, (-1, size)) for tensor, size in zip(tensors, sizes, strict=True)]
        is_right = is_binary & torch.stack([(group.sum(-1) == 1).all(-1) for group in groups]).all(0)
        of = " or ".join(map(str, sizes))
        message = f"not exactly one part of each group of {of} for the atoms {shown(atoms[~is_right])}"
        report.check("group_size", bool(is_right.all()), message)
    is_member = structure.contains(atoms)
    report.check("contains", bool(is_member.all()), f"contains returns False for the assignments {shown(atoms[~is_member])}")
    if structure.has_partition and not structure.is_chain:
        is_defined = type(structure).contains is not AbstractStructure.contains
        report.check("contains", is_defined, "a structure that defines log_partition must define contains")
    if type(structure).contains is not AbstractStructure.contains:
        others = _others(case)
        is_wrong = structure.contains(others)
        message = f"contains accepts atoms that are not assignments: {shown(others[is_wrong])}"
        report.check("contains", not bool(is_wrong.any()), message)
    counts = structure.bit_counts()
    if counts is not None:
        size = vectors.sum(-1)
        is_right = is_binary & ((size == counts.most) if counts.is_exact else (size <= counts.most))
        message = f"{counts} does not hold for the atoms {shown(atoms[~is_right])}"
        report.check("bit_counts", bool(is_right.all()), message)


def _others(case: _Case) -> Tensor:
    """Atoms that are not assignments: with one entry taken from another atom, or raised by a number."""
    atoms = case.atoms.unsqueeze(-1) if case.atoms.ndim == 1 else case.atoms.flatten(1)
    found = []
    for position in range(atoms.shape[1]):
        for shift in range(1, 4):
            for values in (atoms.roll(shift, 0)[:, position], atoms[:, position] + shift * atoms.amax().clamp_min(1)):
                changed = atoms.clone()
                changed[:, position] = values
                found.append(changed)
    candidates = torch.cat(found).reshape(-1, *case.atoms.shape[1:])
    return candidates[case.index(candidates) < 0]


def _transform(kind: str, scores: Scores, case: _Case, generator: torch.Generator) -> Scores:
    """Turn random scores into scores of the given kind."""
    if kind == "random":
        return scores
    flat = flatten(scores)
    if kind == "integer":
        flat = flat.round()
    elif kind == "equal":
        flat = torch.zeros_like(flat)
    else:  # forbid a third of the parts, but keep one assignment allowed
        chosen = torch.randint(len(case.atoms), (len(flat),), generator=generator)
        is_forbidden = (torch.rand(flat.shape, generator=generator) < 1 / 3) & (case.vectors[chosen] == 0)
        flat = flat.masked_fill(is_forbidden, -torch.inf)
    return unflatten(flat, like=scores)


def _check_search(report: Report, case: _Case, kind: str, scores: Scores) -> None:
    """Check `argmax` and `topk` against all assignments."""
    flat = flatten(scores)
    truth = case.scores(flat).sort(-1, descending=True).values
    found = case.structure.argmax(scores)
    best = case.index(found)
    values = case.scores(flat)
    for row in range(len(flat)):
        is_best = best[row] >= 0 and _close(values[row, best[row]], truth[row, 0])
        message = f"{kind} scores, row {row}: argmax returns {shown(found[row : row + 1])}, which is not the best"
        report.check("argmax", bool(is_best), message)
    for k in sorted({1, 2, 3, len(case.atoms) // 2, len(case.atoms), len(case.atoms) + 2} - {0}):
        atoms = case.structure.topk(scores, k)
        n = min(k, len(case.atoms))
        report.check("topk", atoms.shape[1] <= n, f"{kind} scores: {atoms.shape[1]} atoms for k={k} of {len(case.atoms)}")
        for row in range(len(flat)):
            index = case.index(atoms[row])
            seen = torch.where(index < 0, torch.nan, values[row, index.clamp_min(0)])
            allowed = seen[seen > -torch.inf]
            wanted = truth[row, :n][truth[row, :n] > -torch.inf]
            is_right = _close(allowed, wanted) and len(index[seen > -torch.inf].unique()) == len(wanted)
            report.check("topk", is_right, f"{kind} scores, row {row}, k={k}: scores {allowed}, expected {wanted}")


def _check_batch(report: Report, case: _Case, scores: Scores) -> None:
    """Check that the atoms of a row do not depend on its position in the batch, and that empty batches work."""
    order = torch.arange(_N_ROWS - 1, -1, -1, device=case.vectors.device)
    structure = case.structure
    bound = structure.bind(scores)
    flipped = bound.select(order).scores
    is_same = torch.equal(structure.select(order).argmax(flipped), structure.argmax(scores)[order])
    report.check("batch", is_same, "argmax depends on the order of the batch")
    k = min(3, len(case.atoms))
    is_same = torch.equal(structure.select(order).topk(flipped, k), structure.topk(scores, k)[order])
    report.check("batch", is_same, "topk depends on the order of the batch")
    empty = bound.select(order[:0]).argmax()
    report.check("batch", len(empty) == 0, f"argmax returns {len(empty)} atoms for an empty batch")


def _check_sparsemap(report: Report, case: _Case, scores: Scores, solver: AbstractSolver | None) -> None:
    """Check that no assignment improves on the mean vector: the duality gap is 0."""
    q = sparsemap(scores, case.structure, solver=solver)
    index = case.index(q.atoms)
    report.check("sparsemap", bool((index >= 0).all()), f"atoms are not assignments: {shown(q.atoms[index < 0])}")
    report.check("sparsemap", bool((q.probs > 0).all()), "a probability is not positive")
    dense = torch.zeros(_N_ROWS, len(case.atoms), dtype=torch.float64)
    dense.index_put_((q.row, index), q.probs.double(), accumulate=True)
    report.check("sparsemap", _close(dense.sum(-1), torch.ones(_N_ROWS)), f"probabilities sum to {dense.sum(-1)}")
    mean = dense @ case.vectors
    is_mean = _close(flatten(q.mean).double(), mean)
    report.check("sparsemap", is_mean, "q.mean is not the mean of the vectors")
    linear, weights = case.structure.quadratic(flatten(scores).double())
    residual = linear - weights * mean
    gap = (residual @ case.vectors.T).amax(-1) - (residual * mean).sum(-1)
    report.check("sparsemap", bool((gap < 1e-7).all()), f"not optimal: duality gap {gap.max().item():.3g}")


def _check_gradient(
    report: Report, case: _Case, scores: Scores, solver: AbstractSolver | None, generator: torch.Generator
) -> None:
    """Check the derivative of a linear function of the mean in a random direction against a central difference."""
    flat = flatten(scores)
    direction, weight = (torch.randn(flat.shape, dtype=flat.dtype, generator=generator) for _ in range(2))
    _, curvature = case.structure.quadratic(flat)
    weight = weight * (curvature > 0)  # the mean of unregularised parts is not unique

    def value(step: float) -> Tensor:
        moved = unflatten(flat + step * direction, like=scores)
        return (flatten(sparsemap(moved, case.structure, solver=solver).mean) * weight).sum(-1)

    leaf = flat.clone().requires_grad_()
    mean = flatten(sparsemap(unflatten(leaf, like=scores), case.structure, solver=solver).mean)
    (gradient,) = torch.autograd.grad((mean * weight).sum(), leaf)
    step = 1e-6
    difference = (value(step) - value(-step)) / (2 * step)
    is_right = _close((gradient * direction).sum(-1), difference, tolerance=1e-4)
    report.check("gradient", is_right, f"got {(gradient * direction).sum(-1)}, by finite differences {difference}")


def _check_topk_sparsemax(report: Report, case: _Case, scores: Scores) -> None:
    """Check that the result is the sparsemax over all assignments where ``is_exact`` says so."""
    full = sparsemax(case.scores(flatten(scores)))
    for k in sorted({1, 2, 4, len(case.atoms)}):
        q = topk_sparsemax(scores, case.structure, k)
        dense = torch.zeros_like(full).index_put_((q.row, case.index(q.atoms)), q.probs.double(), accumulate=True)
        for row in range(_N_ROWS):
            is_right = not q.is_exact[row] or _close(dense[row], full[row])
            report.check("topk_sparsemax", bool(is_right), f"row {row}, k={k}: is_exact is True, but the result differs")
        is_countable = math.isfinite(case.structure.log_count())
        is_all = k < len(case.atoms) or not is_countable or bool(q.is_exact.all())
        report.check("topk_sparsemax", is_all, f"k={k} covers all assignments, but is_exact is {q.is_exact}")


def _close(seen: Tensor, wanted: Tensor, *, tolerance: float = 1e-8) -> bool:
    if seen.shape != wanted.shape:
        return False
    is_close = (seen == wanted) | ((seen - wanted).abs() <= tolerance * (1 + wanted.abs()))
    return bool(is_close.all())
