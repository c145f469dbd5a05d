"""What an earlier sweep found best for each method."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import read_json
from sparsum_experiments.registry import args_class, experiment_class, make_args, uses, with_defaults
from sparsum_experiments.report import (
    Run,
    Summary,
    differing_options,
    read_evaluation,
    read_folders,
    summaries_by_setting,
    without_repetitions,
)
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep.plan import grid_options
from sparsum_experiments.sweep.state import FAILURE_NAME, FREE

_N_NAMED = 4
# What `sparsum evaluate --split validation` writes.
_EVALUATION = "evaluation-validation.json"
# For how many images annealing tells settings apart, to within 0.002 bits per dimension.
_N_ANNEALED = 300


@dataclass(frozen=True)
class Choice:
    """The setting that a method takes from an earlier sweep; as text, a line that says it.

    Args:
        method: how the sum is made.
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
    """The runs of an earlier sweep that count for this one, and what they are, for messages."""

    folder: pathlib.Path
    records: list[Run]
    title: str

    def of(self, method: str) -> list[Run]:
        return [record for record in self.records if record.args["method"] == method]

    def name(self, path: pathlib.Path) -> str:
        """A folder of a run as it is seen from where the command was typed."""
        above = self.folder.resolve()
        return str(self.folder / path.relative_to(above) if path.is_relative_to(above) else path)


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

    The runs that count are on the same data and were told all that is given here; epochs, device and the place of the data
    may differ. Best is the mean over seeds at the last epoch; of equals the first, by the names of their folders.

    Args:
        experiment: its name.
        methods: how the sum is made; None for all that have runs there.
        options: what all new runs are told; None means not given.
        grid: the names of the options that new runs are told in turn.
        folder: where the earlier runs are.
        out: where the new runs go.
        by: the metric that decides, which an evaluation on the validation data may have measured; by default the
            criterion of each method.

    Raises:
        UsageError: if runs are missing, not finished or not evaluated, or nothing was tuned.
    """
    _check_judge(experiment, by)
    given = {name: value for name, value in options.items() if value is not None}
    for method in methods or experiment_class(experiment).methods[:1]:
        _check_names(experiment, method, given)
    if out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--out {out} is in the folder of --tuned-by: the new runs would be chosen from; give another")
    earlier = _read(experiment, given, folder)
    if methods is None:
        known = experiment_class(experiment).methods
        methods = [method for method in known if earlier.of(method) or _failed_at_once(folder, method)]
    missing = [text for method in methods for text in _missing(earlier, method)]
    if missing or not methods:
        _refuse(folder, missing or [f"there is no run of {earlier.title}"])
    return [_choice(experiment, method, given, grid, earlier, _judge(experiment, method, by)) for method in methods]


@dataclass(frozen=True)
class _Judge:
    """The metric that decides, and whether the larger (1) or the smaller (-1) is the better."""

    name: str
    sign: int

    def mean(self, summary: Summary, earlier: _Earlier) -> float:
        """Over the seeds of a setting; NaN if one is no number."""
        return statistics.fmean(self._value(record, earlier) for record in summary.records)

    def _value(self, record: Run, earlier: _Earlier) -> float:
        if self.name in record.validation:
            return record.validation[self.name]
        try:
            return read_evaluation(record.path / _EVALUATION, len(record.lines))[self.name]
        except (KeyError, ValueError) as error:  # not measured, or at another time, or nothing that can be read
            option = f" --annealed {_N_ANNEALED}" if self.name.endswith("annealed") else ""
            raise UsageError(
                f"--tuned-by {earlier.folder}: {earlier.name(record.path)} has not measured {self.name} on the validation "
                f"data after its last epoch: run sparsum evaluate {earlier.folder} --split validation{option}"
            ) from error


def _check_alike(method: str, earlier: _Earlier, judge: _Judge) -> None:
    """Raise if what was estimated with few samples, or for few images, would be compared with what was with many."""
    files = [record.path / _EVALUATION for record in earlier.of(method) if judge.name not in record.validation]
    found = [read_json(file) for file in files]
    kinds = {"n_samples": ("measured with {} samples", "--samples")}
    if judge.name.endswith("annealed"):
        kinds["n_annealed"] = ("annealed for {} images", "--annealed")
    for name, (how, option) in kinds.items():
        counts = sorted({metrics[name] for metrics in found if name in metrics})
        if len(counts) > 1:
            numbers = " and ".join(f"{n:g}" for n in counts)
            raise UsageError(
                f"--tuned-by {earlier.folder}: runs of {method} were {how.format(numbers)}, and cannot be compared; "
                f"run sparsum evaluate {earlier.folder} --split validation {option} {counts[-1]:g}"
            )


def _check_judge(experiment: str, by: str | None) -> None:
    """Raise if a metric is none that can decide."""
    kind = experiment_class(experiment)
    known = dict.fromkeys((kind.criterion, *kind.judges, *kind.own_criteria.values()))
    if by is not None and by not in known:
        raise UsageError(f"--by must be one of {', '.join(known)} for {experiment}, got {by!r}")


def _judge(experiment: str, method: str, by: str | None) -> _Judge:
    """What decides: by default the criterion of the method.

    Raises:
        UsageError: if it is what other methods are trained by, and this one never measures.
    """
    kind = experiment_class(experiment)
    owners = [other for other, criterion in kind.own_criteria.items() if criterion == by]
    if owners and method not in owners:
        raise UsageError(f"--by {by}: {method} has none; it is for {', '.join(owners)}, and --methods leaves out others")
    return _Judge(by or kind.criterion_of(method), kind.judges.get(by or "", 1))


def _check_names(experiment: str, method: str, given: dict[str, Any]) -> None:
    """Raise for a method or an option that there is not, rather than say that no run was told it."""
    try:
        make_args(experiment, method, given)
    except UsageError:
        raise
    except ValueError:
        pass  # a value that does not fit the presets may fit what was tuned


def _read(experiment: str, given: Mapping[str, Any], folder: pathlib.Path) -> _Earlier:
    """The runs that count, of folders alone; one that cannot be read is an error, since it may be any method's."""
    told = {name: value for name, value in given.items() if name not in FREE}
    told = {"data": args_class(experiment).data} | told
    records, problems = read_folders([folder])
    broken = set(problems) - {record.problem for record in records}  # an evaluation is of no matter here
    if broken:
        _refuse(folder, sorted(broken))
    ours = [record for record in records if record.experiment == experiment]
    complete = [dataclasses.replace(record, args=_heeded(experiment, record.args)) for record in ours]
    agreeing = [record for record in complete if _agrees(record, told)]
    return _Earlier(folder, without_repetitions(agreeing)[0], f"{experiment} with {_words(told)}")


def _heeded(experiment: str, told: dict[str, Any]) -> dict[str, Any]:
    """What a run was told, completed, and as it is by default where that makes no difference to its method."""
    defaults = with_defaults(experiment, {})
    return {
        name: value if uses(experiment, told["method"], name) else defaults.get(name, value)
        for name, value in with_defaults(experiment, told).items()
    }


def _agrees(record: Run, told: Mapping[str, Any]) -> bool:
    """Whether a run was told the same, as far as it makes a difference to its method."""
    return all(
        record.args.get(name) == value
        or _is_same_place(record, name, value)
        or not uses(record.experiment, record.args["method"], name)
        for name, value in told.items()
    )


def _is_same_place(record: Run, name: str, value: Any) -> bool:
    """Whether two names of data are of one folder."""
    return name == "data" and pathlib.Path(record.args[name]).resolve() == pathlib.Path(value).resolve()


def _missing(earlier: _Earlier, method: str) -> list[str]:
    """What keeps the runs of a method from being compared, in words."""
    records = earlier.of(method)
    found = [f"{earlier.name(path)} has failed" for path in _failed_at_once(earlier.folder, method)]
    for record in records:
        if not record.is_finished:
            how = "has failed at" if (record.path / FAILURE_NAME).exists() else "has done"
            found.append(f"{earlier.name(record.path)} {how} {len(record.lines)} of {record.args['epochs']} epochs")
    if found or not records:
        return found or [f"there is no run of {method} of {earlier.title}"]
    if len(lengths := sorted({record.args["epochs"] for record in records})) > 1:
        found.append(f"runs of {method} have {' and '.join(map(str, lengths))} epochs, and cannot be compared")
    summaries = summaries_by_setting(records)
    seeds = {record.args["seed"] for record in records}
    for summary in summaries:
        # The seeds that were left out may be the bad ones.
        absent = seeds - {record.args["seed"] for record in summary.records}
        found += [f"{method} with {_words(summary.setting)} has no run of seed {seed}" for seed in sorted(absent)]
    return found


def _failed_at_once(folder: pathlib.Path, method: str) -> list[pathlib.Path]:
    """The folders of runs that a sweep gave up before they said what they were told; their place tells the method."""
    failed = [file.parent.resolve() for file in sorted(folder.rglob(FAILURE_NAME))]
    return [path for path in failed if not RunFolder(path).exists() and method in path.parts[-3:-1]]


def _refuse(folder: pathlib.Path, missing: list[str]) -> NoReturn:
    named = missing[:_N_NAMED] + ([f"and {len(missing) - _N_NAMED} more"] if len(missing) > _N_NAMED else [])
    raise UsageError(
        f"--tuned-by {folder}: {'; '.join(named)}. Finish the sweep there first; "
        "to leave out a setting, remove its runs of all seeds, and to leave out a method, give --methods"
    )


def _choice(
    experiment: str, method: str, given: dict[str, Any], grid: Collection[str], earlier: _Earlier, judge: _Judge
) -> Choice:
    names = _tuned_options(experiment, method, earlier)
    summaries = summaries_by_setting(earlier.of(method))
    means = [judge.mean(summary, earlier) for summary in summaries]
    _check_alike(method, earlier, judge)
    numbers = [i for i, mean in enumerate(means) if not math.isnan(mean)]
    if not numbers:
        raise UsageError(f"--tuned-by {earlier.folder}: no run of {method} there has measured {judge.name}")
    best = max(numbers, key=lambda i: judge.sign * means[i])
    told = summaries[best].records[0].args
    values = {name: told.get(name) for name in names}
    among = f"the best of {len(summaries)} settings" if len(summaries) > 1 else "the only setting"
    reason = f"validation {judge.name} {means[best]:.4g}, {among} in {earlier.folder}"
    same = given | values | {name: told[name] for name in grid if name in told}
    others = _others(told, _heeded(experiment, dataclasses.asdict(make_args(experiment, method, same))))
    return Choice(method, values, f"{reason}, where it had {_words(others)}" if others else reason)


def _tuned_options(experiment: str, method: str, earlier: _Earlier) -> list[str]:
    """What differs among the runs of a method; where it has a single setting, what does among those of another.

    Where all methods have one setting, what differs between them. Always what the method uses, which may be nothing.
    """
    if names := _differing(experiment, earlier.of(method)):
        return sorted(names)
    within = [_differing(experiment, earlier.of(other)) for other in experiment_class(experiment).methods]
    names = set().union(*within) or _differing(experiment, earlier.records)
    if not names:
        raise UsageError(
            f"--tuned-by {earlier.folder}: nothing was tuned there, all runs of {earlier.title} have the same setting; "
            "give the folder of a sweep with --grid"
        )
    return sorted(name for name in names if uses(experiment, method, name))


def _differing(experiment: str, records: list[Run]) -> set[str]:
    """What can be tuned and is not the same in some runs."""
    return (set(grid_options(experiment)) - FREE).intersection(differing_options(records))


def _others(told: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
    """What the chosen runs were told otherwise than the new ones will be, though it was not tuned: worth a look."""
    names = (told.keys() & planned.keys()) - FREE - {"seed"}
    return {name: told[name] for name in sorted(names) if told[name] != planned[name]}


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
