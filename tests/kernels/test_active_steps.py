"""The kernel for steps of the active set over any 0/1 vectors: it does what the loop does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import kernels
from sparsum.solvers import ActiveSet, Solution, active_set
from sparsum.structures.scores import Scores
from tests.kernels.serving import serving
from tests.simplex.test_devices import n_waits
from tests.solvers.adversarial import attack

kernel = pytest.importorskip("sparsum.kernels.active_steps")
# Said by the interpreter, where forbidden parts are compared.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")

STRUCTURES = [
    sp.Tree(1),
    sp.Tree(4),
    sp.Tree(4, single_root=True),
    sp.Tree(4, lengths=[4, 1, 3]),
    sp.Matching(4),
    sp.Matching(3, 5),
    sp.Groups(3, 3),
    sp.OneOf(4),
]
KINDS: dict[str, Callable[[Tensor], Tensor]] = {"normal": lambda t: t, "ties": lambda t: t.round(), "zero": lambda t: 0 * t}


@pytest.fixture(autouse=True)
def _rows_that_are_done_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from large batches."""
    monkeypatch.setattr("sparsum.solvers.active_steps.FEW_ROWS", 0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def check(monkeypatch: pytest.MonkeyPatch, structure: sp.AbstractStructure, scores: Scores, **options: float) -> Solution:
    """Both ways have the same atoms, probabilities and steps."""
    operation, solved = kernels.OPERATIONS["active_set_steps"], []
    for run in (operation.twin, operation.kernel):
        monkeypatch.setattr(active_set, "run_from", run)
        solved.append(ActiveSet(**options).solve(structure.bind(scores)))  # type: ignore[arg-type]
    wanted, found = solved
    assert torch.equal(found.atoms, wanted.atoms)
    assert torch.equal(found.segments.row, wanted.segments.row)
    assert torch.equal(found.steps, wanted.steps)
    assert torch.equal(found.is_solved, wanted.is_solved)
    torch.testing.assert_close(found.probs, wanted.probs, atol=1e-9, rtol=0)
    return found


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_it_does_what_the_loop_does(monkeypatch: pytest.MonkeyPatch, structure: sp.AbstractStructure, kind: str) -> None:
    found = check(monkeypatch, structure, KINDS[kind](normal(3, *structure.score_shape)))
    assert bool(found.is_solved.all())


def test_few_rows_that_are_left_are_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop, which would solve rows that are not, has nothing to do."""
    monkeypatch.setattr("sparsum.solvers.active_steps.FEW_ROWS", 5)
    monkeypatch.setattr(active_set, "run_again", lambda *_, **__: pytest.fail("rows are left to the loop"))
    scores = normal(12, 5, 5) / 4
    scores[:8] *= 16
    assert bool(check(monkeypatch, sp.Matching(5), scores).is_solved.all())


def test_weights_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transitions without a quadratic term: dependent atoms are left to the loop."""
    scores = normal(3, 3, 2), normal(3, 2, 2, 2, seed=1)
    for regularise in (False, True):
        structure = sp.Sequence(3, 2, regularise_transitions=regularise)
        assert bool(check(monkeypatch, structure, scores).is_solved.all())


def test_forbidden_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = normal(3, 4, 4, seed=5)
    scores[0, 1, 2], scores[1, 2], scores[2, :, 0] = -torch.inf, scores[1, 2] - 3, scores[2, :, 0] + 1
    check(monkeypatch, sp.Matching(4), scores)
    check(monkeypatch, sp.Tree(4), scores)


def test_rows_that_stop_are_finished_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "n_slots", lambda n_parts: 2)
    found = check(monkeypatch, sp.Matching(4), normal(4, 4, 4))
    assert int(found.segments.lengths.max()) > 2
    assert bool(found.is_solved.all())


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    few = check(monkeypatch, sp.Tree(4), normal(3, 4, 4), max_steps=2, strict=False)
    assert not few.is_solved.all()
    check(monkeypatch, sp.Tree(4), normal(3, 4, 4), tolerance=1e-2)


@on_a_gpu
@pytest.mark.parametrize("structure", [sp.Tree(10), sp.Tree(10, single_root=True), sp.Matching(10)], ids=repr)
def test_it_hardly_waits(structure: sp.AbstractStructure) -> None:
    scores = normal(64, *structure.score_shape).float().requires_grad_()
    assert n_waits(lambda: sp.sparsemap(scores, structure).probs.sum().backward(), DEVICE) <= 40


@pytest.mark.parametrize("name", ["trees with one root", "permutations", "tags and transitions"])
@pytest.mark.parametrize("kind", ["integers", "swamped"])
def test_adversarial_rows(name: str, kind: str) -> None:
    """With all kernels: certified rows are right, as on the CPU."""
    with serving(True):
        found = attack(name, kind, 2, 1, device=DEVICE)
    assert 0 <= found.gap <= 1.2e-9
    assert found.distance <= 5e-5
