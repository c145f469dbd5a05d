"""The process of a sweep's run: `sparsum train`, then perhaps `sparsum evaluate`, for as long as the sweep lives.

Run as ``python -m sparsum_experiments.sweep_process FOLDER [--then-evaluate] ARGUMENT...``, with a pipe from the sweep as
standard input. Nothing is ever written into the pipe: it ends when the sweep ends, be it by SIGKILL, and then the run saves
and stops. The alternatives are specific to Linux (PR_SET_PDEATHSIG), or poll the id of the parent process.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
import time

from sparsum_experiments.main import main
from sparsum_experiments.runs import RunFolder

# How long a run may take to save after its sweep was killed.
_GRACE_SECONDS = 60.0


def run(folder: RunFolder, arguments: list[str]) -> None:
    """Start a run in a folder, or resume the one in it, and evaluate it if the first argument says so."""
    threading.Thread(target=_follow_sweep, daemon=True).start()
    is_evaluated = arguments[:1] == ["--then-evaluate"]
    with folder.locked(wait=True):  # until a process of an earlier sweep, which was killed just before, has saved
        resume = ["--resume"] if folder.exists() else []
    commands = [["train", *arguments[is_evaluated:], *resume], ["evaluate", "--", str(folder.path)]]
    for words in commands if is_evaluated else commands[:1]:
        sys.argv = ["sparsum", *words]  # which the config of the run keeps
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise


def _follow_sweep() -> None:
    """Wait for the end of the sweep; let the run save and stop, and end it if it does not."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    run(RunFolder(pathlib.Path(sys.argv[1])), sys.argv[2:])
