"""The paper's three experiments, and everything to run them: `sparsum --help`.

Needs the extra: ``pip install sparsum[experiments]``.
"""
