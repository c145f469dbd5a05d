"""What `import sparsum` brings into a process, beyond torch."""

from __future__ import annotations

import json
import subprocess
import sys

ESTIMATE = "sparsum.estimators.ScoreFunction()(torch.zeros(2, 3), sparsum.Bits(3), lambda z, row: z.sum(-1))"
MATCH = "sparsum.Matching(2).argmax(torch.eye(2))"


def modules_after(*statements: str) -> set[str]:
    """The modules of a fresh process after some statements."""
    program = "\n".join([*statements, "import json, sys", "print(json.dumps(list(sys.modules)))"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_library_imports_torch_and_little_else() -> None:
    torch_alone = modules_after("import torch")
    added = modules_after("import sparsum") - torch_alone
    assert "sparsum.estimators" in added
    assert "torch._dynamo" not in added
    # Compilers and solvers wait until they are needed; numpy is not used at all.
    assert not packages(added) & {"scipy", "triton", "sympy", "numpy"}
    assert packages(added) - sys.stdlib_module_names == {"sparsum"}


def test_the_first_estimate_does_not_import_the_compiler() -> None:
    assert "torch._dynamo" not in modules_after("import sparsum, torch", ESTIMATE)


def test_the_first_matching_imports_its_solver() -> None:
    assert "scipy.optimize" in modules_after("import sparsum, torch", MATCH)


def test_the_module_for_pyro_says_what_to_install() -> None:
    """Without Pyro, which `None` in the table of modules stands for."""
    program = "import sys; sys.modules['pyro'] = None; import sparsum.pyro"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "ImportError: sparsum.pyro needs pyro-ppl, which is not installed: pip install 'sparsum[pyro]'\n"
    )
