"""The uniform distribution: draws against the list of all assignments, and the contract of torch's distributions."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import sparsum as sp
from sparsum.structures.uniform import sample_uniform

STRUCTURES: dict[str, sp.AbstractStructure] = {
    "one of": sp.OneOf(7),
    "one of one": sp.OneOf(1),
    "groups": sp.Groups(2, 3),
    "bits": sp.Bits(4),
    "budget": sp.Budget(5, 2),
    "budget of none": sp.Budget(3, 0),
    "budget of all": sp.Budget(3, 3),
    "subset": sp.Subset(5, 2),
    "subset of none": sp.Subset(3, 0),
    "tags": sp.Sequence(3, 2),
    "matching": sp.Matching(3),
    "permutation": sp.Permutation(3),
    "matching, more columns": sp.Matching(2, 4),
    "tree": sp.Tree(3),
    "tree of one": sp.Tree(1),
    "tree of two": sp.Tree(2),
    "tree, single root": sp.Tree(4, single_root=True),
    "tree of one, single root": sp.Tree(1, single_root=True),
    "projective tree": sp.ProjectiveTree(3),
    "projective tree, single root": sp.ProjectiveTree(4, single_root=True),
    "binary tree": sp.BinaryTree(4),
    "binary tree, labels": sp.BinaryTree(2, n_labels=2),
    "alignment": sp.Alignment(3, 5),
    "segmentation": sp.Segmentation(3, 2, 2),
    "knapsack": sp.Knapsack((3, 4, 2, 10, 0), 6),
    "diagram": sp.DecisionDiagram(4, [[1, -2], [2, 3]]),
    "paths": sp.Paths([(0, 1), (0, 2), (0, 2), (1, 2), (2, 3), (1, 3)]),
    "enumerated": sp.Enumerated(torch.eye(3)),
}
every_structure = pytest.mark.parametrize("name", STRUCTURES)


def all_atoms(structure: sp.AbstractStructure) -> Tensor:
    """All assignments, by the k best of scores that are all equal."""
    count = round(math.exp(structure.log_count()))
    atoms = structure.topk(torch.zeros(structure.score_shape), count + 5)
    assert len(atoms) == count
    return atoms


@every_structure
def test_all_assignments_are_drawn_equally_often(name: str, generator: torch.Generator) -> None:
    """By Pearson's statistic, whose mean is its number of degrees of freedom, and its variance twice that."""
    structure = STRUCTURES[name]
    atoms, n = all_atoms(structure), 40_000
    draws = sp.UniformOver(structure).sample((n,), generator=generator)
    assert draws.shape == (n, *atoms.shape[1:])
    assert draws.dtype == atoms.dtype
    is_equal = (draws.unsqueeze(1) == atoms).reshape(n, len(atoms), -1).all(-1)
    assert (is_equal.sum(-1) == 1).all()  # members, all of them
    counts, wanted = is_equal.double().sum(0), n / len(atoms)
    statistic, freedom = ((counts - wanted) ** 2 / wanted).sum(), len(atoms) - 1
    assert statistic <= freedom + 5 * math.sqrt(2 * freedom) + 1e-9
    again = sp.UniformOver(structure).sample((n,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)


def test_large_structures(generator: torch.Generator) -> None:
    """Sizes at which numbers of assignments overflow, with means that are known."""
    bits = sp.UniformOver(sp.Budget(2000, 900)).sample((50,), generator=generator)
    assert bits.sum(-1).max() <= 900
    assert bits.sum(-1).min() > 800  # nearly all such vectors have nearly as many ones as are allowed
    heads = sp.UniformOver(sp.Tree(300)).sample((20,), generator=generator)
    node, place = torch.arange(300), heads
    for _ in range(9):
        place = place.gather(1, place)
    assert (place.gather(1, place) == place).all()  # after so many steps everybody is at a root
    n_roots = (heads == node).sum(-1).double()
    assert abs(n_roots.mean() - 2) < 1.2  # 1 plus nearly a Poisson number of mean 1
    assert ((sp.UniformOver(sp.Tree(300, single_root=True)).sample((20,)) == node).sum(-1) == 1).all()
    columns = sp.UniformOver(sp.Matching(100, 200)).sample((3,), generator=generator)
    assert all(len(set(row)) == 100 for row in columns.tolist())


def test_batches() -> None:
    p = sp.UniformOver(sp.Bits(3)).expand((2, 1))
    assert p.batch_shape == (2, 1)
    assert p.event_shape == (3,)
    assert p.sample((4,)).shape == (4, 2, 1, 3)
    assert p.sample(4).shape == (4, 2, 1, 3)
    assert p.sample().shape == (2, 1, 3)
    assert p.expand((5, 2, 6)).batch_shape == (5, 2, 6)
    assert p.expand((-1, 3)).batch_shape == (2, 3)
    torch.testing.assert_close(p.entropy(), torch.full((2, 1), 3 * math.log(2)))
    torch.testing.assert_close(p.log_prob(torch.zeros(7, 2, 1, 3)), torch.full((7, 2, 1), -3 * math.log(2)))
    torch.testing.assert_close(p.log_prob(torch.zeros(3)), torch.full((2, 1), -3 * math.log(2)))
    assert p.log_prob(torch.zeros(3, dtype=torch.float64)).dtype == torch.float64
    assert repr(p) == "UniformOver(Bits(n=3, symmetric=True), batch_shape=(2, 1))"
    with pytest.raises(RuntimeError):
        p.expand((3, 1))
    with pytest.raises(ValueError, match=r"value must have shape \(\*sample_shape, 2, 1, 3\)"):
        p.log_prob(torch.zeros(4))


def test_divergences_broadcast() -> None:
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    p = sp.UniformOver(sp.Bits(4))
    for q in (sp.sparsemap(scores, sp.Bits(4)), sp.Gibbs(scores, sp.Bits(4))):
        wanted = 4 * math.log(2) - q.entropy()
        torch.testing.assert_close(kl_divergence(q, p), wanted)
        torch.testing.assert_close(kl_divergence(q, p.expand((2, 3))), wanted.expand(2, 3))
        torch.testing.assert_close(kl_divergence(q, p.expand((1,))), wanted)
        with pytest.raises(RuntimeError):
            kl_divergence(q, p.expand((2,)))


@pytest.mark.parametrize("name", ["bits", "one of", "tree"])
def test_draws_follow_torchs_defaults(name: str) -> None:
    p = sp.UniformOver(STRUCTURES[name])
    with torch.device("meta"):
        assert p.sample((2,)).device.type == "meta"
        assert p.sample((2,), generator=torch.Generator("cpu")).device.type == "cpu"
        assert p.log_prob(torch.zeros(2, *p.event_shape, device="cpu")).device.type == "cpu"
        assert p.expand((2,)).entropy().device.type == "meta"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert p.sample().dtype == (torch.float64 if name == "bits" else torch.int64)
    finally:
        torch.set_default_dtype(before)


@dataclasses.dataclass(frozen=True)
class Odd(sp.Bits):
    """Vectors with an odd number of ones: a kind of bits with fewer assignments."""

    def argmax(self, scores: Tensor) -> Tensor:
        best = super().argmax(scores)
        flip = torch.nn.functional.one_hot(scores.abs().argmin(-1), self.n).to(best.dtype)
        return torch.where(best.sum(-1, keepdim=True) % 2 == 0, (best - flip).abs(), best)

    def log_count(self) -> float:
        return (self.n - 1) * math.log(2)


def test_structures_of_ones_own() -> None:
    p = sp.UniformOver(Odd(3))
    with pytest.raises(TypeError, match=r"Odd\(n=3.* does not support uniform sampling: register a function for Odd"):
        p.sample()

    @sample_uniform.register
    def draw(
        structure: Odd, n: int, *, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        bits = torch.randint(2, (n, structure.n), generator=generator, device=device)
        bits[:, 0] = (bits[:, 1:].sum(-1) + 1) % 2
        return bits.to(dtype)

    draws = p.sample((100,))
    assert (draws.sum(-1) % 2 == 1).all()
    assert p.event_shape == (3,)


def test_bad_input_is_named() -> None:
    lengths = torch.tensor([1, 2])
    for structure in (sp.Tree(3, lengths=lengths), sp.Sequence(3, 2, lengths=lengths), sp.Matching(3, lengths=lengths)):
        with pytest.raises(ValueError, match="UniformOver does not support examples of different lengths"):
            sp.UniformOver(structure)
        with pytest.raises(ValueError, match="examples of different lengths"):
            sample_uniform(structure, 2, generator=None, device=torch.device("cpu"), dtype=torch.float32)
    with pytest.raises(TypeError, match="3 does not support uniform sampling"):
        sample_uniform(3, 2, generator=None, device=torch.device("cpu"), dtype=torch.float32)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        sp.UniformOver(sp.OneOf(3)).sample(generator=0)  # type: ignore[arg-type]
