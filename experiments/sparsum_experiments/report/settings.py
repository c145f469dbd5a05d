"""The options of runs in few words: those that set them apart, and those that a reader asks for first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparsum_experiments.registry import NAMES, experiment_options, make_args, place_options, uses
from sparsum_experiments.runs import Run, rounded

# What the title and the first column of a table say.
_ELSEWHERE = {"method", "data", "bits"}


def setting_text(experiment: str, method: str, setting: Mapping[str, Any]) -> str:
    """What sets some runs of a method apart from others, as far as the method uses it; empty if nothing does.

    >>> setting_text("bitvector-vae", "topk", {"lr": 0.002, "solver": "", "temperature_decay": 1e-05})
    'lr 0.002'
    >>> setting_text("bitvector-vae", "wake-wake", {"lr": 0.002, "entropy": 1.0})  # the second is not part of its objective
    'lr 0.002'
    """
    return options_text(_used(experiment, method, setting))


def options_text(options: Mapping[str, Any]) -> str:
    """Options as they are typed, with their values.

    >>> options_text({"batch_size": 64, "lr": 0.001, "solver": ""})
    'batch-size 64, lr 0.001, solver default'
    """
    return ", ".join(f"{name.replace('_', '-')} {_value(value)}" for name, value in options.items())


def _value(value: Any) -> str:
    if value is None or value == "":
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_note(rows: Iterable[tuple[str, Run]]) -> str:
    """The options that all rows share, then those of each: the main ones, and those that differ or are not the default.

    Args:
        rows: the label of each row, and one of its runs.
    """
    rows = list(rows)
    used = {label: _used(run.experiment, run.args["method"], run.args) for label, run in rows}
    names = dict.fromkeys(name for options in used.values() for name in options)
    main = [name for name, option in experiment_options(rows[0][1].experiment).items() if option.is_main] if rows else []
    changed = {name for label, run in rows for name in _changed(run, used[label])}
    values = {name: {repr(options.get(name)) for options in used.values()} for name in names}
    shown = [name for name in main if name in names]
    shown += [name for name in names if name not in main and (name in changed or len(values[name] - {"None"}) > 1)]
    common = [name for name in shown if len(values[name]) == 1]
    parts = [("all rows", {name: used[rows[0][0]][name] for name in common})]
    parts += [
        (label, {name: options[name] for name in shown if name in options.keys() - set(common)})
        for label, options in used.items()
    ]
    texts = [f"{label}: {options_text(options)}" for label, options in parts if options]
    return f"Settings of {'; '.join(texts)}." if texts else ""


def _used(experiment: str, method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a table should show: those that the method uses and that were not left to it to choose."""
    hidden = place_options(experiment) | _ELSEWHERE
    return {
        name: value
        for name, value in options.items()
        if name not in hidden and value not in (None, "") and uses(experiment, method, name)
    }


def _changed(run: Run, used: Mapping[str, Any]) -> set[str]:
    """The options of a run that are not the defaults of its method; all of them where there are no defaults."""
    if run.experiment not in NAMES:
        return set(used)
    try:
        given = {name: run.args.get(name) for name in ("data", "bits")}
        default = rounded(make_args(run.experiment, run.args["method"], given).model_dump())
    except ValueError:  # a method of another version
        return set()
    return {name for name, value in used.items() if default.get(name) != value}
