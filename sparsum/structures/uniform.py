"""Uniform sampling of assignments."""

# ruff: noqa: ARG001 (the generic function has the arguments of the registered ones)
from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.alignment import Alignment
from sparsum.structures.binary_tree import BinaryTree
from sparsum.structures.bits import Bits, Budget, Subset
from sparsum.structures.decision_diagram import DecisionDiagram
from sparsum.structures.enumerated import Enumerated
from sparsum.structures.groups import Groups
from sparsum.structures.knapsack import Knapsack
from sparsum.structures.matching import Matching
from sparsum.structures.one_of import OneOf
from sparsum.structures.paths import Paths
from sparsum.structures.permutation import Permutation
from sparsum.structures.projective import ProjectiveTree
from sparsum.structures.segmentation import Segmentation
from sparsum.structures.sequence import Sequence
from sparsum.structures.tree import Tree

# Methods that determine the assignments of a structure.
_MEANING = ("argmax", "_best", "topk", "log_count")


@functools.singledispatch
def sample_uniform(
    structure: AbstractStructure,
    n: int,
    *,
    generator: torch.Generator | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Draw independent, uniformly distributed assignments of a structure: (n, *event_shape).

    Register a function for a custom structure:

    >>> import dataclasses, sparsum as sp
    >>> @dataclasses.dataclass(frozen=True)
    ... class AtMostOne(sp.AbstractStructure):  # of n bits
    ...     n: int
    ...     def argmax(self, scores):
    ...         raise NotImplementedError  # not needed here
    >>> @sample_uniform.register
    ... def _(structure: AtMostOne, n, *, generator, device, dtype):
    ...     chosen = torch.randint(structure.n + 1, (n,), generator=generator, device=device)
    ...     return torch.nn.functional.one_hot(chosen, structure.n + 1)[:, 1:].to(dtype)
    >>> generator = torch.Generator().manual_seed(0)
    >>> draws = sample_uniform(AtMostOne(3), 4000, generator=generator, device=torch.device("cpu"), dtype=torch.float32)
    >>> draws.shape, bool(((draws.mean(0) - 1 / 4).abs() < 0.03).all())
    (torch.Size([4000, 3]), True)

    Args:
        structure: the set of assignments.
        n: the number of samples.
        generator: the source of randomness, on the same device; torch's global generator if None.
        device: the device of the samples.
        dtype: the dtype of atoms that are bits; indices are int64.

    Raises:
        TypeError: if no function is registered for the structure.
        ValueError: if the structure has lengths.
    """
    _raise_unknown(structure)


def _raise_unknown(structure: object) -> NoReturn:
    name = type(structure).__name__
    raise TypeError(
        f"{structure!r} does not support uniform sampling: register a function for {name} with "
        "@sparsum.structures.uniform.sample_uniform.register"
    )


Draw = Callable[..., Tensor]


def _register(kind: type[AbstractStructure]) -> Callable[[Draw], Draw]:
    """Register a function for a type of structure, and for subclasses with the same assignments."""

    def register(draw: Draw) -> Draw:
        @sample_uniform.register(kind)
        def checked(structure: Any, n: int, **options: Any) -> Tensor:
            if any(getattr(type(structure), name, None) is not getattr(kind, name, None) for name in _MEANING):
                _raise_unknown(structure)
            if getattr(structure, "lengths", None) is not None:
                raise ValueError(
                    "sample_uniform does not support examples of different lengths, got a structure with lengths"
                )
            return draw(structure, n, **options)

        return draw

    return register


@_register(OneOf)
def _one_of(structure: OneOf, n: int, *, generator: torch.Generator | None, device: torch.device, **_: Any) -> Tensor:
    return torch.randint(structure.n, (n,), generator=generator, device=device)


@_register(Enumerated)
def _enumerated(
    structure: Enumerated, n: int, *, generator: torch.Generator | None, device: torch.device, **_: Any
) -> Tensor:
    return torch.randint(len(structure), (n,), generator=generator, device=device)


@_register(Groups)
@_register(Sequence)
def _independent(
    structure: Groups | Sequence, n: int, *, generator: torch.Generator | None, device: torch.device, **_: Any
) -> Tensor:
    length, n_choices = structure.score_shape
    return torch.randint(n_choices, (n, length), generator=generator, device=device)


@_register(Bits)
def _bits(structure: Bits, n: int, *, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randint(2, (n, structure.n), generator=generator, device=device).to(dtype)


@_register(Subset)
def _subset(
    structure: Subset, n: int, *, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    return (_permutations(n, structure.n, generator, device) < structure.k).to(dtype)


@_register(Budget)
def _budget(
    structure: Budget, n: int, *, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Draw the number of ones first, in proportion to the number of vectors with this many ones, then their positions."""
    ends = torch.tensor(_shares(structure.n, structure.most), dtype=torch.float64, device=device)
    uniform = torch.rand(n, 1, generator=generator, device=device, dtype=torch.float64)
    counts = torch.searchsorted(ends, uniform, right=True).clamp(max=structure.most)
    return (_permutations(n, structure.n, generator, device) < counts).to(dtype)


@functools.lru_cache(maxsize=64)
def _shares(n: int, most: int) -> tuple[float, ...]:
    """The fractions of vectors with at most 0, 1, ..., ``most`` ones, among those with at most ``most``."""
    totals = list(itertools.accumulate(math.comb(n, count) for count in range(most + 1)))
    return tuple(total / totals[-1] for total in totals)  # exact integers, rounded once by the division


@_register(Matching)
def _matching(structure: Matching, n: int, *, generator: torch.Generator | None, device: torch.device, **_: Any) -> Tensor:
    """Take the first columns of a random permutation."""
    n_rows, n_columns = structure.score_shape
    return _permutations(n, n_columns, generator, device)[:, :n_rows]


@_register(Permutation)
def _permutation(
    structure: Permutation, n: int, *, generator: torch.Generator | None, device: torch.device, **_: Any
) -> Tensor:
    return _permutations(n, structure.n, generator, device)


def _permutations(n: int, size: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Random permutations: (n, size). Ties, which would introduce a bias, occur once in 2**53 pairs."""
    return torch.rand(n, size, generator=generator, device=device, dtype=torch.float64).argsort(-1)


@_register(Alignment)
@_register(DecisionDiagram)
@_register(Knapsack)
@_register(Paths)
@_register(Segmentation)
@_register(ProjectiveTree)
@_register(BinaryTree)
def _summed(
    structure: Any, n: int, *, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Structures whose samples are exact: draw with scores that are all equal."""
    scores = torch.zeros(1, *structure.score_shape, dtype=torch.float64, device=device)
    atoms: Tensor = structure.sample(scores, n, generator).squeeze(1)
    return atoms.to(dtype) if atoms.is_floating_point() else atoms


@_register(Tree)
def _tree(structure: Tree, n: int, *, generator: torch.Generator | None, device: torch.device, **_: Any) -> Tensor:
    """Draw a tree over the words with any word as root, or over the words and one extra node, which becomes the root."""
    words = torch.arange(structure.n, device=device)
    if structure.single_root:
        return _rooted_trees(n, structure.n, generator, device)
    heads = _rooted_trees(n, structure.n + 1, generator, device)
    # Swap the labels of the root and the last node: this maps all trees with that root to those rooted at the last node.
    nodes = torch.arange(structure.n + 1, device=device)
    root, last = heads.eq(nodes).long().argmax(-1, keepdim=True), structure.n
    other_names = torch.where(nodes == root, last, torch.where(nodes == last, root, nodes))
    renamed = other_names.gather(1, heads.gather(1, other_names))[:, :-1]
    return torch.where(renamed == last, words, renamed)


def _rooted_trees(n: int, size: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Draw uniform rooted trees on labelled nodes: the head of each node, (n, size); the root is its own head.

    Uses Joyal's bijection between maps of the nodes to themselves and trees with two marked nodes, which may coincide. A map
    f permutes the nodes on its cycles, c_1 < ... < c_m. Their images in this order, f(c_1), ..., f(c_m), become the path
    between the marked nodes; the last node of the path is the root. All other nodes have their image as head.

    References:
        - Une théorie combinatoire des séries formelles (Joyal, 1981), https://doi.org/10.1016/0001-8708(81)90052-9
    """
    image = torch.randint(size, (n, size), generator=generator, device=device)
    after_many = image
    for _ in range(math.ceil(math.log2(size)) if size > 1 else 0):
        after_many = after_many.gather(1, after_many)
    # After at least ``size`` steps, every node has reached a cycle.
    is_cyclic = torch.zeros_like(image, dtype=torch.bool).scatter_(1, after_many, True)
    node = torch.arange(size, device=device).expand(n, size)
    from_here = torch.where(is_cyclic, node, size).flip(-1).cummin(-1).values.flip(-1)
    following = torch.cat([from_here[:, 1:], torch.full_like(from_here[:, :1], size)], 1)
    is_last = following == size
    next_image = torch.where(is_last, image, image.gather(1, following.clamp(max=size - 1)))
    # An extra column receives the entries that are not on a cycle.
    heads = torch.cat([image, image[:, :1]], 1)
    return heads.scatter(1, torch.where(is_cyclic, image, size), next_image)[:, :-1]
