"""The commands ``sparsum data list|get|check|features``."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sparsum_experiments import data
from sparsum_experiments.errors import UsageError

app = typer.Typer(help="List, download and check the data sets.", no_args_is_help=True, rich_markup_mode=None)

_out = Console(markup=False)

Folder = Annotated[pathlib.Path, typer.Option("--data-dir", help="Where the files of data sets are.")]
Name = Annotated[str, typer.Argument(help="mnist or fashion-mnist; for check also digits or a folder.")]


@app.command("list")
def list_all(data_dir: Folder = pathlib.Path("data")) -> None:
    """Say which data sets there are, what for, and where they were found."""
    table = Table("name", "experiments", "content", "size", "found in")
    for known in data.known(data_dir):
        size = f"{known.n_bytes / 2**20:.0f} MB" if known.n_bytes else ""
        found = known.found if known.found is not None else f"nowhere: sparsum data get {known.name} --data-dir {data_dir}"
        table.add_row(known.name, ", ".join(known.experiments), known.content, size, found)
    _out.print(table)


@app.command()
def get(name: Name, data_dir: Folder = pathlib.Path("data")) -> None:
    """Download a data set from its published mirrors, checked and whole; a download that was cut short goes on."""
    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        files = data.get(name, data_dir, progress=_shown(bar, name))
    for file in files:
        _out.print(str(file), highlight=False, soft_wrap=True)
    if not files:
        _out.print(f"{name} comes with a package: there is nothing to download", highlight=False)


@app.command()
def check(name: Name, data_dir: Folder = pathlib.Path("data")) -> None:
    """Check the files of a data set; the exit status is 1 unless all are right."""
    findings = data.check(name, data_dir)
    for finding in findings:
        _out.print(f"{finding.state:9} {finding.file}  {finding.detail}", highlight=False, soft_wrap=True, markup=False)
    if any(finding.state != "right" for finding in findings):
        sys.exit(1)


@app.command()
def features(
    folder: Annotated[pathlib.Path, typer.Argument(help="Images, one sub-folder for each concept.")],
    out: Annotated[pathlib.Path, typer.Argument(help="Where train.npz and test.npz are written.")],
    *,
    network: Annotated[str, typer.Option(help="MODULE:FUNCTION that returns a network from (n, 3, h, w) to (n, d).")],
    size: Annotated[int, typer.Option(min=1, help="Height and width that images are scaled to.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 64,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Make the files of the signal game from a folder of images, with a network that you have.

    Example: sparsum data features photos features --network my_networks:vgg16
    """
    made = _load(network)().to(device)
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        files = data.make_features(
            folder, made, out, size=size, batch_size=batch_size, device=device, progress=_shown(bar, "images")
        )
    for file in files:
        _out.print(str(file), highlight=False, soft_wrap=True)


def _shown(bar: Progress, title: str) -> Callable[[int, int], None]:
    task = bar.add_task(title, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)


def _load(place: str) -> Any:
    """The function that a user named; modules are looked for in the present folder, too."""
    module, colon, name = place.partition(":")
    if not colon:
        raise UsageError(f"--network must be MODULE:FUNCTION, got {place!r}")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--network {place}: {error}") from error
