"""The commands ``sparsum data list|get|check|features``. Heavy packages are imported when a command runs."""

from __future__ import annotations

import pathlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_path = click.Path(path_type=pathlib.Path)
_data_dir = click.option("--data-dir", type=_path, default="data", show_default=True, help="Folder of all data sets.")


@click.group("data")
def data_command() -> None:
    """List, download and check data sets."""


@data_command.command("list")
@_data_dir
def list_all(data_dir: pathlib.Path) -> None:
    """List the data sets, which experiments can use them, and where they were found."""
    from rich.table import Column, Table

    from sparsum_experiments import data
    from sparsum_experiments.terminal import Terminal

    table = Table("name", "experiments", "content", "size", Column("found in", overflow="fold"))
    for known in data.known(data_dir):
        size = f"{known.n_bytes / 2**20:.0f} MB" if known.n_bytes else ""
        found = known.found if known.found is not None else f"nowhere: sparsum data get {known.name} --data-dir {data_dir}"
        row = (known.name, ", ".join(known.experiments), known.content, size, found)
        table.add_row(*map(printable, row))
    Terminal().print(table)


@data_command.command()
@click.argument("name")
@_data_dir
def get(name: str, data_dir: pathlib.Path) -> None:
    """Download a data set: mnist or fashion-mnist.

    Its published mirrors are tried in order. A file is written only if its content has the published checksum.
    """
    from rich.progress import DownloadColumn

    from sparsum_experiments import data

    with _progress(name, DownloadColumn()) as progress:
        files = data.get(name, data_dir, progress=progress)
    lines = "\n".join(map(str, files)) or f"{name} comes with a package: there is nothing to download"
    click.echo(printable(lines))


@data_command.command()
@click.argument("name")
@_data_dir
def check(name: str, data_dir: pathlib.Path) -> None:
    """Check the files of a data set: digits, mnist, fashion-mnist or a folder.

    The exit status is 1 unless all are right.
    """
    from sparsum_experiments import data

    findings = data.check(name, data_dir)
    for finding in findings:
        click.echo(printable(f"{finding.state:9} {finding.file}  {finding.detail}"))
    if any(finding.state != "right" for finding in findings):
        sys.exit(1)


@data_command.command()
@click.argument("folder", type=_path)
@click.argument("out", type=_path)
@click.option("--network", required=True, help="MODULE:FUNCTION that returns a network from (n, 3, h, w) to (n, d).")
@click.option("--size", type=click.IntRange(1), default=224, show_default=True, help="Images are scaled to this size.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Images at a time.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
def features(folder: pathlib.Path, out: pathlib.Path, network: str, size: int, batch_size: int, device: str) -> None:
    """Compute the files of a signal game, OUT/train.npz and OUT/test.npz, from images, with a network of yours.

    FOLDER has a sub-folder of images for each concept.

    Example: sparsum data features photos features --network my_networks:vgg16
    """
    import torch
    from rich.progress import MofNCompleteColumn

    from sparsum_experiments import data

    n_gpus = torch.cuda.device_count()
    valid = ["cpu", *(["cuda"] if n_gpus else []), *(f"cuda:{i}" for i in range(n_gpus))]
    if device not in valid:
        raise UsageError(f"--device {device}: not available here; valid: {', '.join(valid)}")
    made = _network(network).to(device)
    with _progress("images", MofNCompleteColumn()) as progress:
        files = data.make_features(folder, made, out, size=size, batch_size=batch_size, device=device, progress=progress)
    click.echo(printable("\n".join(map(str, files))))


@contextmanager
def _progress(title: str, column: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from sparsum_experiments.terminal import Terminal

    columns = TextColumn("{task.description}", markup=False), BarColumn(), column, TimeRemainingColumn()
    with Progress(*columns, console=Terminal(stderr=True, markup=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _network(place: str) -> Any:
    """What the function that a user named returns; modules are searched for in the current folder, too."""
    if ":" not in place:
        raise UsageError(f"--network must be MODULE:FUNCTION, got {place!r}")
    sys.path.insert(0, "")
    try:
        found = pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--network {place}: {error}") from error
    made = found() if callable(found) else None
    if not hasattr(made, "to"):
        raise UsageError(f"--network {place}: expected a function that returns a torch.nn.Module, got {made or found!r}")
    return made
