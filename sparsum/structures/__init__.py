"""Structures: the finite sets of assignments that distributions and sums range over."""

from sparsum.structures.abstract import AbstractStructure as AbstractStructure
from sparsum.structures.alignment import Alignment as Alignment
from sparsum.structures.binary_tree import BinaryTree as BinaryTree
from sparsum.structures.bits import Bits as Bits
from sparsum.structures.bits import Budget as Budget
from sparsum.structures.bits import Subset as Subset
from sparsum.structures.decision_diagram import DecisionDiagram as DecisionDiagram
from sparsum.structures.declarations import BitCounts as BitCounts
from sparsum.structures.declarations import Potentials as Potentials
from sparsum.structures.enumerated import Enumerated as Enumerated
from sparsum.structures.formulas import Formula as Formula
from sparsum.structures.groups import Groups as Groups
from sparsum.structures.knapsack import Knapsack as Knapsack
from sparsum.structures.matching import Matching as Matching
from sparsum.structures.one_of import OneOf as OneOf
from sparsum.structures.paths import Paths as Paths
from sparsum.structures.permutation import Permutation as Permutation
from sparsum.structures.projective import ProjectiveTree as ProjectiveTree
from sparsum.structures.scores import BoundScores as BoundScores
from sparsum.structures.scores import NoDistribution as NoDistribution
from sparsum.structures.scores import Scores as Scores
from sparsum.structures.segmentation import Segmentation as Segmentation
from sparsum.structures.sequence import Sequence as Sequence
from sparsum.structures.tree import Tree as Tree
