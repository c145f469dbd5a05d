"""Gradient estimators for discrete latent variables, with one common signature.

Exact sums (`Dense`, `Sparse`, `TopK`, `SparseMAP`), score functions (`ScoreFunction`, `SelfCritic`, `NVIL`, `LeaveOneOut`,
`SumAndSample`, `UnorderedSet`), score functions with relaxed control variates (`Rebar`, `Relax`) or for bits (`Arm`,
`Disarm`), and biased relaxations (`GumbelSoftmax`, `StraightThrough`, `ReinMax`, `Simple`, `Imle`). `topk_bound`,
`distinct_bound`, `wake_wake` and `vimco` are separate objectives: bounds on a log-likelihood.
"""

from sparsum.estimators.abstract import AbstractEstimator as AbstractEstimator
from sparsum.estimators.abstract import Estimate as Estimate
from sparsum.estimators.abstract import Needs as Needs
from sparsum.estimators.antithetic import Arm as Arm
from sparsum.estimators.antithetic import Disarm as Disarm
from sparsum.estimators.baselines import RunningMean as RunningMean
from sparsum.estimators.bounds import Bound as Bound
from sparsum.estimators.bounds import distinct_bound as distinct_bound
from sparsum.estimators.bounds import topk_bound as topk_bound
from sparsum.estimators.bounds import vimco as vimco
from sparsum.estimators.bounds import vimco_from_weights as vimco_from_weights
from sparsum.estimators.bounds import wake_wake as wake_wake
from sparsum.estimators.bounds import wake_wake_from_weights as wake_wake_from_weights
from sparsum.estimators.control_variates import Rebar as Rebar
from sparsum.estimators.control_variates import Relax as Relax
from sparsum.estimators.imle import Imle as Imle
from sparsum.estimators.imle import PerturbAndMap as PerturbAndMap
from sparsum.estimators.problem import Problem as Problem
from sparsum.estimators.relaxations import GumbelSoftmax as GumbelSoftmax
from sparsum.estimators.relaxations import ReinMax as ReinMax
from sparsum.estimators.relaxations import StraightThrough as StraightThrough
from sparsum.estimators.score_function import NVIL as NVIL
from sparsum.estimators.score_function import LeaveOneOut as LeaveOneOut
from sparsum.estimators.score_function import ScoreFunction as ScoreFunction
from sparsum.estimators.score_function import SelfCritic as SelfCritic
from sparsum.estimators.simple import Simple as Simple
from sparsum.estimators.sum_and_sample import SumAndSample as SumAndSample
from sparsum.estimators.sums import Dense as Dense
from sparsum.estimators.sums import Sparse as Sparse
from sparsum.estimators.sums import SparseMAP as SparseMAP
from sparsum.estimators.sums import TopK as TopK
from sparsum.estimators.temperature import Anneal as Anneal
from sparsum.estimators.unordered_set import UnorderedSet as UnorderedSet
