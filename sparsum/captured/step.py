"""The public function, `capture`."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch import Tensor

from sparsum.arguments import check_int, kind_of
from sparsum.captured.captures import Captures, Failed
from sparsum.captured.graphs import Device
from sparsum.captured.optimizers import Optimizers
from sparsum.captured.trees import form_of, leaves, map_leaves
from sparsum.segments import may_be_padded

P = ParamSpec("P")
R = TypeVar("R")


class CapturedStep(Generic[P, R]):
    """What `capture` returns: called like the step."""

    def __init__(self, step: Callable[P, R], most_captures: int, most_forms: int) -> None:
        functools.update_wrapper(self, step)
        self._step, self._most_captures, self._most_forms = step, most_captures, most_forms
        self._device: Device | None = None
        self._optimizers = Optimizers(self.forget)
        # For each form of the arguments, the tensors to fill in.
        self._forms: dict[Hashable, tuple[list[Tensor], Captures]] = {}
        self._n_changes = 0
        self._said: set[str] = set()
        self._is_eager = False

    @property
    def n_captures(self) -> int:
        """The number of captured steps that are kept."""
        return sum(len(captures) for _, captures in self._forms.values())

    def forget(self) -> None:
        """Drop all captured steps. They are captured again: to be called after a change that they do not see."""
        for _, captures in self._forms.values():
            captures.forget()
        self._forms.clear()
        if self._device is not None:
            self._device.release()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Take a step."""
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not _may_capture(tensors):
            return self._plain(*args, **kwargs)
        found = None
        try:
            found = self._captures_for(tensors, args, kwargs)
        except Failed as failed:
            self._say(failed)
        if self._device is None:
            return self._plain(*args, **kwargs)
        # All steps are on one stream, also plain ones: gradients of a step on another one would have to change streams.
        with self._device.active():
            if found is None:
                result = self._plain(*args, **kwargs)
            else:
                inputs, captures = found
                for mine, theirs in zip(inputs, tensors, strict=True):
                    mine.copy_(theirs)
                try:
                    result = captures.take()
                except Failed as failed:
                    self._is_eager = True
                    self._say(failed)
                    result = captures.eager()
        # Copied on the caller's stream, to which the memory then belongs.
        copied: R = _copied(result)
        return copied

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method."""
        return self if instance is None else types.MethodType(self, instance)

    def _plain(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The step as it is, and copies of its results without gradient."""
        result: R = map_leaves(
            lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, self._step(*args, **kwargs)
        )
        return result

    def _captures_for(
        self, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Tensor], Captures] | None:
        """The tensors to fill in and the captures for arguments of this form, None once steps stay eager.

        Raises `Failed` if such a step is not captured.
        """
        if self._is_eager:
            if self._forms:
                self.forget()
            return None
        self._check_settings()
        _check_arguments(tensors, tensors[0].device if self._device is None else self._device.device)
        try:
            form = (form_of(args), form_of(kwargs), _modes())
        except TypeError as error:
            raise Failed(f"an argument is neither a tensor nor hashable ({error})") from None
        if form not in self._forms:
            if len(self._forms) >= self._most_forms:
                self._is_eager = True
                raise Failed(
                    f"the arguments had more than {self._most_forms} forms (shapes, or values that are not tensors), each "
                    "of which is captured; pass what changes as tensors of the same shape, or raise most_forms"
                )
            self._device = self._device or Device(tensors[0].device)
            self._forms[form] = self._new(tensors, args, kwargs)
        return self._forms[form]

    def _new(self, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], Captures]:
        assert self._device is not None
        inputs = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
        filled = iter(inputs)
        fixed: Any = map_leaves(lambda leaf: next(filled) if isinstance(leaf, Tensor) else leaf, (args, kwargs))

        def step() -> Any:
            torch.clear_autocast_cache()  # of a context around the step, in which the weights have changed
            try:
                return self._step(*fixed[0], **fixed[1])
            finally:
                torch.clear_autocast_cache()

        return inputs, Captures(self._device, self._optimizers, step, self._most_captures)

    def _check_settings(self) -> None:
        """Drop what was captured if options of the optimizer have changed, other than rates; give up if they go on to."""
        if not self._optimizers.have_changed():
            return
        self.forget()
        self._n_changes += 1
        if self._n_changes > self._most_forms:
            self._is_eager = True
            raise Failed("options of the optimizer other than its rate change again and again, such as betas or momentum")

    def _say(self, failed: Failed) -> None:
        """Warn once of each cause."""
        if str(failed) not in self._said:
            self._said.add(str(failed))
            name = getattr(self._step, "__qualname__", kind_of(self._step))
            scope = "Its steps stay" if self._is_eager else "This step is"
            warnings.warn(f"{name} is not captured: {failed}. {scope} eager: the results are the same.", stacklevel=3)


@overload
def capture(step: Callable[P, R], *, most_captures: int = 64, most_forms: int = 8) -> CapturedStep[P, R]: ...
@overload
def capture(
    step: None = None, *, most_captures: int = 64, most_forms: int = 8
) -> Callable[[Callable[P, R]], CapturedStep[P, R]]: ...
def capture(step: Any = None, *, most_captures: int = 64, most_forms: int = 8) -> Any:
    """Capture a training step as CUDA graphs, which take a fraction of the time of its many small kernels.

    The step is a function of tensors that holds everything: the gradients set to zero, the model, the loss with `expect`,
    estimators or bounds, backward, clipping, and the step of the optimizer. On a GPU it runs a few times as it is, is then
    captured, and replayed from there on. On a CPU it is the function.

    >>> import sparsum as sp
    >>> encoder, decoder = torch.nn.Linear(7, 3), torch.nn.Linear(3, 7)
    >>> optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    >>> @sp.capture
    ... def step(x):
    ...     optimizer.zero_grad()
    ...     q = sp.sparsemap(encoder(x), sp.Bits(3))
    ...     objective = (q.expect(lambda z, row: (decoder(z) - x[row]).square().sum(-1)) - q.entropy()).mean()
    ...     objective.backward()
    ...     optimizer.step()
    ...     return objective
    >>> step(torch.randn(5, 7)).shape
    torch.Size([])

    The size of a support is different at every step, and the host has to read it. So a step is captured in pieces that end
    where a size is read, for few sizes to which supports are padded; a step of another size than the last one begins again
    with the pieces for its own. What it had changed until then is undone, such as running statistics, and noise is that of
    the first attempt. A captured step does what the eager one does, up to rounding, since larger sums are rounded otherwise.

    What the step may do:

    - Change tensors in place, as modules and optimizers do. A replay repeats what happens on the GPU, and nothing that
      happens in Python: a tensor that is assigned to an attribute, a counter that is a number, a log. Return what is to be
      logged.
    - Draw noise, from the global generator of the GPU and from others.
    - Use any optimizer with the option ``capturable``, which is switched on, or `torch.optim.SGD`, whose fused version is
      used. Rates become tensors on the GPU, which schedulers and assignments change as before, outside of the step.
    - Use autocast, clipping, several sparse distributions, and raise errors for rows without a distribution.
    - Not read from the GPU, by ``.item()``, ``print`` or ``if``, nor use tensors on the CPU. Solvers with a loop on the
      host do: `ActiveSet` beyond bits, `Pulled`, and the k best of trees and matchings. Such a step stays eager, and a
      warning says why and where.

    A loss sees the *padding*: copies of some atom at the end, which count for nothing as long as the loss treats its atoms
    independently. Batch normalization over atoms would count them: normalize over features instead, or use running
    statistics there. Dropout, and noise drawn per atom, are drawn for more atoms; they are valid, but not those of the eager
    step.

    Args:
        step: the function; it takes tensors, nested containers of tensors, and hashable values that do not change. It
            returns None, tensors, or nested containers of tensors, which come back as copies without gradient.
        most_captures: the largest number of sizes that are kept; those that were not used for longest are dropped.
        most_forms: the largest number of shapes of the arguments (and of their other values) that are captured.

    Returns:
        The captured step, with the arguments of ``step``. Without ``step``, a decorator.
    """
    check_int("most_captures", most_captures, least=1)
    check_int("most_forms", most_forms, least=1)
    if step is None:
        return lambda function: capture(function, most_captures=most_captures, most_forms=most_forms)
    if not callable(step):
        raise TypeError(f"step must be a function, got {kind_of(step)}")
    return CapturedStep(step, most_captures, most_forms)


def _copied(result: Any) -> Any:
    """The result with copies of its tensors, in one launch if they are alike."""
    found = [leaf.detach() for leaf in leaves(result) if isinstance(leaf, Tensor)]
    if not found:
        return result
    copies = [torch.empty_like(tensor) for tensor in found]
    torch._foreach_copy_(copies, found)
    filled = iter(copies)
    return map_leaves(lambda leaf: next(filled) if isinstance(leaf, Tensor) else leaf, result)


def _may_capture(tensors: list[Tensor]) -> bool:
    """Whether a step with these tensors among its arguments is on a GPU, and nobody traces or captures it already."""
    if not any(tensor.is_cuda for tensor in tensors):
        return False
    return not (torch.compiler.is_compiling() or may_be_padded() or torch.cuda.is_current_stream_capturing())


def _check_arguments(tensors: list[Tensor], device: torch.device) -> None:
    """Raise `Failed` if a step with these tensors cannot be captured."""
    for tensor in tensors:
        if tensor.device != device:
            raise Failed(f"an argument is on {tensor.device}, another on {device}; move all to one GPU")
        if tensor.requires_grad:
            raise Failed("an argument requires a gradient, which a captured step does not pass on; detach it")
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise Failed(f"an argument is a {type(tensor).__name__} with layout {tensor.layout}")


def _modes() -> Hashable:
    """What torch does differently within contexts that are entered outside of the step."""
    is_autocast = torch.is_autocast_enabled("cuda")
    return (is_autocast and torch.get_autocast_dtype("cuda"), torch.is_grad_enabled(), torch.is_inference_mode_enabled())
