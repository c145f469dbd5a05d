"""Many runs: methods x settings x seeds, several processes at a time, which go on where they stopped."""

from sparsum.experiments.sweep._command import best_settings as best_settings
from sparsum.experiments.sweep._command import sweep_command as sweep_command
from sparsum.experiments.sweep._estimate import Estimate as Estimate
from sparsum.experiments.sweep._estimate import estimate_plan as estimate_plan
from sparsum.experiments.sweep._plan import PlannedRun as PlannedRun
from sparsum.experiments.sweep._plan import make_plan as make_plan
from sparsum.experiments.sweep._plan import parse_grid as parse_grid
from sparsum.experiments.sweep._plan import parse_methods as parse_methods
from sparsum.experiments.sweep._pool import Entry as Entry
from sparsum.experiments.sweep._pool import Phase as Phase
from sparsum.experiments.sweep._pool import sweep as sweep
from sparsum.experiments.sweep._state import State as State
from sparsum.experiments.sweep._state import check_plan as check_plan
from sparsum.experiments.sweep._state import state_of as state_of
from sparsum.experiments.sweep._tuned import Choice as Choice
from sparsum.experiments.sweep._tuned import tuned_settings as tuned_settings
