"""The dense peer of a sparse distribution: every assignment has mass, in proportion to the exponential of its score."""

from sparsum.gibbs import _divergence as _divergence  # registers the divergences with torch
from sparsum.gibbs._gibbs import Gibbs as Gibbs
