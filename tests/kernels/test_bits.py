"""The kernels for bits against their twins: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import sparsum as sp
from sparsum.segments import reading_sizes
from sparsum.solvers import Nested, Systematic
from tests.kernels.serving import serving
from tests.simplex.test_devices import n_waits

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")

Bitwise = sp.Bits | sp.Budget | sp.Subset


class Split(NamedTuple):
    atoms: Tensor
    probs: Tensor
    row: Tensor
    n_atoms_per_row: Tensor
    is_exact: Tensor
    gradient: Tensor


def split(t: Tensor, structure: Bitwise, solver: Nested | Systematic, *, is_served: bool) -> Split:
    leaf = t.to(DEVICE).requires_grad_()
    with serving(is_served):
        q = sp.sparsemap(leaf, structure, solver=solver)
        weight = torch.randn(len(q.probs), dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(q.probs)
        (gradient,) = torch.autograd.grad((q.probs * weight).sum(), leaf)
    return Split(q.atoms, q.probs.detach(), q.row, q.n_atoms_per_row, q.is_exact, gradient)


def check(t: Tensor, structure: Bitwise, solver: Nested | Systematic, *, has_gradient: bool = True) -> None:
    """The same atoms to the last bit, the same probabilities and, where there is one, gradient but for rounding."""
    here, there = (split(t, structure, solver, is_served=is_served) for is_served in (True, False))
    rounding = 1e-12 if t.dtype == torch.float64 else 4 * torch.finfo(t.dtype).eps
    for name, mine, wanted in zip(Split._fields, here, there, strict=True):
        assert mine.dtype == wanted.dtype
        tolerance = rounding if name in ("probs", "gradient") else 0.0
        if has_gradient or name != "gradient":
            torch.testing.assert_close(mine, wanted, rtol=0.0, atol=tolerance, msg=name)


Maker = Callable[[int], Bitwise]
PAIRS: list[tuple[str, Maker, Nested | Systematic]] = [
    ("nested", lambda n: sp.Bits(n), Nested()),
    ("unsymmetric", lambda n: sp.Bits(n, symmetric=False), Nested()),
    ("systematic", lambda n: sp.Bits(n), Systematic()),
    ("budget", lambda n: sp.Budget(n, n // 2), Systematic()),
    ("subset", lambda n: sp.Subset(n, n // 3), Systematic()),
]
pairs = pytest.mark.parametrize(("make", "solver"), [pair[1:] for pair in PAIRS], ids=[pair[0] for pair in PAIRS])


@pairs
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_splits_are_those_of_the_twin(make: Maker, solver: Nested | Systematic, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (1, 17, 100, 128) if dtype == torch.float32 else (5,):
        t = torch.randn(5, n, generator=generator)
        t[1], t[2], t[3, 0] = 0.0, t[2].round(), -torch.inf
        t[4] = torch.rand(n, generator=generator) * 0.01
        check(t.to(dtype), make(n), solver)


@pytest.mark.parametrize("structure", [sp.Bits(5), sp.Budget(5, 2), sp.Subset(5, 2)], ids=repr)
def test_marginals_near_0_and_1(structure: Bitwise) -> None:
    """The sum of the marginals is an integer up to rounding, and the last bit alone cannot make up for it."""
    generator = torch.Generator().manual_seed(0)
    vertices = torch.rand(2, 12, 5, generator=generator).argsort(-1).lt(2).double()
    size = 10 ** torch.linspace(-13, -10, 12, dtype=torch.float64).unsqueeze(-1)
    near = vertices.mean(0) + size * torch.randn(12, 5, dtype=torch.float64, generator=generator)
    check(2 * near - 1, structure, Systematic(), has_gradient=False)


entries = st.one_of(
    st.integers(-8, 8).map(lambda n: n / 4), st.floats(-2, 2), st.sampled_from([-1e30, 1e30, -1e-30, 1e-13, -1.0])
)


@settings(max_examples=15, phases=[Phase.generate])  # shrinking takes the interpreter minutes
@given(st.lists(entries, min_size=1, max_size=9), st.data())
def test_ties_and_extremes(values: list[float], data: st.DataObject) -> None:
    n = len(values)
    t = torch.tensor([values, values[::-1]], dtype=torch.float64)
    kind = data.draw(st.integers(0, 3))
    if kind == 0:
        check(t, sp.Bits(n, symmetric=data.draw(st.booleans())), Nested())
    count = data.draw(st.integers(0, n))
    structures: list[Bitwise] = [sp.Bits(n), sp.Budget(n, count), sp.Subset(n, count)]
    if kind > 0:
        # Where a count binds, ties are corners: the two sides of one have gradients of their own.
        check(t, structures[kind - 1], Systematic(), has_gradient=kind == 1)


@pytest.mark.parametrize("n", [1000 if DEVICE == "cuda" else 140])
def test_wide_rows(n: int) -> None:
    t = torch.randn(1, n, generator=torch.Generator().manual_seed(0))
    check(t, sp.Bits(n), Nested())
    check(t, sp.Bits(n), Systematic())
    check(t, sp.Budget(n, n // 3), Systematic())


def test_bad_rows_are_named() -> None:
    t = torch.zeros(3, 4, device=DEVICE)
    with serving(True):
        for value, words in ((torch.nan, "row 1 has a NaN"), (torch.inf, "row 1 has \\+inf")):
            t[1, 2] = value
            for structure in (sp.Bits(4), sp.Budget(4, 2), sp.Subset(4, 2)):
                with pytest.raises(ValueError, match=words):
                    sp.sparsemap(t, structure)
        t[1] = -torch.inf
        with pytest.raises(ValueError, match="row 1 forbids every assignment"):
            sp.sparsemap(t, sp.Subset(4, 2))


@pytest.mark.parametrize(
    ("structure", "solver"),
    [(sp.Bits(4), Nested()), (sp.Bits(4), Systematic()), (sp.Budget(4, 1), Systematic()), (sp.Subset(4, 2), Systematic())],
    ids=repr,
)
def test_derivatives_of_all_orders(structure: Bitwise, solver: Nested | Systematic) -> None:
    t = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(DEVICE).requires_grad_()
    matrix = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).to(DEVICE)

    def quadratic(t: Tensor) -> Tensor:
        q = sp.sparsemap(t, structure, solver=solver)
        values: Tensor = q.expect(lambda z, row: ((z @ matrix) * z).sum(-1))
        return values * q.probs.sum()

    def squares(t: Tensor) -> Tensor:
        return sp.sparsemap(t, structure, solver=solver).probs.square()

    with serving(True):
        assert gradcheck(quadratic, (t,), eps=1e-5, atol=1e-4)
        assert gradcheck(squares, (t,), eps=1e-5, atol=1e-4, check_batched_grad=True)
        assert gradgradcheck(squares, (t,), eps=1e-5, atol=1e-4)


@pairs
def test_forward_mode(make: Maker, solver: Nested | Systematic) -> None:
    t, tangent = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    tangents = []
    for is_served in (True, False):
        with serving(is_served), forward_ad.dual_level():
            q = sp.sparsemap(forward_ad.make_dual(t, tangent), make(6), solver=solver)
            tangents.append(forward_ad.unpack_dual(q.probs).tangent)
    torch.testing.assert_close(tangents[0], tangents[1])


@pytest.mark.parametrize("solver", [Nested(), Systematic()], ids=repr)
def test_padding_is_nothing(solver: Nested | Systematic) -> None:
    t = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    with serving(True):
        plain = sp.sparsemap(t, sp.Bits(6), solver=solver)
        n = len(plain.probs)
        with reading_sizes(lambda sizes, most: [n + 7, 0]):
            padded = sp.sparsemap(t, sp.Bits(6), solver=solver)
            mean = padded.mean
    assert padded.atoms.shape == (n + 7, 6)
    torch.testing.assert_close(mean, plain.mean)
    assert torch.equal(padded.atoms[:n], plain.atoms)
    assert not padded.atoms[n:].any()
    assert not padded.probs[n:].any()
    assert (padded.row[n:] == 2).all()
    ones = torch.arange(n + 7.0, device=DEVICE)
    (gradient,) = torch.autograd.grad((padded.probs * ones).sum(), t)
    (wanted,) = torch.autograd.grad((plain.probs * ones[:n]).sum(), t)
    assert torch.equal(gradient, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 2), (3, 8), (40, 10), (100, 17 if DEVICE == "cpu" else 64)])
def test_best_bits(n: int, k: int, dtype: torch.dtype) -> None:
    t = torch.randn(6, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t[1], t[2], t[3] = 0.0, t[2].round(), t[3].round()
    t[3, ::2] = -torch.inf
    t = t.to(DEVICE, dtype)
    results = []
    for is_served in (True, False):
        with serving(is_served):
            results.append(sp.Bits(n).topk(t, k))
    assert results[0].dtype == dtype
    assert torch.equal(*results) if DEVICE == "cuda" else same_scores(t, *results)
    assert torch.equal(results[0][0], results[1][0])
    with serving(True):
        assert sp.Bits(n).topk(t[:0], k).shape == (0, min(k, 2**n), n)
        assert sp.Bits(n).topk(t[0], k).shape == (min(k, 2**n), n)
        assert torch.equal(sp.Bits(n).topk(t, 1), sp.Bits(n).argmax(t).unsqueeze(1))


def same_scores(t: Tensor, mine: Tensor, wanted: Tensor) -> bool:
    """Whether the vectors are equally good and distinct: on the CPU the twin chooses among equals as torch.topk does."""
    scores = [torch.where(atoms > 0, t.unsqueeze(1), 0.0).double().sum(-1) for atoms in (mine, wanted)]
    n_distinct = [len({tuple(atom) for atom in row.tolist()}) for row in mine]
    return torch.equal(*scores) and n_distinct == [mine.shape[1]] * len(t)


@on_gpu
@pytest.mark.parametrize("solver", [Nested(), Systematic()], ids=repr)
def test_one_wait_and_the_same_bits_every_time(solver: Nested | Systematic) -> None:
    t = torch.randn(64, 128, device=DEVICE).requires_grad_()

    def step() -> tuple[Tensor, Tensor, Tensor]:
        q = sp.sparsemap(t, sp.Bits(128), solver=solver)
        return q.atoms, q.probs, torch.autograd.grad((q.probs * q.probs.detach()).sum(), t)[0]

    assert n_waits(step, DEVICE) == 1
    first = step()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(step(), first, strict=True))
    assert n_waits(lambda: sp.Bits(128).topk(t, 10), DEVICE) == 0


@on_gpu
def test_recorded_in_graphs() -> None:
    from sparsum.kernels import bits

    t = torch.randn(64, 128, device=DEVICE)
    n_atoms = len(sp.sparsemap(t, sp.Bits(128), solver=Nested()).probs) + 5

    def work() -> tuple[Tensor, ...]:
        words, gaps, slots, totals, counts, _ = bits.split(t, 0, True, False, False, False)
        ends = counts[0].cumsum(0)
        atoms, probs, row = bits.pack(words, gaps, slots, ends, n_atoms, t.dtype)
        best = sp.Bits(128).topk(t, 10)
        return (
            atoms,
            probs,
            row,
            bits.pull(probs, words, slots, totals, ends, kind=(True, False, False), dtype=t.dtype),
            best,
        )

    wanted = work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    graph.replay()
    assert all(torch.equal(mine, other) for mine, other in zip(results, wanted, strict=True))


def test_more_rows_than_are_counted_at_once() -> None:
    from sparsum.kernels import bits

    counts = torch.randint(0, 9, (3, 1200), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ends, sizes = bits.tally(counts)
    assert torch.equal(ends, counts[0].cumsum(0))
    assert sizes.tolist() == counts[:2].sum(1).tolist()
