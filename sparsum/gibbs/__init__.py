"""The dense peer of a sparse distribution: every assignment has mass, in proportion to the exponential of its score."""

from sparsum.gibbs import divergence as divergence  # registers the divergences with torch
from sparsum.gibbs.gibbs import Gibbs as Gibbs
