"""The packed sparse distribution: a few atoms per row, and exact sums over them."""

from sparsum.distribution import _divergence as _divergence  # registers the divergences with torch
from sparsum.distribution._sparse import SparseDistribution as SparseDistribution
from sparsum.distribution._uniform import UniformOver as UniformOver
