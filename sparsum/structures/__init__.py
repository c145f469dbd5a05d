"""What an assignment may be: the sets over which the sums run."""

from sparsum.structures._abstract import AbstractStructure as AbstractStructure
from sparsum.structures._one_of import OneOf as OneOf
