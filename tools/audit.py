"""Known vulnerabilities in what is installed, and risky code in what is written: pip-audit and bandit.

``python -m tools.audit`` ends with 0 if both find nothing, with 1 if one finds something, and with 2 if packages could not
be looked up, which is not the same as being clean.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
CODE = ("sparsum", "experiments/sparsum_experiments", "tools", "benchmarks", "examples")


def verdict(found: dict[str, Any]) -> tuple[int, str]:
    """The exit status, and what pip-audit found in words, from its JSON.

    >>> verdict({"dependencies": [{"name": "a", "version": "1", "vulns": []}]})
    (0, 'pip-audit: 1 of 1 pinned packages looked up, no known vulnerability')
    """
    every = found["dependencies"]
    known = [each for each in every if "vulns" in each]
    lines = [
        f"{each['name']} {each['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version yet'}"
        for each in known
        for found in each["vulns"]
    ]
    n = f"{len(known)} of {len(every)} pinned packages looked up"
    if lines:
        return 1, "\n".join([f"pip-audit: {n}, {len(lines)} known vulnerabilities", *lines])
    if not known:
        return 2, f"pip-audit: NOT AUDITED: its service does not answer here for any of the {len(every)} pinned packages"
    if len(known) < len(every):
        missing = ", ".join(each["name"] for each in every if "vulns" not in each)
        return 2, f"pip-audit: {n}, no known vulnerability; NOT AUDITED: {missing}"
    return 0, f"pip-audit: {n}, no known vulnerability"


def main() -> int:
    """Run both, and say what they found."""
    words = [sys.executable, "-m", "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *CODE]
    bandit = subprocess.run(words, cwd=ROOT, check=False).returncode
    sys.stdout.write(f"bandit: {'see above' if bandit else 'nothing found'}\n")
    words = [sys.executable, "-m", "pip_audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip"]
    done = subprocess.run([*words, "--format", "json"], cwd=ROOT, check=False, capture_output=True, text=True)
    try:
        status, text = verdict(json.loads(done.stdout))
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        status, text = 2, f"pip-audit: NOT AUDITED: {last}"
    sys.stdout.write(f"{text}\n")
    return 1 if bandit else status


if __name__ == "__main__":
    sys.exit(main())
