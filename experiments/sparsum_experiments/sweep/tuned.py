"""The setting of each method that was best in an earlier sweep."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import shlex
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import experiment_class, experiment_options, make_args, uses, with_defaults
from sparsum_experiments.report.sections import differing_options, summaries_by_setting, without_repetitions
from sparsum_experiments.runs import Run, RunFolder, read_evaluation, read_folders
from sparsum_experiments.sweep.plan import counted, grid_options

_N_NAMED = 4
# For how many images annealing tells settings apart, to within 0.002 bits per dimension.
_N_ANNEALED = 300


class Choice(NamedTuple):
    """The setting that a method takes from an earlier sweep; as text, a line about it."""

    method: str
    values: Mapping[str, Any]
    reason: str

    def __str__(self) -> str:
        return f"{self.method}: {_words(self.values) or 'nothing was tuned'} ({self.reason})"


class _Earlier(NamedTuple):
    """The runs of an earlier sweep that agree with the options of this one, and their description for messages."""

    experiment: str
    folder: pathlib.Path
    runs: list[Run]
    title: str

    def of(self, method: str) -> list[Run]:
        return [run for run in self.runs if run.args["method"] == method]

    def differing(self, runs: list[Run]) -> set[str]:
        """The options that can be tuned and differ among runs."""
        return set(_tunable(self.experiment)).intersection(differing_options(runs))

    def error(self, text: str) -> UsageError:
        return UsageError(f"--tuned-by {self.folder}: {text}")

    def evaluate(self, *words: str) -> str:
        """The command that evaluates all runs on the validation data."""
        return shlex.join(["sparsum", "evaluate", str(self.folder), "--split", "validation", *words])


def tuned_settings(
    experiment: str,
    methods: Sequence[str] | None,
    options: Mapping[str, Any],
    grid: Collection[str],
    folder: pathlib.Path,
    out: pathlib.Path,
    by: str | None = None,
) -> list[Choice]:
    """For each method the setting that was best on the validation data among the runs in or below a folder.

    Only runs on the same data and with the given ``options`` count, though what may change on resume may differ. The mean
    over seeds of the metric ``by`` decides, at the last epoch or in an evaluation, by default the criterion of each method;
    of equals the first, by their folders' names. The new runs will be in ``out``, and have options of a ``grid``, too.

    Raises:
        UsageError: if runs are missing, not finished or not evaluated, or nothing was tuned.
    """
    kind = experiment_class(experiment)
    known = dict.fromkeys((kind.criterion, *kind.judges, *kind.own_criteria.values()))
    if by is not None and by not in known:
        raise UsageError(f"--by must be one of {', '.join(known)} for {experiment}, got {by!r}")
    given = {name: value for name, value in options.items() if value is not None}
    for method in methods or kind.methods[:1]:
        _check_names(experiment, method, given)
    if out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--out {out} is in the folder of --tuned-by, so the new runs would count as earlier ones")
    earlier = _read(experiment, given, folder)
    if methods is None:
        methods = [method for method in kind.methods if earlier.of(method) or _failed_at_once(folder, method)]
    missing = [text for method in methods for text in _missing(earlier, method)]
    if missing or not methods:
        raise _unfinished(earlier, missing or [f"there is no run of {earlier.title}"])
    return [_choice(earlier, method, given, grid, by) for method in methods]


def _check_names(experiment: str, method: str, given: dict[str, Any]) -> None:
    """Raise for methods and options that do not exist, of which there could be no runs."""
    try:
        make_args(experiment, method, given)
    except UsageError:
        raise
    except ValueError:
        pass  # a value that does not go with the presets may go with what was tuned


def _read(experiment: str, given: Mapping[str, Any], folder: pathlib.Path) -> _Earlier:
    """The runs that count, folders only; one that cannot be read is an error, since it may be of any method."""
    options = experiment_options(experiment)
    wanted = {"data": options["data"].default} | {n: value for n, value in given.items() if not options[n].free_on_resume}
    runs, problems = read_folders([folder])
    ours = [
        dataclasses.replace(run, args=_used_args(run.experiment, run.args)) for run in runs if run.experiment == experiment
    ]
    agreeing = [run for run in ours if _agrees(run, wanted)]
    earlier = _Earlier(experiment, folder, without_repetitions(agreeing)[0], f"{experiment} with {_words(wanted)}")
    if broken := set(problems) - {run.problem for run in runs}:  # a broken evaluation does not matter here
        raise _unfinished(earlier, sorted(broken))
    return earlier


def _used_args(experiment: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run, completed, with the default of those that its method ignores."""
    defaults = with_defaults(experiment, {})
    return {
        name: value if uses(experiment, args["method"], name) else defaults.get(name, value)
        for name, value in with_defaults(experiment, dict(args)).items()
    }


def _agrees(run: Run, wanted: Mapping[str, Any]) -> bool:
    """Whether a run has the wanted options, as far as its method uses them; two paths of one data folder are equal."""
    return all(
        run.args.get(name) == value
        or (name == "data" and pathlib.Path(run.args[name]).resolve() == pathlib.Path(value).resolve())
        or not uses(run.experiment, run.args["method"], name)
        for name, value in wanted.items()
    )


def _missing(earlier: _Earlier, method: str) -> list[str]:
    """Why the runs of a method cannot be compared, in words."""
    runs = earlier.of(method)
    found = [f"{os.path.relpath(path)} failed" for path in _failed_at_once(earlier.folder, method)]
    for run in runs:
        if not run.is_finished:
            how = "failed after" if RunFolder(run.path).failure_file.exists() else "has finished"
            found.append(f"{os.path.relpath(run.path)} {how} {len(run.lines)} of {counted(run.args['epochs'], 'epoch')}")
    if found or not runs:
        return found or [f"there is no run of {method} of {earlier.title}"]
    if len(lengths := sorted({run.args["epochs"] for run in runs})) > 1:
        found.append(f"runs of {method} have {' and '.join(map(str, lengths))} epochs, so they cannot be compared")
    seeds = {run.args["seed"] for run in runs}
    for summary in summaries_by_setting(runs):
        # The missing seeds may be the bad ones.
        absent = seeds - {run.args["seed"] for run in summary.runs}
        found += [f"{method} with {_words(summary.setting)} has no run with seed {seed}" for seed in sorted(absent)]
    return found


def _failed_at_once(folder: pathlib.Path, method: str) -> list[pathlib.Path]:
    """The folders of runs that a sweep gave up before they had a config; the name of a folder above is the method."""
    failed = [file.parent.resolve() for file in sorted(folder.rglob(RunFolder(folder).failure_file.name))]
    return [path for path in failed if not RunFolder(path).exists() and method in path.parts[-3:-1]]


def _unfinished(earlier: _Earlier, missing: list[str]) -> UsageError:
    named = missing[:_N_NAMED] + ([f"and {len(missing) - _N_NAMED} more"] if len(missing) > _N_NAMED else [])
    return earlier.error(
        f"{'; '.join(named)}. Finish that sweep first; to leave out a setting, delete its runs of all seeds; "
        "to leave out a method, use --methods"
    )


def _choice(earlier: _Earlier, method: str, given: dict[str, Any], grid: Collection[str], by: str | None) -> Choice:
    experiment, kind = earlier.experiment, experiment_class(earlier.experiment)
    owners = [other for other, criterion in kind.own_criteria.items() if criterion == by]
    if owners and method not in owners:
        raise UsageError(f"--by {by}: {method} does not have it; use --methods with some of {', '.join(owners)}")
    metric, sign = by or kind.criterion_of(method), kind.judges.get(by or "", 1)
    names = _tuned_options(earlier, method)
    summaries = summaries_by_setting(earlier.of(method))
    measured = [[_measured(earlier, run, metric) for run in summary.runs] for summary in summaries]
    _check_counts(earlier, method, metric, [metrics for runs in measured for metrics in runs])
    means = [statistics.fmean(metrics[metric] for metrics in runs) for runs in measured]
    numbers = [i for i, mean in enumerate(means) if not math.isnan(mean)]
    if not numbers:
        raise earlier.error(f"no run of {method} there has measured {metric}")
    best = max(numbers, key=lambda i: sign * means[i])
    args = summaries[best].runs[0].args
    values = {name: args.get(name) for name in names}
    among = f"the best of {len(summaries)} settings" if len(summaries) > 1 else "the only setting"
    reason = f"validation {metric} {means[best]:.4g}, {among} in {earlier.folder}"
    same = given | values | {name: args[name] for name in grid if name in args}
    new = _used_args(experiment, make_args(experiment, method, same).model_dump())
    others = {name: args[name] for name in ("data", *_tunable(experiment)) if args[name] != new[name]}
    return Choice(method, values, f"{reason}, where it had {_words(others)}" if others else reason)


def _measured(earlier: _Earlier, run: Run, metric: str) -> Mapping[str, float]:
    """The validation metrics of a run's last epoch, or where these lack the metric, those of an evaluation."""
    if metric in run.validation:
        return run.validation
    try:
        found = read_evaluation(RunFolder(run.path), len(run.lines), "validation")
    except ValueError:  # measured at another time, or unreadable
        found = {}
    if metric in found:
        return found
    command = earlier.evaluate(*(("--annealed", str(_N_ANNEALED)) if metric.endswith("annealed") else ()))
    where = f"{metric} on the validation data after its last epoch"
    raise earlier.error(f"{os.path.relpath(run.path)} has not measured {where}: run {command}")


def _check_counts(earlier: _Earlier, method: str, metric: str, measured: list[Mapping[str, float]]) -> None:
    """Raise if an estimate from few samples, or for few images, would be compared with one from many."""
    for name, option, how in (
        ("n_samples", "--samples", "measured with {} samples"),
        ("n_annealed", "--annealed", "annealed for {} images"),
    ):
        counts = sorted({metrics[name] for metrics in measured if name in metrics})
        if len(counts) > 1 and (name == "n_samples" or metric.endswith("annealed")):
            were = how.format(" and ".join(f"{n:g}" for n in counts))
            again = earlier.evaluate(option, f"{counts[-1]:g}")
            raise earlier.error(f"runs of {method} were {were}, so they cannot be compared; run {again}")


def _tuned_options(earlier: _Earlier, method: str) -> list[str]:
    """The options that differ among the runs of a method; where it has a single setting, among those of another method.

    Where all methods have one setting, those that differ between methods. Always those that the method uses, perhaps none.
    """
    if names := earlier.differing(earlier.of(method)):
        return sorted(names)
    within = [earlier.differing(earlier.of(other)) for other in experiment_class(earlier.experiment).methods]
    names = set().union(*within) or earlier.differing(earlier.runs)
    if not names:
        same = f"all runs of {earlier.title} have the same setting"
        raise earlier.error(f"nothing was tuned there, {same}; give the folder of a sweep with --grid")
    return sorted(name for name in names if uses(earlier.experiment, method, name))


def _tunable(experiment: str) -> list[str]:
    """The options that decide what a run computes, apart from its data, its seed and its length."""
    return sorted(name for name, option in grid_options(experiment).items() if not option.free_on_resume)


def _words(values: Mapping[str, Any]) -> str:
    shown = {name: "default" if value in (None, "") else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
