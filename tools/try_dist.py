"""Installs what was built into empty environments and tries it there, by ``tools/smoke.py``.

``python -m tools.try_dist dist`` does so for the wheels in a folder, then for the sdists. The library is tried before the
experiments are there, so with its own dependencies alone. The dependencies are those that ``constraints.txt`` pins.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).parent.parent
NAMES = ("sparsum", "sparsum-experiments")


def built_file(folder: pathlib.Path, name: str, ending: str) -> pathlib.Path:
    """The only file of a distribution in a folder."""
    found = sorted(folder.glob(f"{name.replace('-', '_')}-*{ending}"))
    if len(found) != 1:
        raise ValueError(f"{folder} must have one file of {name} that ends in {ending}, and has {len(found)}")
    return found[0].resolve()


def try_files(folder: pathlib.Path, ending: str) -> None:
    """Install and try both distributions in a new environment."""
    with tempfile.TemporaryDirectory() as environment:
        venv.create(environment, with_pip=True)
        python = [f"{environment}/bin/python", "-I"]
        pip = [*python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        for name in NAMES:
            file = built_file(folder, name, ending)
            print(f"installing {file.name} into an empty environment", flush=True)
            subprocess.run([*pip, "install", "--constraint", ROOT / "constraints.txt", file], check=True, cwd=environment)
            subprocess.run([*python, ROOT / "tools" / "smoke.py", name], check=True, cwd=environment)
        subprocess.run([*pip, "check"], check=True, cwd=environment)


def main() -> int:
    """Try the wheels and the sdists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    try:
        for ending in (".whl", ".tar.gz"):
            try_files(folder, ending)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
