"""The input of a diagnosis: a batch of scores and a loss, and the gradient of an estimator on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from sparsum.distribution.loss import Loss, check_loss
from sparsum.estimators import AbstractEstimator, Estimate
from sparsum.inference import require_structure
from sparsum.structures import AbstractStructure, Scores
from sparsum.structures.scores import as_tuple

#: Called with the name of the current task, the number of steps done, and the total number of steps.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Case:
    """A batch: leaf copies of the scores, and the other arguments of the estimators."""

    scores: Scores  # shape: (*batch, *score_shape), leaves
    structure: AbstractStructure
    loss: Loss
    context: Tensor | None  # shape: (*batch, *features)
    mask: Scores | None
    temperature: float | Tensor | None
    n_rows: int

    @classmethod
    def of(
        cls,
        scores: Scores,
        structure: AbstractStructure,
        loss: Loss,
        context: Tensor | None,
        mask: Scores | None,
        temperature: float | Tensor | None,
    ) -> Case:
        """Check the arguments that do not depend on the estimator, and copy the scores."""
        require_structure(structure)
        check_loss("loss", loss)
        bound = structure.bind(scores, mask=mask, temperature=temperature)
        if bound.n_rows == 0:
            raise ValueError(f"scores must have at least one example, got a batch of shape {tuple(bound.batch_shape)}")
        leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in as_tuple(scores))
        return cls(
            leaves if isinstance(scores, tuple) else leaves[0], structure, loss, context, mask, temperature, bound.n_rows
        )

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The score tensors as a tuple."""
        return as_tuple(self.scores)

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        return self.leaves[0].device

    def call(self, estimator: AbstractEstimator, generator: torch.Generator) -> Estimate:
        """The estimate for the batch."""
        return estimator(
            self.scores,
            self.structure,
            self.loss,
            context=self.context,
            mask=self.mask,
            temperature=self.temperature,
            generator=generator,
        )

    def step(self, estimator: AbstractEstimator, generator: torch.Generator) -> tuple[Estimate, Tensor, float]:
        """An estimate, its gradient with respect to the scores, (n_scores,), and the time of both in seconds.

        As in training, the gradients of the parameters of loss and estimator are computed as well, but not stored.
        """
        start = self._now()
        estimate = self.call(estimator, generator)
        total = estimate.surrogate.sum()
        seconds = self._now() - start
        inputs = [*self.leaves, *leaves_behind(total, apart_from=self.leaves)]
        start = self._now()
        # Tensors in the closure of the loss may have a graph, which the next draw needs again.
        gradients = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
        seconds += self._now() - start
        return estimate, self.flatten(gradients[: len(self.leaves)]), seconds

    def flatten(self, gradients: tuple[Tensor | None, ...]) -> Tensor:
        """Gradients of the scores as one vector in float64, on the CPU: (n_scores,)."""
        parts = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(self.leaves, gradients, strict=True)
        ]
        return torch.cat([part.detach().cpu().double().reshape(-1) for part in parts])

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def leaves_behind(value: Tensor, *, apart_from: tuple[Tensor, ...]) -> list[Tensor]:
    """The other leaves that ``backward`` on a value would reach; walks the graph without computing anything."""
    found: list[Tensor] = []
    seen, waiting = set[Node | None]({None}), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        assert node is not None
        leaf = getattr(node, "variable", None)  # the leaf of an AccumulateGrad node, the end of each path
        if isinstance(leaf, Tensor) and all(leaf is not other for other in apart_from):
            found.append(leaf)
        waiting.extend(parent for parent, _ in node.next_functions)
    return found
