"""The captured steps for arguments of one form: which one to replay, when to capture another, and what to do if it fails."""

from __future__ import annotations

import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsum.captured.graphs import IRREGULAR, Captured, Device, Irregular, Recording, padded_size
from sparsum.captured.optimizers import Optimizers
from sparsum.captured.watch import NotCapturable, NotYet, Undo, Watch
from sparsum.segments import reading_sizes

# How often a step of a size runs eagerly before it is captured: by then kernels are compiled and loaded, and the optimizer
# has its state. Sizes that hardly occur are not captured at all.
_N_EAGER = 2
# How many sizes are counted; then all begin again.
_MOST_COUNTED = 4096
# How often a step is begun again, before it runs eagerly. More would mean that its sizes differ in each attempt.
_MOST_ATTEMPTS = 8
_LIBRARIES = tuple(str(Path(module).parent) for module in (torch.__file__, __file__))


class Failed(Exception):
    """A step cannot be captured; the message says what and where. It has no effect yet."""


class Captures:
    """The captured steps.

    Args:
        device: where they are captured.
        optimizers: those that step.
        step: takes no arguments: it reads what the caller has filled in.
        most: the largest number of captured steps; those that were not used for longest are dropped.
    """

    def __init__(self, device: Device, optimizers: Optimizers, step: Callable[[], Any], most: int) -> None:
        self.device, self.optimizers, self.step, self.most = device, optimizers, step, most
        self._captured: OrderedDict[tuple[int, ...], Captured] = OrderedDict()
        self._last: Captured | None = None
        self._n_seen: Counter[tuple[int, ...]] = Counter()
        self._n_reads = 0

    def __len__(self) -> int:
        return len(self._captured)

    def take(self) -> Any:
        """Run the step: replay the capture for its sizes, or run it eagerly, or capture it.

        Returns:
            Its result, whose tensors are valid until the next step.
        """
        candidate, seen = self._last, tuple[int, ...]()
        noise = [] if candidate is not None and len(candidate.pieces) == 1 else self.device.noise()
        for _ in range(_MOST_ATTEMPTS):
            if candidate is None:
                break
            seen = candidate.run()
            if seen == candidate.sizes:
                if candidate is not self._last:
                    self._last = candidate
                    self._captured.move_to_end(candidate.sizes)
                return candidate.result
            candidate.undo(len(seen))
            self.device.set_noise(noise)
            candidate = self._starting_with(seen)
        if candidate is not None or self._n_seen[seen] < _N_EAGER:
            return self.eager(is_undone=IRREGULAR in seen)
        return self._capture(noise)

    def eager(self, *, is_undone: bool = False) -> Any:
        """Run the step eagerly, padded as a captured one; undo what it did, if wanted, if it raises an error."""
        seen: list[int] = []

        def read(sizes: Tensor, most: int) -> list[int]:
            size, *others = sizes.tolist()
            seen.append(IRREGULAR if any(others) else padded_size(size, most))
            return [padded_size(size, most), *others]

        with reading_sizes(read), self.optimizers.found():
            result = self._undone() if is_undone else self.step()
        if IRREGULAR not in seen:
            self._n_reads = max(self._n_reads, len(seen))
            if len(self._n_seen) > _MOST_COUNTED:
                self._n_seen.clear()
            for n in range(len(seen) + 1):
                self._n_seen[tuple(seen[:n])] += 1
        return result

    def forget(self) -> None:
        """Drop all captured steps."""
        self._last = None
        if self._captured:
            torch.cuda.synchronize(self.device.device)
        while self._captured:
            self._captured.popitem()[1].free()

    def _undone(self) -> Any:
        undo, noise, gradients = Undo(), self.device.noise(), self.optimizers.gradients()
        try:
            with Watch(undo):
                return self.step()
        except BaseException:
            undo.apply()
            self._restore(noise, gradients)
            raise

    def _restore(self, noise: list[Tensor], gradients: list[tuple[Tensor, Tensor | None]]) -> None:
        self.device.set_noise(noise)
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def _starting_with(self, seen: tuple[int, ...]) -> Captured | None:
        """The captured step that was used last among those that begin with the given sizes."""
        found = (one for sizes, one in reversed(self._captured.items()) if sizes[: len(seen)] == seen)
        return next(found, None)

    def _capture(self, noise: list[Tensor]) -> Any:
        gradients, recording = self.optimizers.gradients(), Recording(self.device, self._n_reads)
        try:
            with self.optimizers.found():
                captured = recording.run(self.step)
        except BaseException as error:
            recording.undo()
            self._restore(noise, gradients)
            for scaler in recording.scalers:
                scaler._per_optimizer_states.clear()  # what it noted of this step
            if isinstance(error, NotYet):
                self._n_reads = max(self._n_reads, error.n_reads)
                return self.eager()
            if isinstance(error, Irregular):
                return self.eager(is_undone=True)
            if isinstance(error, Exception | NotCapturable):
                raise Failed(f"{_what(error)}{_where(error)}") from error
            raise
        self._captured[captured.sizes] = self._last = captured
        if len(self._captured) > self.most:
            torch.cuda.synchronize(self.device.device)
            self._captured.popitem(last=False)[1].free()
        return captured.result


def _what(error: BaseException) -> str:
    name = "" if isinstance(error, NotCapturable) else f"{type(error).__name__}: "
    return name + (str(error).strip().splitlines() or [""])[0]


def _where(error: BaseException) -> str:
    """The line of the user's code that an error comes from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _is_ours(file: str) -> bool:
    return file.startswith((*_LIBRARIES, "<"))
