"""A step as CUDA graphs: pieces that end where the host reads a size."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsum.captured.trees import map_leaves
from sparsum.captured.watch import NotYet, Stop, Undo, Watch
from sparsum.segments import reading_sizes

#: In place of a size: the step has to do something else, such as naming rows without a distribution.
IRREGULAR = -1
_LEAST_SIZE = 64
# The largest number of numbers that are read at a time.
_MOST_NUMBERS = 16


class Irregular(Stop):
    """A number was read that is not a size and not 0."""


def padded_size(n: int, most: int) -> int:
    """The number of atoms, not more than ``most``, to which n of them are padded.

    These are 4, 5, 6 and 7 times powers of two: few to capture, and at most a quarter of the work is wasted.

    >>> [padded_size(n, 1000) for n in (3, 65, 100, 130, 990)]
    [64, 80, 112, 160, 1000]
    """
    unit = 1 << max(n - 1, 0).bit_length() >> 3
    rounded = -(-n // unit) * unit if n > _LEAST_SIZE else _LEAST_SIZE
    return min(rounded, most)


class Device:
    """Where the graphs of a step are captured and replayed: a stream of its own, and memory that they share.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._holder: torch.cuda.CUDAGraph | None = None
        #: The generators that the step draws from: the global one and those that were seen.
        self.generators = [torch.cuda.default_generators[device.index]]
        # In pinned memory, to which a graph can copy.
        self._numbers = torch.zeros(_MOST_NUMBERS, dtype=torch.int64, pin_memory=True)
        self._views = [self._numbers[:n] for n in range(_MOST_NUMBERS + 1)]
        self._before, self._after = torch.cuda.Event(), torch.cuda.Event()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Work on the stream: after what was queued on the current one, and before what will be."""
        current = torch.cuda.current_stream(self.device)
        self._before.record(current)
        self.stream.wait_event(self._before)
        # Waking torch's own thread for the backward pass takes longer than launching it from this one.
        try:
            with torch.cuda.stream(self.stream), torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            self._after.record(self.stream)
            current.wait_event(self._after)

    def noise(self) -> list[Tensor]:
        """The states of the generators."""
        return [generator.get_state() for generator in self.generators]

    def set_noise(self, states: list[Tensor]) -> None:
        """Set the states of the generators; those that were not known then have not been used since."""
        for generator, state in zip(self.generators, states, strict=False):
            generator.set_state(state)

    def put(self, numbers: Tensor) -> None:
        """Copy numbers to the host, asynchronously."""
        self._views[len(numbers)].copy_(numbers, non_blocking=True)

    def read(self, n: int) -> list[int]:
        """The n numbers that were put last."""
        self.stream.synchronize()
        numbers: list[int] = self._views[n].tolist()
        return numbers

    def pool(self) -> Any:
        """The memory that graphs share.

        A graph of one operation holds it: torch cannot capture into memory in which there are tensors but no graph, as is
        left when an attempt fails.
        """
        if self._holder is None:
            self._holder = self._capture_one(self._pool)
        return self._pool

    def release(self) -> None:
        """Give back the memory, once all graphs are freed; others will have memory of their own."""
        if self._holder is not None:
            self._holder.reset()
        self._pool, self._holder = torch.cuda.graph_pool_handle(), None

    def new_graph(self) -> torch.cuda.CUDAGraph:
        """An empty graph that knows the generators."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators[1:]:  # the global one is always known
            graph.register_generator_state(generator)
        return graph

    def recover(self) -> None:
        """Make torch's allocator and generators forget a capture that CUDA ended."""
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
        # Graphs that were captured before go on to use the memory, and keep it.
        self.release()
        # Generators believe that they are captured until the next capture ends.
        self._capture_one(self._pool).reset()
        self.release()

    def _capture_one(self, pool: Any) -> torch.cuda.CUDAGraph:
        """A graph of one operation."""
        number = torch.zeros((), device=self.device)
        torch.cuda.synchronize(self.device)
        graph = self.new_graph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        number.add_(1)
        end_capture(graph)
        return graph


def end_capture(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture, which may have captured nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        graph.capture_end()


@dataclass(frozen=True)
class Piece:
    """A part of a captured step, and how many numbers are read at its end: 0 at the end of the step."""

    graph: torch.cuda.CUDAGraph
    n_numbers: int
    most: int
    undo: Undo


@dataclass(frozen=True)
class Captured:
    """A captured step for certain sizes."""

    device: Device
    pieces: tuple[Piece, ...]
    sizes: tuple[int, ...]
    result: Any  # the tensors that it writes to
    existing: tuple[torch.UntypedStorage, ...]  # memory that the graphs refer to

    def run(self) -> tuple[int, ...]:
        """Replay its pieces while the sizes are as captured; returns the sizes seen."""
        seen: list[int] = []
        for piece, expected in zip(self.pieces, (*self.sizes, None), strict=True):
            piece.graph.replay()
            if expected is None:
                break
            size, *others = self.device.read(piece.n_numbers)
            seen.append(IRREGULAR if any(others) else padded_size(size, piece.most))
            if seen[-1] != expected:
                break
        return tuple(seen)

    def undo(self, n: int) -> None:
        """Undo the changes of the first n pieces."""
        for piece in reversed(self.pieces[:n]):
            piece.undo.apply()

    def free(self) -> None:
        """Give back the memory of the graphs."""
        for piece in self.pieces:
            piece.graph.reset()


class Recording:
    """Captures a step in pieces, and runs each piece when it is captured.

    Args:
        device: where.
        n_reads: how many sizes the step is expected to read. Changes before the last read are kept, to be undone.
    """

    def __init__(self, device: Device, n_reads: int) -> None:
        self.device, self.n_reads = device, n_reads
        self.pieces: list[Piece] = []
        self.sizes: list[int] = []
        self._watch = Watch(None, device.generators)
        self._watch.is_resting = True
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, step: Callable[[], Any]) -> Captured:
        """Capture and run the step."""
        torch.cuda.synchronize(self.device.device)
        with _no_collection(), reading_sizes(self._read), self._watch:
            try:
                self._begin()
                # Detached, since graphs for gradients would be kept as long as the captured step.
                result = map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, step())
                self._end(0, 0)
            except BaseException:
                self._abort()
                raise
        existing = tuple(self._watch.existing.values())
        return Captured(self.device, tuple(self.pieces), tuple(self.sizes), result, existing)

    @property
    def scalers(self) -> list[torch.amp.GradScaler]:
        """The gradient scalers that the step uses."""
        return self._watch.scalers

    def undo(self) -> None:
        """Undo the changes of the pieces that have run."""
        for piece in reversed(self.pieces):
            piece.undo.apply()

    def _begin(self) -> None:
        self._watch.undo = Undo() if len(self.sizes) < self.n_reads else None
        pool = self.device.pool()
        self._graph = self.device.new_graph()
        # Other threads, such as those that load data, are not restricted meanwhile.
        self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        self._watch.is_resting = False

    def _end(self, n_numbers: int, most: int) -> None:
        """End a piece and run it."""
        assert self._graph is not None
        self._watch.is_resting = True
        end_capture(self._graph)  # nothing may be left to do after the last read
        graph, self._graph = self._graph, None
        graph.replay()
        self.pieces.append(Piece(graph, n_numbers, most, self._watch.undo or Undo()))

    def _read(self, sizes: Tensor, most: int) -> list[int]:
        """End a piece, and begin the next one with its sizes known."""
        if self._watch.has_lost:
            raise NotYet(n_reads=len(self.sizes) + 1)
        self._watch.is_resting = True
        self.device.put(sizes)
        self._end(len(sizes), most)
        size, *others = self.device.read(len(sizes))
        if any(others):
            raise Irregular
        self.sizes.append(padded_size(size, most))
        self._begin()
        return [self.sizes[-1], *others]

    def _abort(self) -> None:
        if self._graph is None:
            return
        self._watch.is_resting = True
        is_ended = False
        with contextlib.suppress(RuntimeError):  # the error may have ended the capture already
            end_capture(self._graph)
            is_ended = True
        self._graph.reset()
        self._graph = None
        if not is_ended:
            self.device.recover()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No collection of garbage, which may hold graphs: destroying one ends a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
