"""Many runs: methods x settings x seeds, several processes at a time, which are resumed where they stopped."""

from sparsum_experiments.sweep.board import Board as Board
from sparsum_experiments.sweep.command import best_settings as best_settings
from sparsum_experiments.sweep.command import sweep_command as sweep_command
from sparsum_experiments.sweep.launch import Entry as Entry
from sparsum_experiments.sweep.launch import Phase as Phase
from sparsum_experiments.sweep.launch import sweep as sweep
from sparsum_experiments.sweep.plan import PlannedRun as PlannedRun
from sparsum_experiments.sweep.plan import State as State
from sparsum_experiments.sweep.plan import make_plan as make_plan
from sparsum_experiments.sweep.plan import parse_grid as parse_grid
from sparsum_experiments.sweep.plan import state_of as state_of
from sparsum_experiments.sweep.tuned import Choice as Choice
from sparsum_experiments.sweep.tuned import tuned_settings as tuned_settings
