"""Training steps: eager or, on a GPU, captured as CUDA graphs and replayed.

The models of the experiments are small. Launched one by one from Python, the kernels of a step mostly wait for their
launches; a captured step is a few launches. What makes capturing hard is that the support of a sparse distribution has a
different size at every step. It is read from the device in one place, `sparsum.segments.read_sizes`. So a step is captured
in pieces that end where a size is read, for a few sizes to which the packed support is padded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from sparsum.segments import reading_sizes
from sparsum_experiments.experiment import AbstractExperiment, Step

_LEAST_SIZE = 64
# How often a step of a size runs eagerly before it is captured: by then kernels are compiled and loaded, and the optimiser
# has its state. Sizes that hardly occur are not captured at all.
_N_EAGER = 2


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
        return contextlib.nullcontext()

    def take(self, order: Tensor, i: int) -> Step:
        """Step i of an epoch; its result is valid until the next step."""
        return self.advance(self.experiment.batch(order, i, self.generator))

    def advance(self, batch: Mapping[str, Tensor], scale: float = 1.0) -> Step:
        """Change the weights by the gradient of a batch's loss, times ``scale``."""
        step: Step = self.model(batch, self.generator)
        self.optimiser.zero_grad(set_to_none=True)
        # Waking torch's own thread for the backward pass of a GPU takes longer than launching it from this one.
        with torch.autograd.set_multithreading_enabled(False):
            self.fabric.backward(step.objective if scale == 1 else step.objective * scale)
        self.optimiser.step()
        return Step(step.objective.detach(), step.terms, step.calls)


def steps_for(experiment: AbstractExperiment, fabric: Fabric) -> Steps:
    """Steps of an experiment, captured where that is possible."""
    is_captured = fabric.device.type == "cuda" and experiment.args.precision == "32" and experiment.is_capturable
    return (CapturedSteps if is_captured else Steps)(experiment, fabric)


def padded_size(n: int, most: int) -> int:
    """The number of atoms, not more than ``most``, to which n of them are padded.

    These are 4, 5, 6 and 7 times powers of two: few to capture, and at most a quarter of the work is wasted.

    >>> [padded_size(n, 1000) for n in (3, 65, 100, 130, 990)]
    [64, 80, 112, 160, 1000]
    """
    unit = 1 << max(n - 1, 0).bit_length() >> 3
    rounded = -(-n // unit) * unit if n > _LEAST_SIZE else _LEAST_SIZE
    return min(rounded, most)


class _InvalidRows(Exception):
    """Rows without a distribution: the step runs eagerly, and its error names them."""


@dataclass(frozen=True)
class _Piece:
    """A part of a captured step, and the sizes that are read at its end: None at the end of the step."""

    graph: torch.cuda.CUDAGraph
    sizes: Tensor | None
    most: int = 0

    def run(self) -> int | None:
        """Replay it, and read the size to pad to."""
        self.graph.replay()
        return None if self.sizes is None else _read(self.sizes, self.most)[0]


def _read(sizes: Tensor, most: int) -> list[int]:
    n, *others = sizes.tolist()
    if any(others):
        raise _InvalidRows
    return [padded_size(n, most), *others]


@dataclass(frozen=True)
class _Captured:
    """A captured step for certain sizes."""

    pieces: tuple[_Piece, ...]
    sizes: tuple[int, ...]
    step: Step  # the tensors that it writes to

    def run(self) -> tuple[int, ...]:
        """Replay its pieces while the sizes are as captured; returns the sizes seen."""
        seen: list[int] = []
        for piece, expected in zip(self.pieces, (*self.sizes, None), strict=True):
            size = piece.run()
            if size is not None:
                seen.append(size)
            if size != expected:
                break
        return tuple(seen)


class CapturedSteps(Steps):
    """Steps on a GPU, captured once their sizes have been seen a few times.

    A step that turns out to have other sizes than the last one starts again with the capture for these. So nothing before
    the last read of a size may change state: only the generator is restored.
    """

    def __init__(self, experiment: AbstractExperiment, fabric: Fabric) -> None:
        super().__init__(experiment, fabric)
        # Checking for rows without a distribution synchronizes; a NaN loss reveals them as well.
        experiment.estimator.validate_args = False
        self.stream = torch.cuda.Stream(fabric.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._chosen: Tensor | None = None  # where captured steps find the examples of their batch
        self._captured: list[_Captured] = []
        self._last: _Captured | None = None
        self._n_seen: Counter[tuple[int, ...]] = Counter()

    @contextlib.contextmanager
    def epoch(self) -> Iterator[None]:
        """Steps have a stream of their own, since the default one cannot be captured."""
        torch.cuda.synchronize(self.fabric.device)
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.synchronize(self.fabric.device)

    def take(self, order: Tensor, i: int) -> Step:
        """Step i of an epoch; its result is valid until the next step."""
        size = self.experiment.args.batch_size
        chosen = order[..., i * size : (i + 1) * size]
        if self._chosen is None:
            self._chosen = chosen.clone()
        self._chosen.copy_(chosen)
        noise = self.generator.get_state()
        try:
            return self._repeat(noise)
        except _InvalidRows:
            self.generator.set_state(noise)
            return super().take(self._chosen, 0)

    def _repeat(self, noise: Tensor) -> Step:
        """Replay the capture for this step's sizes, or run the step and perhaps capture it."""
        candidate, seen = self._last, tuple[int, ...]()
        while candidate is not None:
            seen = candidate.run()
            if seen == candidate.sizes:
                self._last = candidate
                return candidate.step
            self.generator.set_state(noise)
            candidate = next((one for one in self._captured if one.sizes[: len(seen)] == seen), None)
        if self._n_seen[seen] < _N_EAGER:
            return self._eager()
        return self._capture()

    def _eager(self) -> Step:
        """The eager step, padded in the same way."""
        assert self._chosen is not None
        seen: list[int] = []

        def read(sizes: Tensor, most: int) -> list[int]:
            values = _read(sizes, most)
            seen.append(values[0])
            return values

        with reading_sizes(read):
            step = super().take(self._chosen, 0)
        for n in range(len(seen) + 1):
            self._n_seen[tuple(seen[:n])] += 1
        return step

    def _capture(self) -> Step:
        assert self._chosen is not None
        torch.cuda.synchronize(self.fabric.device)
        capture = _Capture(self.generator, self._pool)
        with reading_sizes(capture.read), capture:
            step = super().take(self._chosen, 0)
        self._last = _Captured(tuple(capture.pieces), tuple(capture.sizes), step)
        self._captured.append(self._last)
        return step


class _Capture:
    """Captures a step in pieces, and runs each piece when it is captured."""

    def __init__(self, generator: torch.Generator, pool: Any) -> None:
        self.generator, self.pool = generator, pool
        self.pieces: list[_Piece] = []
        self.sizes: list[int] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def __enter__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(self.generator)
        # Other threads, such as TensorBoard's writer, are not restricted meanwhile.
        self._graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end(None, 0)
        elif self._graph is not None:
            with contextlib.suppress(RuntimeError):  # the error may have ended the capture already
                self._graph.capture_end()

    def read(self, sizes: Tensor, most: int) -> list[int]:
        """End a piece, run it, and begin the next one with its sizes known."""
        self._end(sizes, most)
        values = _read(sizes, most)
        self.sizes.append(values[0])
        self.__enter__()
        return values

    def _end(self, sizes: Tensor | None, most: int) -> None:
        assert self._graph is not None
        graph, self._graph = self._graph, None
        graph.capture_end()
        graph.replay()
        self.pieces.append(_Piece(graph, sizes, most))
