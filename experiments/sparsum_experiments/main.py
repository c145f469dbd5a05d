"""The entry point of the command ``sparsum``: errors of its users become one message and an exit status."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main(words: list[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 if it succeeded, 1 if a run diverged, 2 for a wrong use, 130 if it was stopped."""
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        if _is_being_imported("torch"):  # its C++ code would abort on an exception; nothing has begun yet
            os._exit(130)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        _run(words)
    except BaseException as error:
        # Libraries that are being imported may turn an interrupt into an error of their own.
        if interrupts or isinstance(error, KeyboardInterrupt):
            _leave(130)
            sys.exit(130)
        if isinstance(error, SystemExit):
            _leave(error.code)
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(status: object) -> None:
    """End at once a process that has joined others: nothing is left to do, and threads of torch can block its normal end."""
    ranks = sys.modules.get("sparsum_experiments.training.ranks")
    if ranks is None or ranks.joined_ranks() is None:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _run(words: list[str] | None) -> NoReturn:
    try:
        import click

        from sparsum_experiments import cli
        from sparsum_experiments.errors import DivergedError, LostRankError, Stopped
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("sparsum"):
            raise
        sys.exit(f"the command sparsum needs the package {error.name}: pip install ./experiments in the repository")
    try:
        sys.exit(cli.app.main(words, prog_name="sparsum", standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except click.Abort:
        sys.exit(130)
    except Stopped as error:
        from sparsum_experiments.runs import RunFolder
        from sparsum_experiments.training.ranks import joined_ranks
        from sparsum_experiments.training.start import resume_command

        if (ranks := joined_ranks()) and not ranks.is_first:  # which says it for all
            sys.exit(130)
        _fail(f"{error}\nto continue: {resume_command(RunFolder(error.path))}", 130)
    except (DivergedError, LostRankError) as error:
        _fail(str(error), 1)
    except (ImportError, OSError, ValueError) as error:
        _fail(str(error), 2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        _fail(
            f"out of memory: {str(error).splitlines()[0] if str(error) else 'of the machine'}; try a smaller --batch-size", 1
        )


def _fail(text: str, status: int) -> NoReturn:
    from sparsum_experiments.cli import say

    say(text, error=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
