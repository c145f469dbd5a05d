"""All properties: those of each file, in the order of the layers."""

from tests.properties import estimators, gibbs, layers, simplex, solvers, structures
from tests.properties.registry import PROPERTIES as PROPERTIES

FILES = (simplex, structures, gibbs, solvers, estimators, layers)
