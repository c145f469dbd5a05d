"""Gibbs distributions, the dense counterpart of sparse ones: mass is proportional to the exponential of the score."""

from sparsum.gibbs import divergence as divergence  # registers the divergences with torch
from sparsum.gibbs.gibbs import Gibbs as Gibbs
