"""Lower bounds on the log-likelihood of a model with a discrete latent variable, with one common signature.

Every bound is called as ``bound(scores, structure, log_joint, k, *, generator=None)``. `vimco_from_weights` and
`wake_wake_from_weights` take the weights of samples instead, for posteriors that are not `sparsum.Gibbs`.
"""

from sparsum.estimators.bounds.bound import Bound as Bound
from sparsum.estimators.bounds.distinct import distinct_bound as distinct_bound
from sparsum.estimators.bounds.samples import vimco as vimco
from sparsum.estimators.bounds.samples import vimco_from_weights as vimco_from_weights
from sparsum.estimators.bounds.samples import wake_wake as wake_wake
from sparsum.estimators.bounds.samples import wake_wake_from_weights as wake_wake_from_weights
from sparsum.estimators.bounds.topk import topk_bound as topk_bound
