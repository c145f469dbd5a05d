"""Watching the operations of a step: what it changes, so that this can be undone, and what a replay would not repeat."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sparsum.tensors import AbstractWatch

# They wait for the device, and return something whose value or shape the host has to know.
_READS = {
    "_linalg_check_errors",
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_COPIES = {"_to_copy", "copy_"}
# What a gradient scaler calls when it notes on the host what it did.
_SCALER = "_amp_foreach_non_finite_check_and_unscale_"
# Their argument was made within the step, without an operation.
_LIFTS = {"lift", "lift_fresh", "lift_fresh_copy"}


class Stop(BaseException):
    """Ends the capture of a step. Not an `Exception`, so that no code on the way handles it."""


class NotCapturable(Stop):
    """The step does something that a replay would not repeat."""


class NotYet(Stop):
    """Something was learned that has to be known when a capture begins: the next one will succeed.

    Args:
        n_reads: how many sizes the step reads, at least.
    """

    def __init__(self, n_reads: int = 0) -> None:
        super().__init__()
        self.n_reads = n_reads


class Undo:
    """A list of changes of tensors, to be undone in reverse order."""

    def __init__(self) -> None:
        self._known: set[tuple[object, ...]] = set()
        self._changes: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self._changes)

    def keep(self, tensor: Tensor) -> None:
        """Copy a tensor that is about to be changed, if this was not done before."""
        key = (_storage_id(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        if key not in self._known:
            self._known.add(key)
            self._changes.append((tensor.detach(), tensor.detach().clone()))

    @torch.no_grad()
    def apply(self) -> None:
        """Undo all changes."""
        for tensor, before in reversed(self._changes):
            tensor.copy_(before)


class Watch(AbstractWatch):
    """Keeps what existing tensors contain before the step changes them; those that it made itself do not matter.

    Kernels that bypass torch's dispatcher are not seen. Those of this library write to new tensors only.

    Args:
        undo: where to keep it; None if nothing will be undone.
        generators: those whose state is known to be captured; None if nothing is captured, so that everything is allowed.
    """

    supports_higher_order_operators = True

    def __init__(self, undo: Undo | None, generators: list[torch.Generator] | None = None) -> None:
        super().__init__()
        self.undo, self.generators = undo, generators
        #: Whether existing tensors were changed without being kept.
        self.has_lost = False
        #: Switches it off for operations that are not those of the step.
        self.is_resting = False
        #: The gradient scalers that the step uses.
        self.scalers: list[torch.amp.GradScaler] = []
        # Existing tensors are kept alive: a graph refers to their memory.
        self.existing: dict[int, torch.UntypedStorage] = {}
        self._new: set[int] = set()

    def __torch_dispatch__(self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation."""
        kwargs = kwargs or {}
        if self.is_resting or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        given = list(_tensors((*args, *kwargs.values())))
        if func.overloadpacket.__name__ in _LIFTS:
            self._new.update(map(_storage_id, given))
        else:
            for tensor in given:
                self._meet(tensor)
            if self.generators is not None:
                self._check(func, given, args, kwargs)
            for tensor in _changed(func, args, kwargs):
                self._keep(tensor)
        if func.overloadpacket.__name__ == _SCALER:
            self.scalers += _scalers_that_call()
        result = func(*args, **kwargs)
        self._new.update(key for key in map(_storage_id, _tensors((result,))) if key not in self.existing)
        return result

    def _meet(self, tensor: Tensor) -> None:
        key = _storage_id(tensor)
        if key and key not in self._new and key not in self.existing:
            self.existing[key] = tensor.untyped_storage()

    def _keep(self, tensor: Tensor) -> None:
        if _storage_id(tensor) not in self.existing:
            return
        if self.undo is None:
            self.has_lost = True
        else:
            self.undo.keep(tensor)

    def _check(self, func: Any, given: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `NotCapturable` for what a replay would not repeat."""
        assert self.generators is not None
        name = func.overloadpacket.__name__
        is_on_gpu = any(tensor.is_cuda for tensor in given)
        if is_on_gpu and (name in _READS or _has_mask(name, args) or _has_free_size(name, args, kwargs)):
            raise NotCapturable(f"the host reads from the GPU ({name})")
        if name in _COPIES:
            device = torch.device(kwargs.get("device") or args[0].device)
            source = args[1] if name == "copy_" else args[0]
            if source.device.type != device.type:
                raise NotCapturable(f"a tensor is copied from {source.device.type} to {device.type} ({name})")
        for tensor in given:
            if tensor.device.type == "cpu" and _storage_id(tensor) in self.existing:
                raise NotCapturable(f"a tensor on the CPU takes part ({name}), which a replay does not look at")
        generator = kwargs.get("generator")
        if torch.Tag.nondeterministic_seeded in func.tags and not is_on_gpu:
            device = torch.device(kwargs.get("device") or "cpu")
            if device.type == "cpu":
                raise NotCapturable(f"noise is drawn on the CPU ({name})")
        if generator is not None and all(generator is not each for each in self.generators):
            self.generators.append(generator)
            raise NotYet


def _scalers_that_call() -> list[torch.amp.GradScaler]:
    """The gradient scalers on the stack."""
    found = list[torch.amp.GradScaler]()
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.amp.GradScaler):
            found.append(owner)
        frame = frame.f_back
    return found


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among nested lists and tuples, which the arguments of an operation are."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _storage_id(tensor: Tensor) -> int:
    """What identifies a tensor's memory; 0 if it has none of its own, as a sparse tensor."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


@functools.lru_cache(maxsize=4096)
def _places_of_changed(func: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of the arguments that an operation writes to."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        # The schemas of batch normalization do not say that running statistics are changed.
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name.startswith("running_")
    )


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    places = _places_of_changed(func)
    return _tensors(args[place] if place < len(args) else kwargs.get(name) for place, name in places)


def _has_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Whether an indexing operation has to count the entries that are True."""
    return name in _INDEXING and any(index.dtype in (torch.bool, torch.uint8) for index in _tensors((args[1],)))


def _has_free_size(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the size of a repetition depends on values."""
    return name == "repeat_interleave" and kwargs.get("output_size") is None and isinstance(args[-1], Tensor)
