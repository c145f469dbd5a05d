"""Parts, moments and copies of a batch of packed distributions, against dense tensors and loops over the atoms."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

import sparsum as sp
from sparsum.segments import Segments, reading_sizes
from sparsum.structures.scores import as_tuple

LENGTHS = torch.tensor([3, 1, 2, 3])
STRUCTURES: dict[str, sp.AbstractStructure] = {
    "one of": sp.OneOf(5),
    "groups": sp.Groups(2, 3),
    "bits": sp.Bits(4),
    "budget": sp.Budget(4, 2),
    "subset": sp.Subset(4, 2),
    "tags": sp.Sequence(3, 2),
    "tags, lengths": sp.Sequence(3, 2, lengths=LENGTHS),
    "pairs": sp.Sequence(3, 2),
    "pairs, lengths": sp.Sequence(3, 2, lengths=LENGTHS),
    "tree": sp.Tree(3),
    "tree, lengths": sp.Tree(3, lengths=LENGTHS),
    "matching": sp.Matching(2, 3),
    "enumerated": sp.Enumerated(torch.tensor([[0.0, 2.0, -1.0], [1.5, 0.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)),
}
every_structure = pytest.mark.parametrize("name", STRUCTURES)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distribution(name: str, scale: float = 1.0) -> sp.SparseDistribution:
    """Four rows with several atoms."""
    structure = STRUCTURES[name]
    unary = scale * random(4, *structure.score_shape)
    return sp.topk_sparsemax((unary, scale * random(2, 2, 2)) if "pairs" in name else unary, structure, 4)


def vectors(q: sp.SparseDistribution) -> tuple[Tensor, ...]:
    """The vectors of all atoms, padding of shorter examples included."""
    if q.structure is None:
        return (q.atoms.double(),)
    return as_tuple(q.structure.select(q.row).vectors(q.atoms))


@every_structure
def test_the_variance_is_that_of_the_vectors(name: str) -> None:
    q = distribution(name)
    found = as_tuple(q.variance)
    assert isinstance(q.variance, tuple) == isinstance(q.mean, tuple) == ("pairs" in name)
    for part, mean, values in zip(found, as_tuple(q.mean), vectors(q), strict=True):
        assert part.shape == mean.shape
        for row in range(4):
            probs, each = q.probs[q.row == row], values[q.row == row].double()
            mean_square = torch.tensordot(probs, each.square(), 1)
            torch.testing.assert_close(part[row], mean_square - torch.tensordot(probs, each, 1).square())
    assert any((part > 0.01).any() for part in found)


def test_the_variance_without_a_structure() -> None:
    atoms, row = random(6, 2, 3), torch.tensor([0, 0, 0, 1, 2, 2])
    probs = torch.tensor([0.2, 0.3, 0.5, 1.0, 0.25, 0.75], dtype=torch.float64)
    q = sp.SparseDistribution(atoms, probs, row)
    wanted = torch.stack([torch.tensordot(probs[row == r], (atoms[row == r] - q.mean[r]).square(), 1) for r in range(3)])
    torch.testing.assert_close(q.variance, wanted)
    numbers = sp.SparseDistribution(torch.tensor([0, 4, 7]), torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1]))
    assert numbers.variance.tolist() == [4.0, 0.0]
    assert numbers.expand((3, 2)).variance.shape == (3, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_variance_is_never_negative_and_keeps_small_digits(dtype: torch.dtype) -> None:
    scores = torch.randn(200, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert (sp.sparsemap(scores, sp.OneOf(7)).variance >= 0).all()
    assert (sp.sparsemap(scores, sp.Bits(7)).variance >= 0).all()
    far = sp.SparseDistribution(
        torch.tensor([[100.0], [100.5]], dtype=dtype), torch.tensor([0.5, 0.5], dtype=dtype), torch.tensor([0, 0])
    )
    torch.testing.assert_close(far.variance, torch.tensor([[0.0625]], dtype=dtype))
    if dtype.itemsize >= 4:
        probs = torch.tensor([[1.0, 1e-9]], dtype=dtype)
        torch.testing.assert_close(sp.SparseDistribution.from_dense(probs).variance, torch.full((1, 2), 1e-9, dtype=dtype))


@every_structure
def test_derivatives_of_the_variance(name: str) -> None:
    """In probabilities of any sum, so that no term is left out."""
    q = distribution(name, scale=0.2)

    def variance(probs: Tensor) -> tuple[Tensor, ...]:
        return as_tuple(q._like(q.atoms, probs, q._segments).variance)

    assert gradcheck(variance, (q.probs.detach().requires_grad_(),))


MASK = torch.tensor([[True, False, True], [False, False, True]])
INDICES: list[Any] = [
    0,
    -1,
    slice(None),
    slice(1, None),
    slice(0, 0),
    slice(None, None, 2),
    ...,
    None,
    torch.tensor(1),
    torch.tensor([1, 0, 0, 1]),
    torch.tensor([[1, 0], [0, 0]]),
    [1, 0],
    MASK,
    MASK[:, 0],
    (1, 2),
    (slice(None), 1),
    (..., slice(1, 3)),
    (torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2])),
    (None, slice(None), torch.tensor([True, False, True])),
    (1, torch.tensor([2, 2])),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices_are_those_of_tensors(index: Any) -> None:
    probs = sp.sparsemax(random(2, 3, 6)).requires_grad_()
    is_exact = torch.arange(6).reshape(2, 3) % 2 == 0
    dense = sp.SparseDistribution.from_dense(probs)
    q = dense._like(dense.atoms, dense.probs, dense._segments, is_exact=is_exact)
    few = q[index]
    wanted = torch.stack([of_category[index] for of_category in probs.unbind(-1)], -1)
    assert few.batch_shape == is_exact[index].shape
    assert torch.equal(few.to_dense(), wanted)
    assert torch.equal(few.is_exact, is_exact[index])
    assert torch.equal(few.n_atoms_per_row, (wanted > 0).sum(-1))
    weight = random(*wanted.shape, seed=1)
    ours, theirs = (torch.autograd.grad((weight * p).sum(), probs)[0] for p in (few.to_dense(), wanted))
    torch.testing.assert_close(torch.where(probs > 0, ours, 0.0), torch.where(probs > 0, theirs, 0.0))


@every_structure
def test_indices_of_every_structure(name: str) -> None:
    q = distribution(name)
    index = torch.tensor([3, 1, 1])
    few = q[index]
    for ours, theirs in zip(as_tuple(few.mean), as_tuple(q.mean), strict=True):
        torch.testing.assert_close(ours, theirs[index])
    torch.testing.assert_close(few.entropy(), q.entropy()[index])
    assert torch.equal(few.mode, q.mode[index])
    for ours, theirs in zip(as_tuple(q[1:].variance), as_tuple(q.variance), strict=True):
        torch.testing.assert_close(ours, theirs[1:])


def test_indices_that_do_not_fit() -> None:
    q = sp.SparseDistribution.from_dense(torch.eye(3))
    for index in (3, -4, (0, 0), torch.tensor([3]), torch.ones(2) > 0):
        with pytest.raises(IndexError):
            q[index]
    with pytest.raises(IndexError):
        q[0][0]
    assert [single.mode.item() for single in q] == [0, 1, 2]
    with pytest.raises(TypeError, match="without a batch"):
        iter(q[0])


def test_indices_make_no_loop_over_rows() -> None:
    """A large batch takes as many calls of torch as a small one."""

    def n_calls(n_rows: int) -> int:
        q = sp.SparseDistribution.from_dense(torch.full((n_rows, 2), 0.5))
        with torch.profiler.profile() as profiler:
            q[::2].truncate(1)
        return sum(event.count for event in profiler.key_averages())

    assert n_calls(2000) == n_calls(20)


def test_truncation_keeps_the_most_probable() -> None:
    probs = torch.tensor(
        [[0.1, 0.4, 0.1, 0.4], [0.3, 0.2, 0.3, 0.2], [0.0, 1.0, 0.0, 0.0], [0.7, 0.1, 0.2, 0.0]], dtype=torch.float64
    )
    q = sp.SparseDistribution.from_dense(probs)
    dense: dict[int, list[list[float]]] = {1: [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]}
    dense[2] = [[0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.7 / 0.9, 0, 0.2 / 0.9, 0]]
    dense[3] = [[0.1 / 0.9, 0.4 / 0.9, 0, 0.4 / 0.9], [0.375, 0.25, 0.375, 0], [0, 1, 0, 0], [0.7, 0.1, 0.2, 0]]
    for k, wanted in dense.items():
        cut = q.truncate(k)
        torch.testing.assert_close(cut.to_dense(), torch.tensor(wanted, dtype=torch.float64))
        assert torch.equal(cut.is_exact, (probs > 0).sum(-1) <= k)
        assert cut.n_atoms_per_row.max() <= k
    assert torch.equal(q.truncate(4).to_dense(), probs)
    assert q.truncate(99).is_exact.all()
    assert torch.equal(q.truncate(3).probs[-3:], q.probs[-3:])  # a row that loses nothing, to the last digit


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_truncation_against_a_loop(k: int) -> None:
    for name in ("bits", "tree, lengths", "groups"):
        q = distribution(name)
        cut = q.truncate(k)
        for row in range(4):
            atoms, probs = q.atoms[q.row == row], q.probs[q.row == row]
            ranked = sorted((-prob, i) for i, prob in enumerate(probs.tolist()))
            best = sorted(i for _, i in ranked[:k])
            assert torch.equal(cut.atoms[cut.row == row], atoms[best])
            torch.testing.assert_close(cut.probs[cut.row == row], probs[best] / probs[best].sum())
        torch.testing.assert_close(cut.truncate(k).probs, cut.probs)


def test_derivatives_of_truncation() -> None:
    scores = (0.3 * random(3, 6)).requires_grad_()

    def objective(scores: Tensor) -> Tensor:
        q = sp.sparsemap(scores, sp.OneOf(6)).truncate(3)
        value: Tensor = q.expect(lambda z, row: (z + row).double().sin())
        return value + q.entropy()

    assert gradcheck(objective, (scores,))


def test_truncation_stays_inexact() -> None:
    q = sp.topk_sparsemax(torch.zeros(1, 4), sp.Bits(4), 4)
    assert not q.is_exact.any()
    assert not q.truncate(4).is_exact.any()
    assert sp.SparseDistribution.from_dense(torch.ones(0, 3)).truncate(2).batch_shape == (0,)


def test_bad_truncation_is_named() -> None:
    q = sp.SparseDistribution.from_dense(torch.eye(3))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        q.truncate(0)
    for wrong in (True, 1.5):
        with pytest.raises(TypeError, match=f"k must be an int, got {type(wrong).__name__}"):
            q.truncate(wrong)  # type: ignore[arg-type]


def test_other_dtypes() -> None:
    q = sp.sparsemap(random(3, 4), sp.Bits(4))
    single = q.to(torch.float32)
    assert single.probs.dtype == single.atoms.dtype == torch.float32
    assert single.structure == sp.Bits(4)
    torch.testing.assert_close(single.mean, q.mean.float())
    assert q.to(torch.float64) is q
    assert q.to("cpu") is q
    assert q.to(torch.float64, copy=True) is not q
    assert q.to(torch.zeros(1, dtype=torch.float16)).probs.dtype == torch.float16
    categories = sp.SparseDistribution.from_dense(torch.eye(2)).to(dtype=torch.float64)
    assert categories.probs.dtype == torch.float64
    assert categories.atoms.dtype == torch.int64
    with pytest.raises(TypeError, match=r"dtype must be floating-point, got torch\.int64"):
        q.to(torch.int64)
    scores = random(3, 4).requires_grad_()
    sp.sparsemap(scores, sp.OneOf(4)).to(torch.float32).entropy().sum().backward()
    assert scores.grad is not None
    assert scores.grad.any()
    mixed = sp.SparseDistribution(torch.ones(1, 2), torch.ones(1).double(), torch.tensor([0]))
    assert mixed.to("meta").atoms.dtype == torch.float32


@every_structure
def test_other_devices(name: str) -> None:
    """All tensors move, those of the structure too; the meta device stands for any other."""
    q = distribution(name).to("meta")
    lengths = getattr(q.structure, "lengths", None)
    for tensor in (q.atoms, q.probs, q.row, q.n_atoms_per_row, q.is_exact, *([] if lengths is None else [lengths])):
        assert tensor.device.type == "meta"
    assert {part.device.type for part in as_tuple(q.mean)} == {"meta"}
    assert q.entropy().device.type == "meta"


def test_small_probabilities_that_another_dtype_rounds_to_zero() -> None:
    q = sp.SparseDistribution.from_dense(torch.tensor([[1.0, 1e-9, 0.0]])).to(torch.float16)
    assert kl_divergence(q, Categorical(probs=torch.tensor([1.0, 0.0, 0.0]))).tolist() == [0.0]
    assert q.log_prob(torch.tensor([1])).tolist() == [-torch.inf]


def test_detached() -> None:
    q = sp.sparsemap(random(3, 4).requires_grad_(), sp.Bits(4))
    copy = q.detach()
    assert q.probs.requires_grad
    assert not copy.probs.requires_grad
    assert torch.equal(copy.probs, q.probs)
    assert copy.structure == q.structure
    assert copy.batch_shape == q.batch_shape
    assert torch.equal(copy.is_exact, q.is_exact)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_enumeration_is_that_of_categorical(shape: tuple[int, ...]) -> None:
    probs = sp.sparsemax(random(*shape, 4))
    q, dense = sp.SparseDistribution.from_dense(probs), Categorical(probs=probs)
    assert q.has_enumerate_support
    for expand in (True, False):
        assert torch.equal(q.enumerate_support(expand), dense.enumerate_support(expand))
    torch.testing.assert_close(q.log_prob(q.enumerate_support()).exp(), probs.movedim(-1, 0))
    assert q[...].has_enumerate_support


def test_no_enumeration_of_other_structures() -> None:
    q = distribution("bits")
    assert not q.has_enumerate_support
    assert not sp.SparseDistribution.has_enumerate_support
    with pytest.raises(NotImplementedError, match=r"requires a distribution over OneOf, .* Bits\(n=4.*q\.atoms"):
        q.enumerate_support()


USES: dict[str, Callable[[sp.SparseDistribution], sp.SparseDistribution]] = {
    "index": lambda q: q[torch.tensor([4, 0, 4])],
    "mask": lambda q: q[torch.tensor([True, False, True, True, False])],
    "truncation": lambda q: q.truncate(2),
    "both": lambda q: q[1:].truncate(2).expand((2, 4)),
}


@pytest.mark.parametrize(("name", "is_within"), list(itertools.product(USES, (True, False))))
def test_padding_changes_nothing(name: str, is_within: bool) -> None:
    """Of distributions whose packed atoms are padded, within the reader's reach and after it."""
    use, t = USES[name], random(5, 9).requires_grad_()

    def add_seven(sizes: Tensor, most: int) -> list[int]:
        n, *others = sizes.tolist()
        assert n <= most
        return [n + 7, *others]

    with reading_sizes(add_seven):
        padded = sp.sparsemap(t, sp.OneOf(9))
        used = use(padded) if is_within else None
    used = use(padded) if used is None else used
    plain = use(sp.sparsemap(t, sp.OneOf(9)))
    for measure in (lambda q: q.to_dense(), lambda q: q.variance, lambda q: q.entropy()):
        torch.testing.assert_close(measure(used), measure(plain))
        ours, theirs = (torch.autograd.grad(measure(q).square().sum(), t, retain_graph=True)[0] for q in (used, plain))
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(used.is_exact, plain.is_exact)


def test_a_distribution_on_the_meta_device_has_a_text() -> None:
    assert "device='meta'" in repr(sp.SparseDistribution.from_dense(torch.tensor([[0.5, 0.5]])).to("meta"))


@pytest.mark.parametrize("batch_shape", [(4,), (2, 2), ()])
def test_padded(batch_shape: tuple[int, ...]) -> None:
    """Tables keep all mass and its gradient, and what fills them are atoms of the same row."""
    scores = torch.randn((*batch_shape, 5), dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    q = sp.sparsemap(scores, sp.Bits(5))
    atoms, probs = q.to_padded()
    width = int(q.n_atoms_per_row.max())
    assert (atoms.shape, probs.shape) == ((*batch_shape, width, 5), (*batch_shape, width))
    assert torch.equal((probs > 0).sum(-1), q.n_atoms_per_row)
    assert (q.log_prob(atoms.movedim(-2, 0)) > -torch.inf).all()
    weight = torch.randn(5, dtype=torch.float64)
    ours, theirs = (atoms @ weight * probs).sum(-1), q.expect(lambda z: z @ weight)
    torch.testing.assert_close(ours, theirs)
    grads = [torch.autograd.grad(value.square().sum(), scores, retain_graph=True)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*grads)


def test_padded_batches_without_rows_and_tables() -> None:
    """An empty batch has a table without entries; rows of the same length stay as they are."""
    atoms, probs = sp.SparseDistribution.from_dense(torch.zeros(0, 3)).to_padded()
    assert (atoms.shape, probs.shape) == ((0, 0), (0, 0))
    parts = torch.arange(4), torch.tensor([0.5, 0.5, 1.0, 0.0])
    q = sp.SparseDistribution.from_segments(
        *parts, Segments.regular(2, 2, torch.device("cpu")), torch.Size([2]), sp.OneOf(4)
    )
    assert all(torch.equal(table, part.view(2, 2)) for table, part in zip(q.to_padded(), parts, strict=True))
