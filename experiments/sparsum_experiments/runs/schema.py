"""The files of a run: what ``config.json``, ``metrics.jsonl``, ``evaluation.json`` and a record hold.

A run of any training loop that writes the first two can be reported; `sparsum_experiments.runs.RunWriter` does it.
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, overload

import pydantic
import pydantic_core

from sparsum_experiments.options import explain

# The largest integers that every reader of JSON understands.
_LIMIT = 2**63


def _number(value: Any) -> Any:
    """An int or a float, and not a text or a truth value that could be taken for one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, int) and abs(value) > _LIMIT):
        raise pydantic_core.PydanticCustomError("number", "must be a number")
    return value


def _finite(value: Any) -> Any:
    if not math.isfinite(_number(value)):
        raise pydantic_core.PydanticCustomError("finite", "must be a finite number")
    return value


def _option(value: Any) -> Any:
    """What an option can be."""
    return value if isinstance(value, str | bool | list | None) else _finite(value)


Number = Annotated[float, pydantic.PlainValidator(_number)]
Finite = Annotated[float, pydantic.PlainValidator(_finite)]
Whole = Annotated[int, pydantic.Strict(), pydantic.Field(ge=-_LIMIT, lt=_LIMIT)]
Count = Annotated[int, pydantic.Strict(), pydantic.Field(ge=0, lt=_LIMIT)]
Metrics = dict[str, Number]
METRICS = pydantic.TypeAdapter(Metrics)


def _columns(columns: dict[str, Any]) -> dict[str, Any]:
    """Lists of numbers, one level deep, all of the same length."""
    lists = [each for values in columns.values() for each in (values.values() if isinstance(values, dict) else [values])]
    if not all(isinstance(each, list) for each in lists):
        raise ValueError("epochs must hold lists of numbers")
    for value in (value for each in lists for value in each):
        _finite(value)
    if len(lengths := sorted({len(each) for each in lists})) != 1:
        raise ValueError(f"the lists of epochs have different lengths: {', '.join(map(str, lengths)) or 'there are none'}")
    kinds = {"validation": dict, "train": dict, "calls": dict, "seconds": list}
    if not columns.get("validation") or not all(isinstance(columns.get(name, kind()), kind) for name, kind in kinds.items()):
        raise ValueError("epochs needs metrics of validation, and the other columns as docs/runs.md has them")
    return columns


class RunArgs(pydantic.BaseModel):
    """The options of a run, at least those by which runs are compared; an experiment adds its own."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True)

    method: str
    data: str
    seed: Whole
    epochs: Count
    bits: Count | None = None
    __pydantic_extra__: dict[str, Annotated[Any, pydantic.PlainValidator(_option)]]


class Config(pydantic.BaseModel):
    """``config.json``: what a run was started with.

    Args:
        experiment: the name of the experiment.
        args: its options.
        criterion: of an experiment that this package does not have, the validation metric by which settings are compared;
            by default its first one.
        better: whether larger or smaller values of the criterion are better.
        command: what was typed.
        versions: of Python and packages.
        machine: what it was started on.
        threads: how many threads of a CPU it was started with.
        git: the revision of the source.
        started: the time.
        data_files: the digest of each data file.
    """

    model_config = pydantic.ConfigDict(extra="allow", frozen=True)

    experiment: str
    args: RunArgs
    criterion: str | None = None
    better: Literal["larger", "smaller"] = "larger"
    command: list[str] = []
    versions: dict[str, str] = {}
    machine: str = ""
    threads: int | None = None
    git: str | None = None
    started: str = ""
    data_files: dict[str, str] = {}


class EpochMetrics(pydantic.BaseModel):
    """A line of ``metrics.jsonl``.

    Args:
        epoch: counted from 0.
        validation: metrics on the validation data after the epoch.
        train: means over the steps of the epoch.
        calls: decoder calls per training example: their mean, and percentiles such as ``p10``.
        seconds: of training.
        validation_seconds: of validation.
    """

    model_config = pydantic.ConfigDict(extra="allow", frozen=True)

    epoch: Count
    validation: Metrics
    train: Metrics = {}
    calls: Metrics = {}
    seconds: Number = 0.0
    validation_seconds: Number = 0.0


class Record(pydantic.BaseModel):
    """A line of a file of records: a run without its weights.

    Args:
        experiment: its name.
        method: repeated from the config, as are bits and seed.
        bits: None where the latent variable has none.
        variant: how it differs from other runs of the method, in a word.
        seed: of weights and noise.
        config: the options, except where the run was made.
        epochs: for each metric of `EpochMetrics` a list with its value at every epoch.
        test: the content of ``evaluation.json``.
        seconds: of training.
        versions: of packages, with the machine and the git revision.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    experiment: str
    method: str
    bits: int | None
    variant: str | None
    seed: int
    config: RunArgs
    epochs: Annotated[dict[str, Any], pydantic.AfterValidator(_columns)]
    test: dict[str, Finite]
    seconds: Finite
    versions: dict[str, str | None]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Record:
        for key in ("method", "bits", "seed"):
            if getattr(self, key) != getattr(self.config, key):
                raise ValueError(f"{key} is {getattr(self, key)!r}, but {getattr(self.config, key)!r} in the config")
        return self

    @property
    def name(self) -> str:
        """Of its setting: the method, with bits and variant where it has them."""
        return "-".join(str(part) for part in (self.method, self.bits, self.variant) if part is not None)

    def lines(self) -> Sequence[dict[str, Any]]:
        """The metrics of each epoch."""
        return Epochs(self.epochs)


class Epochs(Sequence[dict[str, Any]]):
    """The metrics of each epoch, made from columns when they are asked for: as dictionaries they need ten times the memory.

    >>> Epochs({"validation": {"loss": [2.0, 1.5]}, "seconds": [1.0, 1.0]})[-1]
    {'validation': {'loss': 1.5}, 'seconds': 1.0}
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: _packed(values) for name, values in columns.items() if values != {}}
        first = next(iter(self._columns.values()))
        self._length = len(next(iter(first.values())) if isinstance(first, dict) else first)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        return {
            name: {each: column[index] for each, column in values.items()} if isinstance(values, dict) else values[index]
            for name, values in self._columns.items()
        }


def _packed(values: Any) -> Any:
    return {name: _packed(each) for name, each in values.items()} if isinstance(values, dict) else array.array("d", values)


def columns_of(lines: list[Any]) -> Any:
    """For each metric that all epochs have, the list of its values.

    >>> columns_of([{"loss": 2.0}, {"loss": 1.5}])
    {'loss': [2.0, 1.5]}
    """
    if not isinstance(lines[0], dict):
        return lines
    names = [name for name in lines[0] if all(name in line for line in lines)]
    return {name: columns_of([line[name] for line in lines]) for name in names}


Checked = TypeVar("Checked")


def check(kind: Callable[[Any], Checked], content: Any, where: str) -> Checked:
    """Content of a file in the form that it should have; errors name the file and what is wrong."""
    try:
        return kind(content)
    except pydantic.ValidationError as error:
        raise ValueError(f"{where}: {explain(error, str)}") from None
