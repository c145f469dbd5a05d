"""What an assignment may be: the sets over which the sums run."""

from sparsum.structures._abstract import AbstractStructure as AbstractStructure
from sparsum.structures._bits import Bits as Bits
from sparsum.structures._bits import Budget as Budget
from sparsum.structures._bits import Subset as Subset
from sparsum.structures._enumerated import Enumerated as Enumerated
from sparsum.structures._groups import Groups as Groups
from sparsum.structures._matching import Matching as Matching
from sparsum.structures._one_of import OneOf as OneOf
from sparsum.structures._sequence import Sequence as Sequence
from sparsum.structures._tree import Tree as Tree
