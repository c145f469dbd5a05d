"""Time to import the library, compared with torch, each in new processes.

Run it with ``make bench`` or ``OMP_NUM_THREADS=1 python -m benchmarks.imports``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

PACKAGES = ("torch", "sparsum")
# Timed inside the process, so that starting the interpreter does not count.
PROGRAM = "import time; begin = time.perf_counter(); import {}; print(time.perf_counter() - begin)"


def seconds_to_import(package: str) -> float:
    """The time to import a package in a new process."""
    command = [sys.executable, "-c", PROGRAM.format(package)]
    # Write bytecode even if the environment disables it, as installed packages have it.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print the median times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="how many processes import each")
    turns = parser.parse_args().turns
    for package in PACKAGES:
        seconds_to_import(package)  # the first import writes bytecode and fills the disk cache
    # Alternate, so that other load on the machine affects both.
    samples = [[seconds_to_import(package) for package in PACKAGES] for _ in range(turns)]
    torch_alone, library = map(statistics.median, zip(*samples, strict=True))
    print(f"import torch    {1e3 * torch_alone:6.0f} ms")
    print(
        f"import sparsum  {1e3 * library:6.0f} ms, {library / torch_alone:.2f} times that (median of {turns} processes each)"
    )


if __name__ == "__main__":
    main()
