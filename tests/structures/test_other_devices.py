"""Lengths may be on another device than scores and atoms: a list of ints is on the CPU, whatever the scores are on."""

from __future__ import annotations

import pytest
import torch

import sparsum as sp
from sparsum.segments import Segments

STRUCTURES: list[sp.AbstractStructure] = [
    sp.Sequence(4, 3, lengths=[4, 2]),
    sp.Matching(4, lengths=[4, 2]),
    sp.Tree(4, lengths=[4, 2]),
    sp.ProjectiveTree(4, lengths=[4, 2]),
    sp.Segmentation(4, 3, 2, lengths=[4, 2]),
    sp.Alignment(3, 4, lengths=[[3, 4], [2, 2]]),
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_lengths_follow_the_atoms(structure: sp.AbstractStructure) -> None:
    """All that is computed of atoms is on their device; on that of tensors without values, with lengths on the CPU."""
    atoms = structure.argmax(torch.zeros(2, *structure.score_shape))
    with torch.device("meta"):
        atoms = torch.zeros(5, *atoms.shape[1:], dtype=atoms.dtype)
        row, probs, scores = torch.zeros(5, dtype=torch.int64), torch.zeros(5), torch.zeros(2, *structure.score_shape)
        segments = Segments(row, torch.zeros(2, dtype=torch.int64))
    packed = structure.select(row)
    found = [
        packed.vectors(atoms),
        packed.contains(atoms),
        packed.parts(atoms),
        structure.vectors(atoms[:2]),
        structure.contains(atoms[:2]),
        structure.score(scores, atoms, row),
        structure.marginals(atoms, probs, segments),
    ]
    assert {tensor.device.type for tensor in found if tensor is not None} == {"meta"}
