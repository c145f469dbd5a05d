"""Whether what is installed works, run by the Python of an environment that has it.

``ENVIRONMENT/bin/python -I tools/smoke.py sparsum`` tries the library, ``... sparsum-experiments`` the command ``sparsum``.
It imports nothing of the repository.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile


def check_files(name: str) -> str:
    """The version of a distribution that holds its own package and the licence, and no tests."""
    distribution = importlib.metadata.distribution(name)
    package = name.replace("-", "_")
    folder = f"{package}-{distribution.version}.dist-info"
    files = {file.as_posix() for file in distribution.files or () if "__pycache__" not in file.parts}
    foreign = {
        file for file in files if not file.startswith((f"{package}/", f"{folder}/")) and not file.endswith("bin/sparsum")
    }
    assert not foreign, f"{name} brings files that are not its own: {sorted(foreign)}"
    tests = {file for file in files if "tests" in pathlib.PurePath(file).parts}
    assert not tests, f"{name} brings tests: {sorted(tests)}"
    missing = {f"{package}/__init__.py", f"{package}/py.typed", f"{folder}/licenses/LICENSE"} - files
    assert not missing, f"{name} lacks {sorted(missing)}"
    return distribution.version


def check_library() -> None:
    """It imports torch and no other package, and differentiates a sum over a sparse distribution."""
    version = check_files("sparsum")
    program = "import json, sys, torch; old = {*sys.modules}; import sparsum; print(json.dumps([*{*sys.modules} - old]))"
    added = json.loads(run(sys.executable, "-I", "-c", program))
    packages = {module.partition(".")[0] for module in added} - sys.stdlib_module_names
    assert packages == {"sparsum"}, f"import sparsum brings {sorted(packages)}"

    import torch

    import sparsum

    assert sparsum.__file__.startswith(sys.prefix), f"sparsum is imported from {sparsum.__file__}"
    assert sparsum.__version__ == version, f"sparsum {sparsum.__version__} is installed as {version}"
    scores = torch.tensor([[0.4, -0.3, 0.1], [2.0, -2.0, 0.2]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)

    def mean_square(scores: torch.Tensor) -> torch.Tensor:
        q = sparsum.sparsemap(scores, sparsum.Bits(3))
        mean: torch.Tensor = q.expect(lambda z, _: (z.double() @ weight).square())
        return mean

    assert torch.autograd.gradcheck(mean_square, scores)
    print(f"sparsum {version} works, with torch {torch.__version__} and Python {sys.version.split()[0]}")


def check_experiments() -> None:
    """The command says its version, trains for a few steps and makes a page."""
    version = check_files("sparsum-experiments")
    assert version == importlib.metadata.version("sparsum"), "the versions of both distributions differ"
    command = os.path.join(sysconfig.get_path("scripts"), "sparsum")
    said = run(command, "--version")
    assert version in said, f"sparsum --version says {said}"
    run(command, "train", "ssvae", "sparse", "--epochs", "1", "--batch-size", "500", "--out", "runs/first")
    run(command, "report", "runs", "--out", "report.html")
    assert "</html>" in pathlib.Path("report.html").read_text(encoding="utf-8")
    print(f"sparsum-experiments {version} works")


def run(*command: str) -> str:
    """What a command prints; if it fails, what it said is shown."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Try one distribution in an empty folder."""
    checks = {"sparsum": check_library, "sparsum-experiments": check_experiments}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distribution", choices=checks)
    check = checks[parser.parse_args().distribution]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check()
        os.chdir("/")


if __name__ == "__main__":
    main()
