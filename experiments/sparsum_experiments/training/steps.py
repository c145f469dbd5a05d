"""Training steps: on a GPU captured as CUDA graphs, by `sparsum.capture`, where that is possible."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from lightning_fabric import Fabric
from torch import Tensor

import sparsum as sp
from sparsum_experiments.experiment import AbstractExperiment, Step


class Steps:
    """The steps of a training."""

    def __init__(self, experiment: AbstractExperiment, fabric: Fabric) -> None:
        self.experiment, self.fabric = experiment, fabric
        self.model, self.optimiser = fabric.setup(self.wrapped(experiment.model), experiment.optimiser())
        #: The source of all noise, the same object in all epochs, since captured steps refer to it.
        self.generator = torch.Generator(fabric.device)

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model as it is called in training."""
        return model

    def epoch(self) -> contextlib.AbstractContextManager[None]:
        """The context in which the steps of an epoch run."""
        # Waking torch's own thread for the backward pass of a GPU takes longer than launching it from this one.
        return torch.autograd.set_multithreading_enabled(False)

    def take(self, order: Tensor, i: int) -> Step:
        """Step i of an epoch."""
        return self.advance(self.experiment.batch(order, i, self.generator))

    def advance(self, batch: Mapping[str, Tensor], scale: float = 1.0) -> Step:
        """Change the weights by the gradient of a batch's loss, times ``scale``."""
        step: Step = self.model(batch, self.generator)
        self.optimiser.zero_grad(set_to_none=True)
        self.fabric.backward(step.objective if scale == 1 else step.objective * scale)
        self.optimiser.step()
        return Step(step.objective.detach(), step.terms, step.calls)


class CapturedSteps(Steps):
    """Steps on a GPU, captured once their sizes have been seen a few times."""

    def __init__(self, experiment: AbstractExperiment, fabric: Fabric) -> None:
        super().__init__(experiment, fabric)
        # Checking for rows without a distribution reads from the GPU; a NaN loss reveals them as well.
        experiment.estimator.validate_args = False
        self._step = sp.capture(super().take)

    @property
    def n_captures(self) -> int:
        """The number of captured steps."""
        return self._step.n_captures

    def take(self, order: Tensor, i: int) -> Step:
        """Step i of an epoch."""
        size = self.experiment.args.batch_size
        return self._step(order[..., i * size : (i + 1) * size], 0)


def steps_for(experiment: AbstractExperiment, fabric: Fabric) -> Steps:
    """Steps of an experiment, captured where that is possible."""
    is_captured = fabric.device.type == "cuda" and experiment.args.precision == "32" and experiment.is_capturable
    return (CapturedSteps if is_captured else Steps)(experiment, fabric)
