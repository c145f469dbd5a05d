"""The commands: ``sparsum --help``.

Options of runs are made from the ``Args`` of each experiment. click and not typer: these options are known at run time only.
Nothing here imports torch before a command runs, so that help is there at once.
"""

from __future__ import annotations

import functools
import pathlib
import shlex
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from sparsum_experiments.data_command import data_command
from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import printable
from sparsum_experiments.registry import (
    EXPERIMENTS,
    NAMES,
    check_method,
    experiment_class,
    experiment_options,
    general_presets,
    hint,
    uses,
)

if TYPE_CHECKING:
    from sparsum_experiments.options import Option

_PATH = click.Path(path_type=pathlib.Path)
_COUNT = click.IntRange(min=1)
_DEVICE = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="[default: as the run was started]")
_RUN_DATA = click.option("--data-dir", help="The folder of all data sets. [default: as each run was started]")


def say(text: str, *, error: bool = False) -> None:
    """Print a line as it is; control characters in it do not reach the terminal."""
    from sparsum_experiments.terminal import Terminal

    Terminal(stderr=error).print(printable(text), highlight=False, soft_wrap=True)


class _Experiments(click.Group):
    """A command for each experiment, whose options are only looked up when it is called."""

    def __init__(self, *args: Any, make: Callable[[str], click.Command], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._make = functools.lru_cache(make)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._make(cmd_name) if cmd_name in NAMES else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-"):
            experiment_class(args[0])  # its error has a hint
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Experiments"):
            formatter.write_dl(list(EXPERIMENTS.items()))
        formatter.write(f"\n  '{ctx.command_path} {NAMES[0]} --help' lists the methods and options of an experiment.\n")


class _Unquoted(click.Command):
    """A command that raises errors of use with the option's name, as the other messages have it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [flag for each in self.get_params(ctx) for flag in each.opts if flag.startswith("--")]
            name = error.option_name
            raise UsageError(f"{name} is not an option of '{ctx.command_path}'{hint(name, known)}") from None
        except click.MissingParameter as error:
            raise UsageError(f"{error.format_message()} See '{ctx.command_path} --help'.") from None
        except click.BadParameter as error:
            raise UsageError(f"{error.param.opts[0] if error.param else 'option'}: {error.message}") from None


def _flag(experiment: str, option: Option) -> click.Option:
    """An option of an experiment's Args on the command line."""
    known = experiment_class(experiment).methods
    users = [method for method in known if option.is_used_by(method)]
    others = [method for method in known if method not in users]
    about = option.help
    if others:
        about += f" (only {', '.join(users)})" if len(users) < len(others) else f" (not {', '.join(others)})"
    presets = [f"{name}: {value}" for name, value in general_presets(experiment, option.name).items()]
    if option.default not in (None, "") and "[" not in about:
        about += f" [default: {'; '.join([str(option.default), *presets])}]"
    return click.Option([option.flag], metavar="|".join(option.choices) or None, help=about, type=_Parsed(option))


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # not generic in all versions
    """A value in the type of its option."""

    def __init__(self, option: Option) -> None:
        self.option = option
        kinds = typing.get_args(option.kind) or (option.kind,)
        self.name = "integer" if int in kinds else "number" if float in kinds else "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.option.parse(value) if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        return click.Choice(self.option.choices).shell_complete(ctx, param, incomplete)


def _methods_help(experiment: str) -> str:
    from sparsum_experiments.experiment import METHODS

    lines = "".join(f"  {method:17} {METHODS[method]}\n" for method in experiment_class(experiment).methods)
    return f"\b\nMethods:\n{lines}\nSome methods have presets in place of the defaults of options."


@click.group(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="sparsum-experiments", prog_name="sparsum-experiments")
def app() -> None:
    """The experiments of 'Efficient marginalization of discrete and structured latent variables via sparsity'.

    Train, evaluate and compare sparse sums with their peers. Start with 'sparsum demo'.
    """


app.add_command(data_command)


def _train_command(experiment: str) -> click.Command:
    from sparsum_experiments.training.loop import CHECKPOINT_SECONDS

    method = click.Argument(["method"])
    out = click.Option(["--out"], type=_PATH, help="The folder of the run. [default: runs/EXPERIMENT/...]")
    resume = click.Option(["--resume"], is_flag=True, help="Continue the run in --out.")
    save = click.Option(
        ["--checkpoint-seconds"],
        type=click.FloatRange(min=0),
        default=CHECKPOINT_SECONDS,
        help="How often to save within an epoch; a killed run loses no more.",
    )
    until = click.Option(
        ["--until"], type=_COUNT, metavar="EPOCH", help="Pause after this many of the --epochs; --resume continues."
    )
    first = experiment_class(experiment).methods[0]
    about = (
        f"Train one model of {experiment} and write its metrics and checkpoints.\n\n"
        f"Example: sparsum train {experiment} {first} --epochs 5 --out runs/my-{experiment}\n\n{_methods_help(experiment)}"
    )
    params = [
        method,
        *(_flag(experiment, each) for each in experiment_options(experiment).values()),
        out,
        resume,
        save,
        until,
    ]
    return _Unquoted(experiment, params=params, callback=functools.partial(_train, experiment), help=about)


def _train(
    experiment: str,
    method: str,
    out: pathlib.Path | None,
    resume: bool,
    checkpoint_seconds: float,
    until: int | None,
    **options: Any,
) -> None:
    from sparsum_experiments.runs import SilentFolder
    from sparsum_experiments.training.start import run

    check_method(experiment, method)
    known = experiment_options(experiment)
    for name in (name for name, value in options.items() if value is not None and not uses(experiment, method, name)):
        say(f"{known[name].flag} makes no difference to {method}", error=True)
    folder, metrics = run(
        experiment, method, options, out=out, resume=resume, checkpoint_seconds=checkpoint_seconds, until=until
    )
    if isinstance(folder, SilentFolder):  # another process of this run says it
        return
    if metrics:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics[-1]["validation"].items())
        say(f"epoch {metrics[-1]['epoch'] + 1}: validation {shown}")
    say(f"written to {folder.path}; next: sparsum evaluate {shlex.quote(str(folder.path))}")


app.add_command(
    _Experiments("train", make=_train_command, help="Train one model: sparsum train EXPERIMENT METHOD [OPTIONS].")
)


@app.command(cls=_Unquoted, short_help="Measure trained models on test data.")
@click.argument("runs", nargs=-1, required=True, type=_PATH, metavar="RUN...")
@click.option("--checkpoint", type=click.Choice(["last", "best"]), default="last")
@click.option("--split", type=click.Choice(["test", "validation"]), default="test")
@click.option("--limit", type=_COUNT, help="At most this many examples, for a quick look.")
@click.option("--samples", type=click.IntRange(min=2), default=1024, help="bitvector-vae: samples of importance sampling.")
@click.option(
    "--annealed",
    type=click.IntRange(min=0),
    default=0,
    show_default=False,
    help="bitvector-vae: also estimate this many images by annealed importance sampling, such as 300; slow.",
)
@_DEVICE
@_RUN_DATA
def evaluate(runs: tuple[pathlib.Path, ...], samples: int, annealed: int, limit: int | None, **options: Any) -> None:
    """Measure trained models on test data: accuracy, success or bits per pixel, and their decoder calls.

    RUN is the folder of a run, or a folder above several. Each run keeps its latest metrics of all test data, or with
    --split of all validation data. Annealed estimates are kept while the model and the number of --samples are the same.

    bitvector-vae: bits_per_dim by the paper's estimator (_paper), by importance sampling around the posterior for all
    methods alike (_proposal; its sharpness is chosen on validation data), and annealed, the closest (_annealed); all are
    upper bounds on average, and fewer samples make them larger. elbo is minus rate and distortion; bound is the objective
    of topk-bound, wake-wake and distinct-bound; used_bits are not the same for all images.

    Example: sparsum evaluate runs/first
    """
    from sparsum_experiments.runs import find_runs
    from sparsum_experiments.terminal import Terminal
    from sparsum_experiments.training.evaluate import evaluate_run
    from sparsum_experiments.training.progress import evaluation_bar, metrics_table

    found = find_runs(runs)
    if not found:
        raise UsageError(f"{', '.join(map(str, runs))} does not hold a run: there is no config.json in or below it")
    problems = []
    for folder in found:
        try:
            with evaluation_bar() as progress:
                metrics = evaluate_run(
                    folder, n_samples=samples, n_annealed=annealed, limit=limit, progress=progress, **options
                )
        except (ValueError, OSError) as error:  # the others can still be measured
            problems.append(str(error) if str(folder) in str(error) else f"{folder}: {error}")
            continue
        here = pathlib.Path.cwd()
        say(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))
        Terminal(markup=True).print(metrics_table(metrics))
    if limit is not None:
        say(f"of at most {limit} examples, so not kept with the runs")
    if problems:
        raise ValueError("\n".join(problems))


def _sweep_command(experiment: str) -> click.Command:
    about = (
        "Make many runs: methods x grid x seeds. The same command continues where it stopped.\n\n"
        f"Example: sparsum sweep {experiment} --methods sparse,dense --grid lr=1e-3,5e-4 --seeds 3 --jobs 2\n\n"
        f"{_methods_help(experiment)}"
    )
    kind = experiment_class(experiment)
    metrics = ", ".join(dict.fromkeys((kind.criterion, *kind.own_criteria.values(), *kind.judges)))
    params: list[click.Parameter] = [
        click.Option(["--methods"], help="Separated by commas. [default: all; with --tuned-by, those with runs there]"),
        click.Option(
            ["--grid"],
            multiple=True,
            metavar="NAME=VALUE,VALUE",
            help="Values to try; may be repeated. Methods that ignore an option are not swept over it.",
        ),
        click.Option(
            ["--search"],
            type=_COUNT,
            metavar="N",
            help="Draw N settings for each method from --grid, which may have ranges such as lr=1e-4..1e-2, and stop "
            "bad ones early: after a part of the epochs, the best third by the validation criterion continues.",
        ),
        click.Option(
            ["--tuned-by"],
            type=_PATH,
            metavar="FOLDER",
            help="Each method takes the setting that was best on the validation data among the runs in or below FOLDER, "
            "those of an earlier sweep with --grid that agree with the options given here.",
        ),
        click.Option(
            ["--by"],
            metavar="METRIC",
            help=f"The metric of --tuned-by: {metrics}; those that training does not measure need 'sparsum evaluate --split "
            "validation'. [default: the first, or the bound that a method is trained by]",
        ),
        click.Option(["--seeds"], type=_COUNT, default=1, help="How many, from 0."),
        click.Option(
            ["--jobs"],
            type=_COUNT,
            help="Runs at a time; on a GPU they share it by MPS where that is installed. "
            "[default: one per core on a CPU, 1 on a GPU]",
        ),
        click.Option(
            ["--ray"],
            is_flag=False,
            flag_value="local",
            metavar="[ADDRESS]",
            help="Hand the runs to Ray: one of this machine's own, or that at ADDRESS, 'auto' or HOST:PORT. One thread "
            "per run unless OMP_NUM_THREADS is set; --jobs runs share a GPU. All nodes must share the file system of --out.",
        ),
        click.Option(["--evaluate"], is_flag=True, help="Measure each run on the test data when it is trained."),
        click.Option(
            ["--plan", "plan_only"], is_flag=True, help="List the runs with an estimate of their time; start none."
        ),
        click.Option(["--out"], type=_PATH, help="The folder above the runs. [default: runs/EXPERIMENT/sweep]"),
        *(_flag(experiment, option) for name, option in experiment_options(experiment).items() if name != "seed"),
    ]
    return _Unquoted(experiment, params=params, callback=functools.partial(_sweep, experiment), help=about)


def _sweep(experiment: str, **words: Any) -> None:
    from sparsum_experiments.sweep import sweep_command

    known = experiment_options(experiment)
    options = {name: words.pop(name) for name in list(words) if name in known}
    raise SystemExit(sweep_command(experiment, options=options, **words))


app.add_command(_Experiments("sweep", make=_sweep_command, help="Make many runs: sparsum sweep EXPERIMENT [OPTIONS]."))


@app.command(cls=_Unquoted, short_help="Write a page of runs, or print tables.")
@click.argument("runs", nargs=-1, required=True, type=_PATH, metavar="RUNS...")
@click.option("--out", "-o", type=_PATH, help="The page. [default: report.html in the first folder]")
@click.option("--markdown", is_flag=True, help="Print tables of test metrics beside the paper's, and write no page.")
@click.option("--latex", is_flag=True, help="The same for an article in LaTeX.")
@_RUN_DATA
def report(
    runs: tuple[pathlib.Path, ...], out: pathlib.Path | None, markdown: bool, latex: bool, data_dir: str | None
) -> None:
    """Write a page of tables and figures of all runs in some folders, or print tables for a README or an article.

    RUNS are folders of runs or of records of 'sparsum record', or folders above them, in any mix. Tables have means and
    standard errors over the seeds of finished and evaluated runs, the best in bold, the paper's numbers, and the settings
    below. The page is one file that opens without a network. It also has the paper's figures (curves over epochs, decoder
    calls, rate and distortion, time) and what the latent variables of the best run learned, if its folder has a checkpoint
    or 'sparsum record --latent' kept it. It shows runs of other training loops, too: see
    sparsum_experiments.runs.RunWriter.

    Example: sparsum report results -o report.html
    """
    from sparsum_experiments import report as reports
    from sparsum_experiments.terminal import Terminal

    if markdown or latex:
        if out is not None or (markdown and latex):
            raise UsageError("--markdown, --latex and --out are three ways to report: choose one")
        tables, problems = reports.read_comparisons(runs)
        click.echo((reports.markdown if markdown else reports.latex)(tables, problems))
        raise SystemExit(0 if tables else 1)
    first = runs[0] if runs[0].is_dir() else runs[0].parent  # never in the place of a record
    file = reports.page_file(first if out is None else out)
    reports.check_page_file(file)
    sections, problems = reports.read_sections(runs)
    Terminal(markup=True).print(reports.sections_table(sections, problems))
    reports.write_page(sections, problems, file, data_dir)
    say(str(file))
    raise SystemExit(0 if sections else 1)


@app.command(cls=_Unquoted, short_help="Add runs to the records that are kept.")
@click.argument("runs", nargs=-1, required=True, type=_PATH, metavar="RUNS...")
@click.option("--out", type=_PATH, default="results", help="The folder of the records.")
@click.option(
    "--variant", default="", show_default=False, help="How these runs differ from others of their method, in a word."
)
@click.option("--latent", is_flag=True, help="Also keep what latent variables learned, of each setting's first seed.")
@_RUN_DATA
def record(runs: tuple[pathlib.Path, ...], out: pathlib.Path, variant: str, latent: bool, data_dir: str | None) -> None:
    """Add runs to the records that are kept: the config and metrics of each, without weights.

    The records of an experiment are the lines of OUT/EXPERIMENT.jsonl.gz. With --latent, a file for each setting lets a
    report show samples, symbols or switchable bits without the run.

    Every run must be finished and evaluated, with one setting per method; runs with other settings get a --variant.

    Example: sparsum record runs/signal-game/sweep --out results
    """
    from sparsum_experiments.report.recording import record_runs

    for line in record_runs(runs, out, variant, latent=latent, data_dir=data_dir):
        say(line)


@app.command(cls=_Unquoted, short_help="Train all experiments on digits.")
@click.option("--out", type=_PATH, default="runs/demo", help="The folder of the runs and the report.")
@click.option("--jobs", type=_COUNT, default=2, help="Runs at a time.")
def demo(out: pathlib.Path, jobs: int) -> None:
    """Train all three experiments on scikit-learn's digits: the sparse sum beside the dense sum and samplers."""
    from sparsum_experiments.demo import run_demo

    raise SystemExit(run_demo(out, jobs))


@app.command(cls=_Unquoted)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in a shell.

    Example: eval "$(sparsum completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "sparsum", "_SPARSUM_COMPLETE").source())
