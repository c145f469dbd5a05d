"""What the runs of a table were told, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsum_experiments.registry import make_args, uses
from sparsum_experiments.report.rows import Row, option_name, option_value
from sparsum_experiments.report.sections import PLACES
from sparsum_experiments.runs import rounded

# What a reader asks for first, shown even where it is the default.
_MAIN = ("epochs", "batch_size", "lr", "entropy", "k", "solver")
# What a table says elsewhere.
_HIDDEN = PLACES | {"method", "data", "bits"}


def settings_note(experiment: str, rows: Sequence[Row]) -> str:
    """What all rows were told, then what each was: the main options, and those that differ between rows or from a default.

    Empty if there are no runs.
    """
    told = {row.label: _used(experiment, row) for row in rows if row.args is not None}
    names = _shown(told, [_changed(experiment, row) for row in rows])
    common = [name for name in names if len(told) == len(_values(told, name)) and len(set(_values(told, name))) == 1]
    parts = []
    if common:
        parts.append(f"all rows: {_text(next(iter(told.values())), common)}")
    for label, args in told.items():
        own = [name for name in names if name in args and name not in common]
        parts += [f"{label}: {_text(args, own)}"] if own else []
    return f"Settings of {'; '.join(parts)}." if parts else ""


def setting_text(experiment: str, method: str, setting: Mapping[str, Any]) -> str:
    """What sets some runs of a method apart from others, as far as the method uses it; empty if nothing does.

    >>> setting_text("bitvector-vae", "topk", {"lr": 0.002, "solver": "", "temperature_decay": 1e-05})
    'lr 0.002'
    >>> setting_text("bitvector-vae", "wake-wake", {"lr": 0.002, "entropy": 1.0})  # the second is no part of what it trains
    'lr 0.002'
    """
    return _text(setting, [name for name, value in setting.items() if is_used(experiment, method, name, value)])


def _used(experiment: str, row: Row) -> dict[str, Any]:
    """What a row was told and its method uses."""
    told = row.args or {}
    return {name: value for name, value in told.items() if is_used(experiment, row.method, name, value)}


def is_used(experiment: str, method: str, name: str, value: Any) -> bool:
    """Whether a table should show it: not what makes no difference to the method, nor what it was left to choose."""
    return name not in _HIDDEN and value not in (None, "") and uses(experiment, method, name)


def _changed(experiment: str, row: Row) -> set[str]:
    """The options of a row that are not what its method has by default."""
    told = _used(experiment, row)
    try:
        given = {name: row.args.get(name) for name in ("data", "bits")} if row.args else {}
        default = rounded(make_args(experiment, row.method, given).model_dump())
    except ValueError:  # a method of another version
        return set()
    return {name for name, value in told.items() if default.get(name) != value}


def _shown(told: dict[str, dict[str, Any]], changed: list[set[str]]) -> list[str]:
    known = dict.fromkeys(name for args in told.values() for name in args)
    names = [name for name in _MAIN if name in known] + [name for name in known if name not in _MAIN]
    wanted = set(_MAIN).union(*changed)
    return [name for name in names if name in wanted or len(set(_values(told, name))) > 1]


def _values(told: dict[str, dict[str, Any]], name: str) -> list[str]:
    return [repr(args[name]) for args in told.values() if name in args]


def _text(args: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{option_name(name)} {option_value(args[name])}" for name in names)
