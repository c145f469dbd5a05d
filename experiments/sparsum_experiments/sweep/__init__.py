"""Many runs: methods x settings x seeds, several processes at a time, which are resumed where they stopped."""

from sparsum_experiments.sweep.command import Board as Board
from sparsum_experiments.sweep.command import sweep_command as sweep_command
from sparsum_experiments.sweep.launch import Phase as Phase
from sparsum_experiments.sweep.launch import sweep as sweep
from sparsum_experiments.sweep.plan import PlannedRun as PlannedRun
from sparsum_experiments.sweep.plan import make_plan as make_plan
