"""Which files can be collected."""

import importlib.util

# It imports Pyro at its top. `make test-integrations` installs that first.
collect_ignore = [] if importlib.util.find_spec("pyro") else ["test_pyro.py"]
