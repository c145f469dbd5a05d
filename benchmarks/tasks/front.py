"""The table of the front page, from the records of all tasks: ``python -m benchmarks.tasks.front``.

It prints the table, and ``--write`` puts it into README.md and docs/tasks/index.md.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.tasks.__main__ import task_class
from benchmarks.tasks.records import FOLDER, PAGES, Records, cell, write_page
from benchmarks.tasks.task import Trial

README = pathlib.Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True)
class Headline:
    """A line of the table: one setting of a task, and one metric."""

    task: str  # its name, which is that of its page, too
    setting: str
    title: str  # the problem, for somebody who has not seen the page
    metric: str
    unit: str  # what the metric is, as readers know it
    published: str  # the best published figure, with its source; in words if there is none
    ours: tuple[str, ...]  # the rows that sum exactly
    samplers: tuple[str, ...]  # the rows that sample or relax; empty if none of them learns
    is_smaller_better: bool = False
    samplers_setting: str = ""  # if it is not the same: where they are better


#: In the order of the table.
HEADLINES: tuple[Headline, ...] = (
    Headline(
        "binary-vae",
        "50,000 steps",
        "VAE with 200 bits, binarised MNIST, 50,000 steps",
        "bound_100",
        "100-sample bound, nats",
        "",
        ("distinct_bound (30)", "SparseMAP", "topk_bound (30)"),
        ("DisARM (2)", "LeaveOneOut (30)", "Gumbel-softmax (1)", "LeaveOneOut (2)", "wake_wake (30)", "vimco (30)"),
    ),
    Headline(
        "binary-vae",
        "1,000,000 steps",
        "the same, 1,000,000 steps",
        "bound_100",
        "100-sample bound, nats",
        "-98.72 (RODEO)",
        ("distinct_bound (30)",),
        ("DisARM (2)",),
    ),
    Headline(
        "digit-sums",
        "N=1",
        "MNIST digits from the sums of two",
        "test",
        "accuracy of sums",
        "97.90% (DeepStochLog)",
        ("exact", "top-k", "SparseMAP"),
        ("REINFORCE",),
    ),
    Headline(
        "digit-sums",
        "N=4",
        "MNIST digits from the sums of two four-digit numbers",
        "test",
        "accuracy of sums",
        "92.70% (DeepStochLog)",
        ("exact", "top-k", "SparseMAP"),
        (),
    ),
    Headline(
        "large-k",
        "100,000",
        "routing among 100,000 options, 200 steps",
        "accuracy",
        "accuracy",
        "",
        ("sparse", "sparse, index", "top-k"),
        ("reinforce", "leave-one-out", "straight-through"),
    ),
    Headline(
        "codes",
        "8 x 4",
        "VAE of Fashion-MNIST with 8 x 4 codes",
        "log_likelihood",
        "log p(x), nats",
        "",
        ("sparse", "distinct_bound"),
        ("leave-one-out", "reinmax", "reinmax, 8 calls", "straight-through", "gumbel-softmax"),
    ),
    Headline(
        "pixel-subsets",
        "50 of 784 pixels",
        "explaining a classifier by 50 of 784 pixels",
        "agreement",
        "agreement with the classifier",
        "",
        ("sparse", "sparse, spread 32", "top-k"),
        ("simple", "imle, step 1", "imle, step 10", "leave-one-out", "gumbel top-k, 0.5", "gumbel top-k, 0.1"),
    ),
    Headline(
        "listops",
        "ScoreNorm",
        "values of expressions with latent trees",
        "test_accuracy",
        "accuracy",
        "",
        ("SparseMAP", "SparseMAP, active set", "top-k (8)"),
        (
            "self-critic (2)", "leave-one-out (8)", "I-MLE", "SIMPLE", "straight-through", "perturbed marginals",
        ),
        samplers_setting="plain scores",
    ),
    Headline(
        "equal-time",
        "game, 100x",
        "signal game with an expensive receiver, 15 s of one thread",
        "test",
        "success, %",
        "",
        ("sparse",),
        ("self-critic", "leave-one-out", "straight-through", "gumbel-softmax"),
    ),
    Headline(
        "equal-time",
        "bits, 100x",
        "VAE of 32 bits with an expensive decoder, 15 s of one thread",
        "test",
        "100-sample bound, nats",
        "",
        ("sparse", "top-k", "distinct-bound"),
        ("self-critic", "leave-one-out", "disarm", "straight-through", "gumbel-softmax"),
    ),
)  # fmt: skip


def front(headlines: Iterable[Headline] = HEADLINES, folder: pathlib.Path = FOLDER) -> str:
    """Markdown: the best row of ours beside the best sampler and the best published figure."""
    lines = ["| task | metric | best published | best sampler here | ours |", "| --- | --- | --- | --- | --- |"]
    for headline in headlines:
        found = Records(folder / f"{headline.task}.jsonl").read()
        theirs = headline.samplers_setting or headline.setting
        sampler = _best(headline, theirs, headline.samplers, found) if headline.samplers else "none trained"
        best = [sampler, _best(headline, headline.setting, headline.ours, found)]
        link = f"[{headline.title}](docs/tasks/{headline.task}.md)"
        lines.append(f"| {link} | {headline.unit} | {headline.published} | {' | '.join(best)} |")
    return "\n".join(lines)


def _best(headline: Headline, setting: str, rows: tuple[str, ...], found: Mapping[Trial, Mapping[str, Any]]) -> str:
    """The best of some rows: the mean over its seeds, and its name. Rows with fewer seeds than others are no candidates."""
    values = {
        row: [
            values["metrics"][headline.metric]
            for trial, values in found.items()
            if (trial.setting, trial.row, trial.is_tuning) == (setting, row, False)
        ]
        for row in rows
    }
    n_seeds = max(map(len, values.values()), default=0)
    means = {
        row: statistics.mean(each) for row, each in values.items() if each and len(each) == n_seeds and None not in each
    }
    if not means:
        raise ValueError(f"{headline.task}, {setting}: none of the rows {', '.join(rows)} has a result in {FOLDER.name}")
    best = (min if headline.is_smaller_better else max)(means, key=lambda row: means[row])
    column = task_class(headline.task).columns[headline.metric]
    return f"{cell(column, values[best])} ({best})"


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the table, or write it into its pages."""
    parser = argparse.ArgumentParser("python -m benchmarks.tasks.front", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into README.md and docs/tasks/index.md")
    text = front()
    if parser.parse_args(None if arguments is None else list(arguments)).write:
        write_page(README, text)
        write_page(PAGES / "index.md", text.replace("(docs/tasks/", "("))
    print(text)


if __name__ == "__main__":
    main()
