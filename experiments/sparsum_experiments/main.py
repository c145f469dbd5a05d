"""The door of the command ``sparsum``, which says what is missing where a dependency is not installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command."""
    try:
        from sparsum_experiments import cli
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("sparsum"):
            raise
        sys.exit(f"the command sparsum needs the package {error.name}: pip install ./experiments in the repository")
    cli.main()


if __name__ == "__main__":
    main()
