"""Packed sparse distributions: a few atoms per row, and exact sums over them."""

from sparsum.distribution import divergence as divergence  # registers the divergences with torch
from sparsum.distribution.sparse import SparseDistribution as SparseDistribution
from sparsum.distribution.uniform import UniformOver as UniformOver
