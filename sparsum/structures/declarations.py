"""What structures declare of their assignments, and how a subclass loses what its parent declared."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsum.structures.scores import Scores, as_tuple

#: Describes the assignments, and must be defined again by a subclass that changes these.
_OPTIONAL = (
    "potentials",
    "choices_to_atoms",
    "atoms_to_choices",
    "choice_marginals",
    "has_free_choices",
    "log_partition",
    "sample",
    "bit_counts",
    "most_parts",
    "flow_lengths",
    "closest",
    "facets",
    "violated",
    "pull",
    "contains",
)
#: What determines the assignments of a structure and their scores, and what is reset if a subclass overrides it. The last
#: two are those of `AbstractSized`.
_FOLLOWERS = {
    "argmax": ("topk", "kbest", "log_count", *_OPTIONAL),
    "topk": ("kbest", *_OPTIONAL),
    "kbest": _OPTIONAL,
    "vectors": ("score", "marginals", "parts", "is_fixed_size", "group_size", "group_sizes", *_OPTIONAL),
    "score": _OPTIONAL,
    "log_count": _OPTIONAL,
    "_best": _OPTIONAL,
    "_best_k": _OPTIONAL,
}


class Potentials(NamedTuple):
    """Scores of a chain of choices: unary scores of each choice, and pairwise scores of neighbouring choices."""

    unary: Tensor  # shape: (n_rows, length, n_choices)
    pairwise: Tensor | None = None  # shape: (n_rows, length - 1, n_choices, n_choices)


class BitCounts(NamedTuple):
    """The bit vectors of a structure: all those with at most, or exactly, ``most`` ones."""

    most: int
    is_exact: bool = False
    is_symmetric: bool = True  # whether SparseMAP scores both states of a bit

    def is_free(self, n: int) -> bool:
        """Whether these are all vectors of n bits."""
        return self.most == n and not self.is_exact


def reset_stale(cls: type, root: type) -> None:
    """Reset what a class inherits from a structure with other assignments, and describes these, to that of the root."""
    parents = [kind for kind in cls.__mro__[1:] if issubclass(kind, root) and not inspect.isabstract(kind)]
    if not parents:
        return

    def is_inherited(name: str) -> bool:
        return getattr(cls, name, None) is getattr(parents[0], name, None)

    changed = [name for name in _FOLLOWERS if not is_inherited(name)]
    for name in {follower for each in changed for follower in _FOLLOWERS[each] if is_inherited(follower)}:
        setattr(cls, name, vars(root)[name])


def adjoint(function: Any, scores: Scores, cotangents: Potentials) -> Scores:
    """Apply the adjoint of an affine function of the scores to cotangents; differentiable in the cotangents."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in as_tuple(scores))
        outputs = function(leaves if isinstance(scores, tuple) else leaves[0])
        used = [
            (output, cotangent.to(output.dtype))
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if output is not None and cotangent is not None and output.requires_grad
        ]
        outputs, gradients = zip(*used, strict=True)
        found = torch.autograd.grad(outputs, leaves, gradients, create_graph=True, materialize_grads=True)
    if not torch.is_grad_enabled():
        found = tuple(tensor.detach() for tensor in found)
    return found if isinstance(scores, tuple) else found[0]
