"""A process of a sweep: `sparsum train`, and `sparsum evaluate` if it is asked for, tied to the life of the sweep.

Run as ``python -m sparsum_experiments.sweep.child FOLDER [--then-evaluate] ARGUMENT...``, with a pipe from the sweep as its
standard input.
Nothing is ever written into the pipe. It ends when the sweep ends, however that happens, also by SIGKILL; then the run saves
and stops. Other ways need Linux (PR_SET_PDEATHSIG), or look again and again at who the parent is.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import sys
import threading
import time

from sparsum_experiments import cli
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep.process import EVALUATE

#: How long a run may take to save after the sweep was killed.
GRACE_SECONDS = 60.0


def main() -> None:
    """Train in a folder, or go on there if a run was begun in it, and perhaps evaluate."""
    folder, arguments = pathlib.Path(sys.argv[1]), sys.argv[2:]
    is_evaluated = arguments[:1] == [EVALUATE]
    threading.Thread(target=_follow_sweep, daemon=True).start()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        # Another process may still save this run, when a sweep was killed and begun again at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        resume = ["--resume"] if RunFolder(folder).exists() else []
        _run("train", *arguments[is_evaluated:], *resume)
        if is_evaluated:
            _run("evaluate", str(folder))


def _run(*arguments: str) -> None:
    """Run a command, which ends the process if it fails."""
    sys.argv = ["sparsum", *arguments]
    try:
        cli.main()
    except SystemExit as ended:
        if ended.code:
            raise


def _follow_sweep() -> None:
    """Wait for the end of the sweep; ask the run to save and stop, and end it if it does not."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
