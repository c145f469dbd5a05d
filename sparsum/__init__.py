"""Exact sums over sparse distributions: discrete and structured latent variables without sampling.

The main entry point is `sparsemap`, which maps scores to a `SparseDistribution`. Its method `expect` sums a loss over the
few assignments that have mass. `sparsemax`, `entmax15` and `entmax` are drop-in replacements for `torch.softmax`.
"""

from sparsum import distributed as distributed
from sparsum import estimators as estimators
from sparsum import nn as nn
from sparsum import solvers as solvers
from sparsum import testing as testing
from sparsum.captured import capture as capture
from sparsum.diagnosis import diagnose as diagnose
from sparsum.distribution import SparseDistribution as SparseDistribution
from sparsum.distribution import UniformOver as UniformOver
from sparsum.gibbs import Gibbs as Gibbs
from sparsum.inference import sparsemap as sparsemap
from sparsum.inference import topk_sparsemax as topk_sparsemax
from sparsum.losses import SparsemapLoss as SparsemapLoss
from sparsum.losses import StructuredNLL as StructuredNLL
from sparsum.losses import sparsemap_loss as sparsemap_loss
from sparsum.losses import structured_nll as structured_nll
from sparsum.simplex import BoundedAlpha as BoundedAlpha
from sparsum.simplex import Entmax as Entmax
from sparsum.simplex import Entmax15 as Entmax15
from sparsum.simplex import Entmax15Loss as Entmax15Loss
from sparsum.simplex import EntmaxLoss as EntmaxLoss
from sparsum.simplex import Sparsemax as Sparsemax
from sparsum.simplex import SparsemaxLoss as SparsemaxLoss
from sparsum.simplex import embed as embed
from sparsum.simplex import entmax as entmax
from sparsum.simplex import entmax15 as entmax15
from sparsum.simplex import entmax15_loss as entmax15_loss
from sparsum.simplex import entmax_loss as entmax_loss
from sparsum.simplex import sparsemax as sparsemax
from sparsum.simplex import sparsemax_loss as sparsemax_loss
from sparsum.solvers import NotConverged as NotConverged
from sparsum.structures import AbstractStructure as AbstractStructure
from sparsum.structures import Alignment as Alignment
from sparsum.structures import BinaryTree as BinaryTree
from sparsum.structures import Bits as Bits
from sparsum.structures import Budget as Budget
from sparsum.structures import DecisionDiagram as DecisionDiagram
from sparsum.structures import Enumerated as Enumerated
from sparsum.structures import Formula as Formula
from sparsum.structures import Groups as Groups
from sparsum.structures import Knapsack as Knapsack
from sparsum.structures import Matching as Matching
from sparsum.structures import NoDistribution as NoDistribution
from sparsum.structures import OneOf as OneOf
from sparsum.structures import Paths as Paths
from sparsum.structures import Permutation as Permutation
from sparsum.structures import Potentials as Potentials
from sparsum.structures import ProjectiveTree as ProjectiveTree
from sparsum.structures import Scores as Scores
from sparsum.structures import Segmentation as Segmentation
from sparsum.structures import Sequence as Sequence
from sparsum.structures import Subset as Subset
from sparsum.structures import Tree as Tree

__version__ = "0.1.0"
