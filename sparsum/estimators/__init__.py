"""Every way to train a discrete latent variable, behind one signature.

Exact sums (`Dense`, `Sparse`, `TopK`, `SparseMAP`), score functions (`ScoreFunction`, `SelfCritic`, `NVIL`, `LeaveOneOut`,
`SumAndSample`, `UnorderedSet`), with relaxed control variates (`Rebar`, `Relax`), for bits (`Arm`, `Disarm`), and biased
relaxations (`GumbelSoftmax`, `StraightThrough`, `ReinMax`, `Imle`). `topk_bound`, `distinct_bound`, `wake_wake` and `vimco`
are objectives of their own.
"""

from sparsum.estimators._abstract import AbstractEstimator as AbstractEstimator
from sparsum.estimators._abstract import Estimate as Estimate
from sparsum.estimators._antithetic import Arm as Arm
from sparsum.estimators._antithetic import Disarm as Disarm
from sparsum.estimators._baselines import RunningMean as RunningMean
from sparsum.estimators._bound import Bound as Bound
from sparsum.estimators._control_variates import Rebar as Rebar
from sparsum.estimators._control_variates import Relax as Relax
from sparsum.estimators._distinct_bound import distinct_bound as distinct_bound
from sparsum.estimators._imle import Imle as Imle
from sparsum.estimators._imle import PerturbAndMap as PerturbAndMap
from sparsum.estimators._problem import Problem as Problem
from sparsum.estimators._relaxations import GumbelSoftmax as GumbelSoftmax
from sparsum.estimators._relaxations import ReinMax as ReinMax
from sparsum.estimators._relaxations import StraightThrough as StraightThrough
from sparsum.estimators._score_function import NVIL as NVIL
from sparsum.estimators._score_function import LeaveOneOut as LeaveOneOut
from sparsum.estimators._score_function import ScoreFunction as ScoreFunction
from sparsum.estimators._score_function import SelfCritic as SelfCritic
from sparsum.estimators._sum_and_sample import SumAndSample as SumAndSample
from sparsum.estimators._sums import Dense as Dense
from sparsum.estimators._sums import Sparse as Sparse
from sparsum.estimators._sums import SparseMAP as SparseMAP
from sparsum.estimators._sums import TopK as TopK
from sparsum.estimators._temperature import Anneal as Anneal
from sparsum.estimators._topk_bound import topk_bound as topk_bound
from sparsum.estimators._unordered_set import UnorderedSet as UnorderedSet
from sparsum.estimators._vimco import vimco as vimco
from sparsum.estimators._wake_wake import wake_wake as wake_wake
