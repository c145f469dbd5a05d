"""What all tests of the experiments share."""

from __future__ import annotations

import signal

# Under nohup, which some machines run tests with, runs ignore SIGHUP and leave tests of it waiting.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
