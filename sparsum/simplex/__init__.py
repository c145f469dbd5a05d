"""Tensor to tensor: sparse mappings onto the probability simplex, drop-ins for `torch.softmax`, and their losses."""

from sparsum.simplex._embed import embed as embed
from sparsum.simplex._losses import entmax15_loss as entmax15_loss
from sparsum.simplex._losses import entmax_loss as entmax_loss
from sparsum.simplex._losses import sparsemax_loss as sparsemax_loss
from sparsum.simplex._mappings import entmax as entmax
from sparsum.simplex._mappings import entmax15 as entmax15
from sparsum.simplex._mappings import sparsemax as sparsemax
from sparsum.simplex._modules import Entmax as Entmax
from sparsum.simplex._modules import Entmax15 as Entmax15
from sparsum.simplex._modules import Entmax15Loss as Entmax15Loss
from sparsum.simplex._modules import EntmaxLoss as EntmaxLoss
from sparsum.simplex._modules import Sparsemax as Sparsemax
from sparsum.simplex._modules import SparsemaxLoss as SparsemaxLoss
