"""The commands: ``sparsum --help``."""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from sparsum_experiments.checked import as_option
from sparsum_experiments.cli_options import (
    BatchSize,
    BitOrder,
    Bits,
    Budget,
    By,
    Data,
    DataDir,
    Decay,
    Device,
    Entropy,
    Epochs,
    Every,
    Experiment,
    K,
    Method,
    Out,
    Precision,
    Rate,
    Resume,
    Save,
    ScoreCentre,
    ScoreTemperature,
    Seed,
    SenderTemperature,
    Solver,
    SymbolInit,
    TunedBy,
    ViewDataDir,
    WarmEpochs,
)
from sparsum_experiments.data_command import data_command
from sparsum_experiments.demo import run_demo
from sparsum_experiments.errors import DivergedError, Stopped, UsageError
from sparsum_experiments.registry import uses
from sparsum_experiments.report import find_runs, page_file, read_comparisons, read_sections, sections_table, write_page
from sparsum_experiments.report import latex as as_latex
from sparsum_experiments.report import markdown as as_markdown
from sparsum_experiments.runs.folder import RunFolder
from sparsum_experiments.runs.records import write_records
from sparsum_experiments.sweep import sweep_command
from sparsum_experiments.training.evaluate import evaluate_run
from sparsum_experiments.training.loop import CHECKPOINT_SECONDS
from sparsum_experiments.training.start import resume_command, run

app = typer.Typer(
    help="The experiments of 'Efficient marginalization of discrete and structured latent variables via sparsity': "
    "train, evaluate and compare sparse sums with their peers. Start with 'sparsum demo'.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)

_out = Console(markup=False)
# What pages begin with.
_BEGIN = b"<!doctype html>"


@app.command()
def train(
    experiment: Experiment,
    method: Method,
    *,
    data: Data = None,
    data_dir: DataDir = None,
    epochs: Epochs = None,
    seed: Seed = None,
    lr: Rate = None,
    batch_size: BatchSize = None,
    entropy: Entropy = None,
    temperature_decay: Decay = None,
    temperature_every: Every = None,
    bits: Bits = None,
    k: K = None,
    budget: Budget = None,
    solver: Solver = None,
    bit_order: BitOrder = None,
    score_temperature: ScoreTemperature = None,
    score_centre: ScoreCentre = None,
    warm_epochs: WarmEpochs = None,
    symbol_init: SymbolInit = None,
    sender_temperature: SenderTemperature = None,
    device: Device = None,
    precision: Precision = None,
    out: Out = None,
    resume: Resume = False,
    checkpoint_seconds: Save = CHECKPOINT_SECONDS,
) -> None:
    """Train one model and write its metrics and checkpoints.

    Example: sparsum train ssvae sparse --epochs 5 --out runs/first
    """
    options = _options(locals())
    for name in (name for name, value in options.items() if value is not None and not uses(experiment, method, name)):
        _note(f"{as_option(name)} makes no difference to {method}")
    folder, metrics = run(experiment, method, options, out=out, resume=resume, checkpoint_seconds=checkpoint_seconds)
    last = metrics[-1]
    shown = ", ".join(f"{name} {value:.4g}" for name, value in last["validation"].items())
    _out.print(f"epoch {last['epoch'] + 1}: validation {shown}", highlight=False, soft_wrap=True)
    _out.print(f"written to {folder.path}; next: sparsum evaluate {folder.path}", highlight=False, soft_wrap=True)


@app.command()
def evaluate(
    runs: Annotated[list[pathlib.Path], typer.Argument(metavar="RUN...", help="Folders of runs, or above them.")],
    *,
    checkpoint: Annotated[str, typer.Option(help="last, or best by the validation data.")] = "last",
    split: Annotated[str, typer.Option(help="test or validation.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many examples, for a quick look.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="bitvector-vae: importance samples.")] = 1024,
    annealed: Annotated[
        int,
        typer.Option(min=0, help="bitvector-vae: measure by annealing, too, with chains for so many images, as 300; slow."),
    ] = 0,
    device: Device = None,
    data_dir: DataDir = None,
) -> None:
    """Measure trained models on test data: accuracy, success or bits per pixel, and their decoder calls.

    Each run keeps what was measured last on all test, or with --split on all validation data. What was annealed stays as
    long as the model and the number of --samples are the same.

    bitvector-vae: bits_per_dim by the paper's way of sampling (_paper), by samples around the posterior for all methods
    alike (_proposal; its sharpness is chosen on validation data), and annealed, the closest (_annealed); all are too large
    on average, and fewer samples make them larger. elbo is minus rate and distortion; bound is what topk-bound, wake-wake
    and distinct-bound are trained by; used_bits are not the same for all images.

    Example: sparsum evaluate runs/first
    """
    found = find_runs(runs)
    if not found:
        raise UsageError(f"{', '.join(map(str, runs))} holds no run: there is no config.json in or below it")
    problems = []
    for folder in found:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("evaluating", total=1.0)
            try:
                metrics = evaluate_run(
                    folder,
                    checkpoint=checkpoint,
                    split=split,
                    limit=limit,
                    n_samples=samples,
                    n_annealed=annealed,
                    device=device,
                    data_dir=data_dir,
                    progress=functools.partial(_advance, bar, task),
                )
            except (ValueError, OSError) as error:  # the others can still be measured
                problems.append(str(error) if str(folder) in str(error) else f"{folder}: {error}")
                continue
        _print_metrics(folder, metrics)
    if limit is not None:
        _out.print(f"of {limit} examples at most, so not kept with the runs", highlight=False, soft_wrap=True)
    if problems:
        raise ValueError("\n".join(problems))


def _advance(bar: Progress, task: TaskID, done: float) -> None:
    bar.update(task, completed=done)


def _print_metrics(folder: pathlib.Path, metrics: dict[str, float]) -> None:
    _out.print(str(folder), highlight=False, soft_wrap=True)  # a title would be broken where the table ends
    table = Table("metric", "value", "standard error")
    for name, value in metrics.items():
        if not name.endswith("_se"):
            error = metrics.get(f"{name}_se")
            table.add_row(name, f"{value:.5g}", "" if error is None else f"{error:.2g}")
    _out.print(table)


@app.command()
def sweep(
    experiment: Experiment,
    *,
    methods: Annotated[
        str | None,
        typer.Option(help="Some, with commas between them. [default: all; with --tuned-by, those with runs there]"),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try, as lr=1e-3,5e-4; may be repeated. A method to which one makes no difference is told none."
        ),
    ] = None,
    tuned_by: TunedBy = None,
    by: By = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; on a GPU they share it by MPS where it is there.")] = 1,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure each run on the test data when it is trained.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="List the runs with an estimate of their time; start none.")] = False,
    data: Data = None,
    data_dir: DataDir = None,
    epochs: Epochs = None,
    lr: Rate = None,
    batch_size: BatchSize = None,
    entropy: Entropy = None,
    temperature_decay: Decay = None,
    temperature_every: Every = None,
    bits: Bits = None,
    k: K = None,
    budget: Budget = None,
    solver: Solver = None,
    bit_order: BitOrder = None,
    score_temperature: ScoreTemperature = None,
    score_centre: ScoreCentre = None,
    warm_epochs: WarmEpochs = None,
    symbol_init: SymbolInit = None,
    sender_temperature: SenderTemperature = None,
    device: Device = None,
    precision: Precision = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="Folder above the runs. [default: runs/EXPERIMENT/sweep]")] = None,
) -> None:
    """Make many runs: methods x grid x seeds. The same command goes on where it stopped.

    Example: sparsum sweep ssvae --methods sparse,dense --grid lr=1e-3,5e-4 --seeds 3 --jobs 2
    """
    options = _options(locals())
    status = sweep_command(
        experiment,
        methods=methods,
        options=options,
        grid=grid or [],
        seeds=seeds,
        out=out,
        jobs=jobs,
        plan_only=plan,
        evaluate=evaluate,
        tuned_by=tuned_by,
        by=by,
    )
    raise typer.Exit(status)


@app.command()
def report(
    runs: Annotated[
        list[pathlib.Path], typer.Argument(metavar="RUNS...", help="Folders of runs or of their records, or above them.")
    ],
    *,
    out: Annotated[
        pathlib.Path | None, typer.Option("--out", "-o", help="The page. [default: report.html in the first folder]")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables of test metrics beside the paper's, and write no page.")
    ] = False,
    latex: Annotated[bool, typer.Option("--latex", help="The same for an article in LaTeX.")] = False,
    data_dir: ViewDataDir = None,
) -> None:
    """Write a page of tables and figures of all runs in some folders, or print tables for a README or an article.

    Runs and the records of 'sparsum record' may be mixed. Tables have means and standard errors over the seeds of finished
    and evaluated runs, the best in bold, what the paper reports, and the settings below. The page is one file that opens
    without a network. It also has the figures of the paper: curves over epochs, decoder calls, rate and distortion, time;
    and what the latent variables of the best run learned, where its folder has a checkpoint or 'sparsum record --latent'
    kept it.

    Example: sparsum report results -o report.html
    """
    if markdown or latex:
        if out is not None or (markdown and latex):
            raise UsageError("--markdown, --latex and --out are three ways to report: choose one")
        tables, problems = read_comparisons(runs)
        typer.echo((as_markdown if markdown else as_latex)(tables, problems))
        raise typer.Exit(0 if tables else 1)
    first = runs[0] if runs[0].is_dir() else runs[0].parent  # never in the place of a record
    file = _new_page(first if out is None else out)
    sections, problems = read_sections(runs)
    _out.print(sections_table(sections, problems))
    write_page(sections, problems, file, data_dir)
    _out.print(str(file), highlight=False, soft_wrap=True)
    raise typer.Exit(0 if sections else 1)


def _new_page(out: pathlib.Path) -> pathlib.Path:
    """The file of a page that is to be written.

    Raises:
        UsageError: if it is there and is no page, since what it holds may be needed: a record, say.
    """
    file = page_file(out)
    if not file.is_file():
        return file
    with file.open("rb") as old:
        begin = old.read(len(_BEGIN))
    if begin and begin.lower() != _BEGIN:
        raise UsageError(f"{file} is there and is no page: choose another --out, or remove it")
    return file


@app.command()
def record(
    runs: Annotated[list[pathlib.Path], typer.Argument(metavar="RUNS...", help="Folders of runs, or above them.")],
    *,
    out: Annotated[pathlib.Path, typer.Option(help="Folder of the records.")] = pathlib.Path("results"),
    variant: Annotated[str, typer.Option(help="How these runs differ from others of their method, for the name.")] = "",
    latent: Annotated[
        bool,
        typer.Option("--latent", help="Keep what latent variables learned, too: latent.json, of each setting's first seed."),
    ] = False,
    data_dir: ViewDataDir = None,
) -> None:
    """Write a small file for each run: what it was told and measured, without weights.

    With --latent a second file for each setting lets a report show samples, symbols or switchable bits without the run.

    All runs have to be finished and evaluated, and of one setting for each method. Others of a method get a --variant.

    Example: sparsum record runs/signal-game/sweep --out results
    """
    for file in write_records(runs, out, variant, latent=latent, data_dir=data_dir):
        _out.print(str(file), highlight=False, soft_wrap=True)


@app.command()
def demo(
    *,
    out: Annotated[pathlib.Path, typer.Option(help="Folder of the runs and the report.")] = pathlib.Path("runs/demo"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 2,
) -> None:
    """Train all three experiments on scikit-learn's digits: the sparse sum beside the dense sum and samplers."""
    raise typer.Exit(run_demo(out, jobs))


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options of a run among the arguments of a command."""
    others = {"experiment", "method", "out", "resume", "checkpoint_seconds"}
    others |= {"methods", "grid", "tuned_by", "by", "seeds", "jobs", "plan", "evaluate"}
    return {key: value for key, value in arguments.items() if key not in others}


def main() -> None:
    """Run a command; mistakes of its user become one line and exit status 2, a stopped run 130."""
    try:
        if sys.argv[1:2] == ["data"]:
            data_command(sys.argv[2:], "sparsum data")
        app()
    except (DivergedError, ImportError, OSError, ValueError) as error:
        _fail(str(error), 1 if isinstance(error, DivergedError) else 2)
    except Stopped as error:
        _fail(f"{error}\nto go on: {resume_command(RunFolder(error.path))}", 130)


def _fail(text: str, status: int) -> None:
    _note(text)
    sys.exit(status)


def _note(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
