"""Many runs: methods x settings x seeds, several processes at a time, which go on where they stopped."""

from sparsum_experiments.sweep.command import best_settings as best_settings
from sparsum_experiments.sweep.command import sweep_command as sweep_command
from sparsum_experiments.sweep.estimate import RemainingTime as RemainingTime
from sparsum_experiments.sweep.estimate import estimate_plan as estimate_plan
from sparsum_experiments.sweep.plan import PlannedRun as PlannedRun
from sparsum_experiments.sweep.plan import make_plan as make_plan
from sparsum_experiments.sweep.plan import parse_grid as parse_grid
from sparsum_experiments.sweep.plan import parse_methods as parse_methods
from sparsum_experiments.sweep.pool import Entry as Entry
from sparsum_experiments.sweep.pool import Phase as Phase
from sparsum_experiments.sweep.pool import sweep as sweep
from sparsum_experiments.sweep.state import State as State
from sparsum_experiments.sweep.state import check_plan as check_plan
from sparsum_experiments.sweep.state import state_of as state_of
from sparsum_experiments.sweep.tuned import Choice as Choice
from sparsum_experiments.sweep.tuned import tuned_settings as tuned_settings
