"""The kernel of the active set method over bits: the same atoms as the loop, by the interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import kernels
from sparsum.solvers import ActiveSet, Solution, active_set
from sparsum.solvers.quadratic import Quadratic
from tests.kernels.serving import serving
from tests.simplex.test_devices import n_waits

kernel = pytest.importorskip("sparsum.kernels.active_set")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")

STRUCTURES = [
    sp.Bits(1),
    sp.Bits(5),
    sp.Bits(7, symmetric=False),
    sp.Budget(6, 2),
    sp.Budget(6, 5, symmetric=False),
    sp.Budget(4, 0),
    sp.Subset(6, 2),
    sp.Subset(5, 5),
]
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda t: t,
    "ties": lambda t: t.round(),
    "zero": lambda t: 0 * t[:1],
    "saturated": lambda t: 5 * t,
    "huge": lambda t: torch.cat([1e30 * t[:, :1], t[:, 1:]], -1),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def serve(monkeypatch: pytest.MonkeyPatch, is_served: bool) -> None:
    """Say whether this kernel alone takes over, on a CPU too."""
    operation = kernels.OPERATIONS["active_set_of_bits"]
    monkeypatch.setattr(active_set, "run_from_best", operation.kernel if is_served else operation.twin)


def assert_same(there: Solution, here: Solution) -> None:
    assert torch.equal(there.atoms.cpu(), here.atoms)
    assert torch.equal(there.segments.row.cpu(), here.segments.row)
    assert torch.equal(there.steps.cpu(), here.steps)
    assert torch.equal(there.is_solved.cpu(), here.is_solved)
    torch.testing.assert_close(there.probs.detach().cpu(), here.probs.detach(), atol=1e-9, rtol=0)


def check(monkeypatch: pytest.MonkeyPatch, scores: Tensor, structure: sp.AbstractStructure, **options: float) -> Solution:
    """Both ways have the same atoms, probabilities and gradients."""
    results, gradients = [], []
    for device, is_served in (("cpu", False), (DEVICE, True)):
        serve(monkeypatch, is_served)
        leaf = scores.to(device).requires_grad_()
        results.append(ActiveSet(**options).solve(structure.bind(leaf)))  # type: ignore[arg-type]
        probs = results[-1].probs
        weight = torch.arange(len(probs), dtype=torch.float64, device=device).cos()
        gradients.append(torch.autograd.grad((probs * weight).sum(), leaf)[0].cpu())
    assert_same(results[1], results[0])
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-7, rtol=1e-7)
    return results[1]


def mean_of(solution: Solution) -> Tensor:
    return solution.segments.sum(solution.probs.detach().unsqueeze(-1) * solution.atoms)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("name", SCORES)
def test_it_does_what_the_loop_does(monkeypatch: pytest.MonkeyPatch, structure: sp.Bits, name: str) -> None:
    solution = check(monkeypatch, SCORES[name](normal(2, structure.n, seed=structure.n)), structure)
    assert bool(solution.is_solved.all())


@pytest.mark.parametrize("structure", [sp.Bits(6), sp.Budget(6, 3), sp.Subset(6, 3)], ids=repr)
def test_forbidden_bits(monkeypatch: pytest.MonkeyPatch, structure: sp.Bits) -> None:
    scores = normal(3, 6)
    scores[0, [1, 4]] = scores[1, 0] = -torch.inf
    solution = check(monkeypatch, scores, structure)
    is_first = solution.segments.row == 0
    assert not solution.atoms[is_first][:, [1, 4]].any()


def test_rows_that_stop_are_finished_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "n_slots", lambda n: 4)
    solution = check(monkeypatch, normal(4, 7), sp.Bits(7))
    assert int(solution.segments.lengths.max()) > 4
    assert bool(solution.is_solved.all())


def test_scores_in_any_order_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, normal(6, 3).T, sp.Budget(6, 2))
    check(monkeypatch, normal(1, 5).expand(2, -1), sp.Bits(5))


@pytest.mark.parametrize("n", [15, 16, 31, 32])
def test_what_memory_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """For these sizes a tile of bits is taller than the line that it is read from."""
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **options: new_empty(*args, **options).fill_(9))
    for structure in (sp.Budget(n, n // 2), sp.Subset(n, n // 2)):
        assert check(monkeypatch, 1 + normal(2, n), structure).is_solved.all()


def test_launches_of_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MOST_BYTES", 2 * 8 * kernel.n_slots(4) ** 2)
    check(monkeypatch, normal(5, 4), sp.Bits(4))


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    few = check(monkeypatch, normal(3, 8), sp.Bits(8), max_steps=2, strict=False)
    assert not few.is_solved.all()
    assert few.outcome[0].startswith("out of steps")
    check(monkeypatch, normal(3, 8), sp.Budget(8, 3), tolerance=1e-2)


def test_rows_without_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, True)
    scores = normal(3, 4).to(DEVICE)
    scores[1, :3] = -torch.inf
    ActiveSet().solve(sp.Budget(4, 2).bind(scores))
    with pytest.raises(ValueError, match=r"row 1 forbids every assignment \(of 3\)"):
        ActiveSet().solve(sp.Subset(4, 2).bind(scores))
    scores[0, 0], scores[2, 1] = torch.nan, torch.inf
    with pytest.raises(ValueError, match=r"row 0 has a NaN, row 2 has \+inf"):
        ActiveSet().solve(sp.Bits(4).bind(scores))


def test_what_is_served() -> None:
    class MyBits(sp.Bits):
        """With an argmax that may be another."""

        def argmax(self, scores: Tensor) -> Tensor:
            return super().argmax(scores)

    def is_served(structure: sp.AbstractStructure, n: int, n_rows: int = 2) -> bool:
        scores = torch.zeros(n_rows, n)
        problem = Quadratic(structure, scores, scores, torch.ones(n), None)
        return kernels.OPERATIONS["active_set_of_bits"].serves(scores, structure.bind(scores), problem, 1e-9, 10)

    with serving(True):
        assert is_served(sp.Bits(3), 3)
        assert not is_served(MyBits(3), 3)
        assert not is_served(sp.OneOf(3), 3)
        assert not is_served(sp.Bits(3), 3, n_rows=0)
        assert not is_served(sp.Bits(5000), 5000)


@on_a_gpu
@pytest.mark.parametrize(
    "structure",
    [sp.Bits(32), sp.Bits(128), sp.Bits(200, symmetric=False), sp.Budget(128, 64), sp.Budget(100, 10), sp.Subset(128, 64)],
    ids=repr,
)
@pytest.mark.parametrize("name", [*SCORES, "uniform"])
def test_many_bits(monkeypatch: pytest.MonkeyPatch, structure: sp.Bits, name: str) -> None:
    """After hundreds of steps the order of a sum may decide which of the best distributions is found; the mean is unique."""
    scores = normal(16, structure.n)
    scores = SCORES[name](scores) if name in SCORES else scores.sigmoid()
    serve(monkeypatch, True)
    found = ActiveSet().solve(structure.bind(scores.cuda()))
    serve(monkeypatch, False)
    wanted = ActiveSet().solve(structure.bind(scores))
    assert bool(found.is_solved.all())
    torch.testing.assert_close(mean_of(found).cpu(), mean_of(wanted), atol=1e-7, rtol=0)
    assert (found.segments.lengths.cpu() == wanted.segments.lengths).double().mean() > 0.5


@on_a_gpu
def test_equal_rows_have_equal_atoms() -> None:
    scores = normal(1, 128).expand(300, -1).contiguous().cuda()
    solution = ActiveSet().solve(sp.Budget(128, 64).bind(scores))
    atoms, probs = solution.atoms.reshape(300, -1, 128), solution.probs.reshape(300, -1)
    assert bool((atoms == atoms[:1]).all())
    assert bool((probs == probs[:1]).all())


@on_a_gpu
@pytest.mark.parametrize("structure", [sp.Bits(128), sp.Budget(128, 64), sp.Subset(128, 64)], ids=repr)
def test_it_hardly_waits(structure: sp.Bits) -> None:
    scores = normal(64, 128).float().cuda().requires_grad_()
    assert n_waits(lambda: ActiveSet().solve(structure.bind(scores)).probs.sum().backward(), DEVICE) <= 5


@on_a_gpu
def test_other_structures_wait_now_and_then() -> None:
    bound = sp.Sequence(20, 10).bind(normal(64, 20, 10).cuda())
    assert int(ActiveSet().solve(bound).steps.max()) > 30
    assert n_waits(lambda: ActiveSet().solve(bound), DEVICE) <= 25
