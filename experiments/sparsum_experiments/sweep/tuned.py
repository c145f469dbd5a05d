"""The setting of each method that was best in an earlier sweep."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import shlex
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import experiment_class, experiment_options, make_args, uses, with_defaults
from sparsum_experiments.report.sections import differing_options, summaries_by_setting, without_repetitions
from sparsum_experiments.runs import Run, RunFolder, read_evaluation, read_folders
from sparsum_experiments.sweep.plan import counted, grid_options

_N_NAMED = 4
# For how many images annealing tells settings apart, to within 0.002 bits per dimension.
_N_ANNEALED = 300


@dataclass(frozen=True)
class Choice:
    """The setting that a method takes from an earlier sweep; as text, a line about it.

    Args:
        method: its name.
        values: the options that were tuned.
        reason: why these.
    """

    method: str
    values: Mapping[str, Any]
    reason: str

    def __str__(self) -> str:
        return f"{self.method}: {_words(self.values) or 'nothing was tuned'} ({self.reason})"


@dataclass(frozen=True)
class _Earlier:
    """The runs of an earlier sweep that agree with the options of this one, and their description for messages."""

    folder: pathlib.Path
    runs: list[Run]
    title: str

    def of(self, method: str) -> list[Run]:
        return [run for run in self.runs if run.args["method"] == method]

    def name(self, path: pathlib.Path) -> str:
        """The folder of a run, relative to where the command was typed."""
        above = self.folder.resolve()
        return str(self.folder / path.relative_to(above) if path.is_relative_to(above) else path)

    def evaluate_command(self, option: str = "", n: float = 0) -> str:
        words = ["sparsum", "evaluate", str(self.folder), "--split", "validation"]
        return shlex.join([*words, option, f"{n:g}"] if option else words)


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

    Only runs on the same data and with the given options count; what may change on resume may differ. The mean over seeds at
    the last epoch decides; of equals the first, by the names of their folders.

    Args:
        experiment: its name.
        methods: how the sum over the latent variable is computed; None for all that have runs there.
        options: of all new runs; None means not given.
        grid: the names of the options that a grid gives to new runs.
        folder: of the earlier runs.
        out: of the new runs.
        by: the metric that decides, which an evaluation on the validation data may have measured; by default the criterion
            of each method.

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
        raise _unfinished_error(folder, missing or [f"there is no run of {earlier.title}"])
    return [_choice(experiment, method, given, grid, earlier, by) for method in methods]


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
    if broken := set(problems) - {run.problem for run in runs}:  # a broken evaluation does not matter here
        raise _unfinished_error(folder, sorted(broken))
    ours = [dataclasses.replace(run, args=_used_args(run)) for run in runs if run.experiment == experiment]
    agreeing = [run for run in ours if _agrees(run, wanted)]
    return _Earlier(folder, without_repetitions(agreeing)[0], f"{experiment} with {_words(wanted)}")


def _used_args(run: Run) -> dict[str, Any]:
    """The options of a run, completed, with the default of those that its method ignores."""
    defaults = with_defaults(run.experiment, {})
    return {
        name: value if uses(run.experiment, run.args["method"], name) else defaults.get(name, value)
        for name, value in with_defaults(run.experiment, run.args).items()
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
    found = [f"{earlier.name(path)} failed" for path in _failed_at_once(earlier.folder, method)]
    for run in runs:
        if not run.is_finished:
            how = "failed after" if RunFolder(run.path).failure_file.exists() else "has finished"
            found.append(f"{earlier.name(run.path)} {how} {len(run.lines)} of {counted(run.args['epochs'], 'epoch')}")
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


def _unfinished_error(folder: pathlib.Path, missing: list[str]) -> UsageError:
    named = missing[:_N_NAMED] + ([f"and {len(missing) - _N_NAMED} more"] if len(missing) > _N_NAMED else [])
    return UsageError(
        f"--tuned-by {folder}: {'; '.join(named)}. Finish that sweep first; "
        "to leave out a setting, delete its runs of all seeds; to leave out a method, use --methods"
    )


def _choice(
    experiment: str, method: str, given: dict[str, Any], grid: Collection[str], earlier: _Earlier, by: str | None
) -> Choice:
    metric, sign = _metric(experiment, method, by)
    names = _tuned_options(experiment, method, earlier)
    summaries = summaries_by_setting(earlier.of(method))
    measured = [[_measured(earlier, run, metric) for run in summary.runs] for summary in summaries]
    _check_counts(method, metric, [each for runs in measured for each in runs], earlier)
    means = [statistics.fmean(each[metric] for each in runs) for runs in measured]
    numbers = [i for i, mean in enumerate(means) if not math.isnan(mean)]
    if not numbers:
        raise UsageError(f"--tuned-by {earlier.folder}: no run of {method} there has measured {metric}")
    best = max(numbers, key=lambda i: sign * means[i])
    run = summaries[best].runs[0]
    values = {name: run.args.get(name) for name in names}
    among = f"the best of {len(summaries)} settings" if len(summaries) > 1 else "the only setting"
    reason = f"validation {metric} {means[best]:.4g}, {among} in {earlier.folder}"
    same = given | values | {name: run.args[name] for name in grid if name in run.args}
    new = _used_args(dataclasses.replace(run, args=make_args(experiment, method, same).model_dump()))
    others = {name: run.args[name] for name in _fixed_options(experiment) if run.args[name] != new[name]}
    return Choice(method, values, f"{reason}, where it had {_words(others)}" if others else reason)


def _metric(experiment: str, method: str, by: str | None) -> tuple[str, int]:
    """The metric that decides, by default the criterion of the method, and 1 if larger is better, -1 if smaller is.

    Raises:
        UsageError: if only other methods have it.
    """
    kind = experiment_class(experiment)
    owners = [other for other, criterion in kind.own_criteria.items() if criterion == by]
    if owners and method not in owners:
        raise UsageError(f"--by {by}: {method} does not have it; use --methods with some of {', '.join(owners)}")
    return by or kind.criterion_of(method), kind.judges.get(by or "", 1)


def _measured(earlier: _Earlier, run: Run, metric: str) -> Mapping[str, float]:
    """The validation metrics of a run's last epoch, or where these lack a metric, those of an evaluation."""
    if metric in run.validation:
        return run.validation
    try:
        found = read_evaluation(RunFolder(run.path), len(run.lines), "validation")
    except ValueError:  # measured at another time, or unreadable
        found = {}
    if metric in found:
        return found
    command = earlier.evaluate_command(*(("--annealed", _N_ANNEALED) if metric.endswith("annealed") else ()))
    raise UsageError(
        f"--tuned-by {earlier.folder}: {earlier.name(run.path)} has not measured {metric} on the validation data after its "
        f"last epoch: run {command}"
    )


def _check_counts(method: str, metric: str, measured: list[Mapping[str, float]], earlier: _Earlier) -> None:
    """Raise if an estimate from few samples, or for few images, would be compared with one from many."""
    kinds = {"n_samples": ("measured with {} samples", "--samples")}
    if metric.endswith("annealed"):
        kinds["n_annealed"] = ("annealed for {} images", "--annealed")
    for name, (how, option) in kinds.items():
        counts = sorted({metrics[name] for metrics in measured if name in metrics})
        if len(counts) > 1:
            numbers = " and ".join(f"{n:g}" for n in counts)
            raise UsageError(
                f"--tuned-by {earlier.folder}: runs of {method} were {how.format(numbers)}, so they cannot be compared; "
                f"run {earlier.evaluate_command(option, counts[-1])}"
            )


def _tuned_options(experiment: str, method: str, earlier: _Earlier) -> list[str]:
    """The options that differ among the runs of a method; where it has a single setting, among those of another method.

    Where all methods have one setting, those that differ between methods. Always those that the method uses, perhaps none.
    """
    if names := _differing(experiment, earlier.of(method)):
        return sorted(names)
    within = [_differing(experiment, earlier.of(other)) for other in experiment_class(experiment).methods]
    names = set().union(*within) or _differing(experiment, earlier.runs)
    if not names:
        raise UsageError(
            f"--tuned-by {earlier.folder}: nothing was tuned there, all runs of {earlier.title} have the same setting; "
            "give the folder of a sweep with --grid"
        )
    return sorted(name for name in names if uses(experiment, method, name))


def _differing(experiment: str, runs: list[Run]) -> set[str]:
    """The options that can be tuned and differ among runs."""
    return grid_options(experiment).keys() & set(_fixed_options(experiment)) & set(differing_options(runs))


def _fixed_options(experiment: str) -> list[str]:
    """The options that decide what a run computes, apart from its seed and its length."""
    options = experiment_options(experiment).values()
    return sorted(option.name for option in options if not option.free_on_resume and not option.is_place)


def _words(values: Mapping[str, Any]) -> str:
    shown = {name: "default" if value in (None, "") else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
