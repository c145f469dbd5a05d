"""What an option is: a field of an experiment's ``Args``.

The field holds everything about the option: type, default, limits, help, which methods use it, whether it may change when a
run is resumed, whether it changes the cost of an epoch. The command line, grids, resumption, records and reports read it
from there, so that a new option is one line.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import pydantic

from sparsum_experiments.errors import UsageError

#: Details of the options of all Gumbel methods, and of the number of epochs, whatever its default.
_GUMBEL: dict[str, Any] = {"methods": ("gumbel", "st-gumbel", "st-gumbel-mode"), "changes_cost": False}
EPOCHS: dict[str, Any] = {"ge": 1, "le": 2**60, "free_on_resume": True, "changes_cost": False, "is_main": True}
# Details of the options that split a batch.
_SHARED: dict[str, Any] = {"ge": 1, "le": 2**16, "free_on_resume": True, "is_place": True}
#: The largest size of a network or a structure: more would not fit into memory, whatever a file says.
MAX_SIZE = 2**16


@dataclass(frozen=True)
class Option:
    """An option of an experiment.

    Args:
        name: of the field, such as ``batch_size``.
        kind: its type.
        default: its value unless a preset or the command line gives another.
        help: one sentence.
        methods: those that use it; None for all.
        ignored_by: methods that do not use it, where all others do.
        free_on_resume: whether a resumed run may have another value.
        changes_cost: whether an epoch takes longer or shorter with another value.
        is_place: whether it says where a run is made, and not what it computes.
        is_main: whether reports show it even at its default.
    """

    name: str
    kind: Any
    default: Any
    help: str
    methods: tuple[str, ...] | None = None
    ignored_by: tuple[str, ...] = ()
    free_on_resume: bool = False
    changes_cost: bool = True
    is_place: bool = False
    is_main: bool = False

    @property
    def flag(self) -> str:
        """As it is typed, such as ``--batch-size``."""
        return as_flag(self.name)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, if these can be listed; without the empty one, which is the default."""
        kinds = typing.get_args(self.kind) if typing.get_origin(self.kind) is not Literal else (self.kind,)
        values = [value for kind in kinds if typing.get_origin(kind) is Literal for value in typing.get_args(kind)]
        return tuple(filter(None, values))

    def is_used_by(self, method: str) -> bool:
        """Whether runs of a method depend on it."""
        return method not in self.ignored_by and (self.methods is None or method in self.methods)

    def parse(self, text: str) -> Any:
        """The value that a text stands for."""
        try:
            return pydantic.TypeAdapter(self.kind).validate_strings(text)
        except pydantic.ValidationError as error:
            raise UsageError(f"{self.flag}: {text!r} is not {self._wanted()}") from error

    def _wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kinds = typing.get_args(self.kind) or (self.kind,)
        return "an integer" if int in kinds else "a number" if float in kinds else "a value"


def option(default: Any, help: str, **details: Any) -> Any:  # noqa: A002  (what it is called on a command line)
    """A field of ``Args``: its default and help, with details of `Option` and limits of `pydantic.Field`, such as ``ge``."""
    about = {name: details.pop(name) for name in list(details) if name in Option.__dataclass_fields__}
    return pydantic.Field(default, description=help, json_schema_extra=about, **details)


def as_flag(name: str) -> str:
    """An option as it is typed.

    >>> as_flag("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


class CommonArgs(pydantic.BaseModel):
    """The options of all experiments; each experiment adds its own."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    method: str = pydantic.Field(description="How the sum over the latent variable is computed.")
    data: str = option("digits", "A data set (see 'sparsum data list') or a folder.")
    data_dir: str = option("data", "The folder of all data sets.", free_on_resume=True, changes_cost=False, is_place=True)
    epochs: int = option(100, "Passes over the training data.", **EPOCHS)
    seed: int = option(0, "Seed of the weights and all noise.", ge=-(2**63), lt=2**63, changes_cost=False, is_place=True)
    lr: float = option(1e-3, "Learning rate of Adam.", ge=0, changes_cost=False, is_main=True)
    batch_size: int = option(64, "Examples per step.", ge=1, is_main=True)
    temperature_decay: float = option(1e-5, "r in the temperature max(0.5, exp(-r t)).", ge=0, **_GUMBEL)
    temperature_every: int = option(1000, "Steps between changes of the temperature.", ge=1, le=2**60, **_GUMBEL)
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", "Where to compute; auto takes a GPU if there is one.", free_on_resume=True, is_place=True
    )
    devices: int = option(1, "Devices of each machine that train the model together; a batch is split over them.", **_SHARED)
    nodes: int = option(1, "Machines that do; for more than one, start it by torchrun or srun.", **_SHARED)
    precision: Literal["32", "bf16-mixed"] = option("32", "Floating-point precision; one GPU captures steps with 32 only.")

    @property
    def data_name(self) -> str:
        """The name of the data set without the folders above it."""
        return pathlib.Path(self.data).name

    def replace(self, **changes: Any) -> typing.Self:
        """A copy with some values changed, and checked."""
        return type(self)(**(self.model_dump() | changes))


def config_digest(args: CommonArgs) -> str:
    """The same for configs with the same options, except for those that may change on resume.

    Defaults do not count, so that an option of a newer version does not make another config.
    """
    fixed = {
        option.name: getattr(args, option.name) for option in options_of(type(args)).values() if not option.free_on_resume
    }
    changed = {name: value for name, value in fixed.items() if value != options_of(type(args))[name].default}
    text = json.dumps({"method": args.method} | changed, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@functools.lru_cache
def options_of(kind: type[CommonArgs]) -> dict[str, Option]:
    """The options of an experiment by name, all fields of its Args but the method."""
    return {
        name: Option(name, field.annotation, field.default, field.description or "", **cast("Any", field.json_schema_extra))
        for name, field in kind.model_fields.items()
        if name != "method"
    }


_WANTED = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "finite_number": "a finite number",
}


def explain(error: pydantic.ValidationError, name: Callable[[str], str] = as_flag) -> str:
    """What is wrong with values, in words: the name of each, what is wanted and what was seen."""
    return "; ".join(_sentence(dict(each), name) for each in error.errors(include_url=False))


def _sentence(error: dict[str, Any], name: Callable[[str], str]) -> str:
    place = name(".".join(map(str, error["loc"]))) if error["loc"] else ""
    context = {name: f"{v:g}" if isinstance(v, float) else v for name, v in error.get("ctx", {}).items()}
    if error["type"] == "value_error":  # from a validator of ours, whose text is complete
        return str(context["error"])
    if error["type"] in {"missing", "extra_forbidden"}:
        return f"{place} is {'missing' if error['type'] == 'missing' else 'unknown'}"
    wanted = _WANTED.get(error["type"])
    seen = repr(error["input"])
    seen = seen if len(seen) <= 80 else f"{seen[:77]}..."
    text = f"must be {wanted.format(**context)}" if wanted else error["msg"][:1].lower() + error["msg"][1:]
    return f"{place} {text}, got {seen}".strip()
