"""Sparse mappings onto the probability simplex, drop-in replacements for `torch.softmax`, and their losses."""

from sparsum.simplex.bounded import BoundedAlpha as BoundedAlpha
from sparsum.simplex.embedding import embed as embed
from sparsum.simplex.losses import entmax15_loss as entmax15_loss
from sparsum.simplex.losses import entmax_loss as entmax_loss
from sparsum.simplex.losses import sparsemax_loss as sparsemax_loss
from sparsum.simplex.mappings import entmax as entmax
from sparsum.simplex.mappings import entmax15 as entmax15
from sparsum.simplex.mappings import sparsemax as sparsemax
from sparsum.simplex.modules import Entmax as Entmax
from sparsum.simplex.modules import Entmax15 as Entmax15
from sparsum.simplex.modules import Entmax15Loss as Entmax15Loss
from sparsum.simplex.modules import EntmaxLoss as EntmaxLoss
from sparsum.simplex.modules import Sparsemax as Sparsemax
from sparsum.simplex.modules import SparsemaxLoss as SparsemaxLoss
