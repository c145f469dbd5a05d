"""Conformance tests for built-in and custom structures and estimators.

A structure that passes `check_structure`, or an estimator that passes `check_estimator`, can be used everywhere in the
library.
"""

from sparsum.testing.estimators import CONTEXT_SIZE as CONTEXT_SIZE
from sparsum.testing.estimators import check_estimator as check_estimator
from sparsum.testing.report import Report as Report
from sparsum.testing.structures import check_structure as check_structure
