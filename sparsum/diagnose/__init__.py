"""What each estimator does on one's own batch: gradient variance, bias, calls and time, as a table and a plot."""

from sparsum.diagnose._diagnose import diagnose as diagnose
from sparsum.diagnose._diagnosis import Diagnosis as Diagnosis
from sparsum.diagnose._measurement import Measurement as Measurement
