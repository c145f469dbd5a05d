"""The paper's three experiments, and everything to run them: `sparsum --help`.

A distribution of its own, ``sparsum-experiments``: the library does not depend on it.
"""
