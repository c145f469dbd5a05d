"""Compare estimators on your own batch: gradient variance, bias, calls and time, as a table and a plot."""

from sparsum.diagnosis.diagnosis import Diagnosis as Diagnosis
from sparsum.diagnosis.measurement import Measurement as Measurement
from sparsum.diagnosis.reference import Reference as Reference
from sparsum.diagnosis.run import diagnose as diagnose
