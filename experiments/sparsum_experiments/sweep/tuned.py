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
from sparsum_experiments.registry import experiment_class, experiment_options, make_args, used_config, uses
from sparsum_experiments.report.sections import config_key, differing_options, without_repetitions
from sparsum_experiments.report.summary import grouped
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
    Raises a UsageError if runs are missing, not finished or not evaluated, or nothing was tuned.
    """
    kind = experiment_class(experiment)
    known = dict.fromkeys((kind.criterion, *kind.judges, *kind.own_criteria.values()))
    if by is not None and by not in known:
        raise UsageError(f"--by must be one of {', '.join(known)} for {experiment}, got {by!r}")
    given = {name: value for name, value in options.items() if value is not None}
    for method in methods or kind.methods[:1]:
        try:
            make_args(experiment, method, given)
        except UsageError:  # a method or an option that does not exist, of which there could be no runs
            raise
        except ValueError:
            pass  # a value that does not go with the presets may go with what was tuned
    if out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--out {out} is in the folder of --tuned-by, so the new runs would count as earlier ones")
    earlier = _Earlier(experiment, folder, given)
    if methods is None:
        methods = [method for method in kind.methods if earlier.of(method) or earlier.failed_at_once(method)]
    missing = [text for method in methods for text in earlier.missing(method)]
    earlier.check(missing if methods else [f"there is no run of {earlier.title}"])
    return [earlier.choice(method, grid, by) for method in methods]


class _Earlier:
    """The runs of an earlier sweep that agree with the given options of this one, and their description for messages."""

    def __init__(self, experiment: str, folder: pathlib.Path, given: dict[str, Any]) -> None:
        self.experiment, self.folder, self.given, self.kind = experiment, folder, given, experiment_class(experiment)
        fixed = {name for name, option in experiment_options(experiment).items() if not option.free_on_resume}
        self.tunable = sorted(fixed.intersection(grid_options(experiment)))
        data = experiment_options(experiment)["data"].default
        wanted = {"data": data} | {name: given[name] for name in given if name in fixed}
        self.title = f"{experiment} with {_words(wanted)}"
        agreeing, (found, problems) = list[Run](), read_folders([folder])
        for run in [run for run in found if run.experiment == experiment]:
            args = used_config(self.experiment, run.args)
            is_same = (
                pathlib.Path(args["data"]).resolve() == pathlib.Path(wanted["data"]).resolve()
            )  # a folder has many names
            if used_config(self.experiment, args | wanted | ({"data": args["data"]} if is_same else {})) == args:
                agreeing.append(dataclasses.replace(run, args=args))
        self.runs = without_repetitions(agreeing)[0]
        # A run that cannot be read may be of any method; a broken evaluation does not matter here.
        self.check(sorted(set(problems) - {run.problem for run in found}))

    def of(self, method: str) -> list[Run]:
        """The runs of a method; those that a search stopped do not count, since they were not good enough."""
        return [run for run in self.every(method) if not run.stop]

    def every(self, method: str) -> list[Run]:
        return [run for run in self.runs if run.args["method"] == method]

    def failed_at_once(self, method: str) -> list[pathlib.Path]:
        """The folders of runs that a sweep gave up before they had a config; the name of a folder above is the method."""
        failed = [file.parent.resolve() for file in sorted(self.folder.rglob(RunFolder(self.folder).failure_file.name))]
        return [path for path in failed if not RunFolder(path).exists() and method in path.parts[-3:-1]]

    def error(self, text: str) -> UsageError:
        return UsageError(f"--tuned-by {self.folder}: {text}")

    def check(self, missing: list[str]) -> None:
        """Raise an error if something is missing."""
        if missing:
            named = missing[:_N_NAMED] + ([f"and {len(missing) - _N_NAMED} more"] if len(missing) > _N_NAMED else [])
            leave_out = "to leave out a setting, delete its runs of all seeds; to leave out a method, use --methods"
            raise self.error(f"{'; '.join(named)}. Finish that sweep first; {leave_out}")

    def missing(self, method: str) -> list[str]:
        """Why the runs of a method cannot be compared, in words."""
        runs = self.of(method)
        found = [f"{os.path.relpath(path)} failed" for path in self.failed_at_once(method)]
        for run in [run for run in runs if not run.is_finished]:
            how = "failed after" if RunFolder(run.path).failure_file.exists() else "has finished"
            found.append(f"{os.path.relpath(run.path)} {how} {len(run.lines)} of {counted(run.args['epochs'], 'epoch')}")
        if found or not runs:
            return found or [f"there is no run of {method} of {self.title}"]
        if len(lengths := sorted({run.args["epochs"] for run in runs})) > 1:
            found.append(f"runs of {method} have {' and '.join(map(str, lengths))} epochs, so they cannot be compared")
        seeds = {run.args["seed"] for run in runs}
        for same in grouped(runs, config_key).values():
            setting = _words({name: same[0].args.get(name) for name in differing_options(runs)})
            absent = seeds - {run.args["seed"] for run in same}  # which may be the bad ones
            found += [f"{method} with {setting} has no run with seed {seed}" for seed in sorted(absent)]
        return found

    def choice(self, method: str, grid: Collection[str], by: str | None) -> Choice:
        """The best setting of a method."""
        import pandas  # here, so that other sweeps start faster

        owners = [other for other, criterion in self.kind.own_criteria.items() if criterion == by]
        if owners and method not in owners:
            raise UsageError(f"--by {by}: {method} does not have it; use --methods with some of {', '.join(owners)}")
        metric, names, runs = by or self.kind.criterion_of(method), self.tuned_options(method), self.of(method)
        measured = pandas.DataFrame([self.measured(run, metric) for run in runs], index=map(config_key, runs))
        for name, how in (("n_samples", "measured with {} samples"), ("n_annealed", "annealed for {} images")):
            counts = sorted(measured[name].dropna().unique()) if name in measured else []
            if len(counts) > 1 and (name == "n_samples" or metric.endswith("annealed")):  # few would be compared with many
                were = how.format(" and ".join(f"{n:g}" for n in counts))
                again = self.evaluate(f"--{name.removeprefix('n_')}", f"{counts[-1]:g}")
                raise self.error(f"runs of {method} were {were}, so they cannot be compared; run {again}")
        # Exact sums, so that the order of the seeds does not break ties; NaN where a seed has it.
        means = measured.groupby(level=0, sort=False)[metric].agg(statistics.fmean)
        if means.isna().all():
            raise self.error(f"no run of {method} there has measured {metric}")
        best = (means * self.kind.judges.get(by or "", 1)).idxmax()
        args = next(run.args for run in runs if config_key(run) == best)
        values = {name: args.get(name) for name in names}
        n_settings = len({config_key(run) for run in self.every(method)})
        among = f"the best of {n_settings} settings" if n_settings > 1 else "the only setting"
        n_seeds = len(measured.loc[[best]])
        reason = f"validation {metric} {means[best]:.4g}, {among} over {n_seeds} seed{'s' * (n_seeds > 1)} in {self.folder}"
        same = self.given | values | {name: args[name] for name in grid if name in args}
        new = used_config(self.experiment, make_args(self.experiment, method, same).model_dump())
        others = {name: args[name] for name in ("data", "epochs", *self.tunable) if args[name] != new[name]}
        return Choice(method, values, f"{reason}, where it had {_words(others)}" if others else reason)

    def measured(self, run: Run, metric: str) -> Mapping[str, float]:
        """The validation metrics of a run's last epoch, or where these lack the metric, those of an evaluation."""
        if not run.lines:  # of no epochs
            return {metric: math.nan}
        if metric in run.validation:
            return run.validation
        try:
            found = read_evaluation(RunFolder(run.path), len(run.lines), "validation")
        except ValueError:  # measured at another time, or unreadable
            found = {}
        if metric in found:
            return found
        command = self.evaluate(*(("--annealed", str(_N_ANNEALED)) if metric.endswith("annealed") else ()))
        where = f"{metric} on the validation data after its last epoch"
        raise self.error(f"{os.path.relpath(run.path)} has not measured {where}: run {command}")

    def evaluate(self, *words: str) -> str:
        """The command that evaluates all runs on the validation data."""
        return shlex.join(["sparsum", "evaluate", str(self.folder), "--split", "validation", *words])

    def tuned_options(self, method: str) -> list[str]:
        """The options that differ among the runs of a method; if none does, among those of another one, or between methods.

        Always those that the method uses, perhaps none.
        """
        groups = [self.every(method)], [self.every(other) for other in self.kind.methods], [self.runs]
        differing = [set[str]().union(*map(differing_options, group)).intersection(self.tunable) for group in groups]
        if not (names := next(filter(None, differing), None)):
            same = f"all runs of {self.title} have the same setting"
            raise self.error(f"nothing was tuned there, {same}; give the folder of a sweep with --grid")
        return sorted(name for name in names if uses(self.experiment, method, name))


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'default' if value in (None, '') else value}" for name, value in values.items())
