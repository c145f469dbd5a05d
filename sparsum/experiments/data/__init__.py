"""What the experiments are trained on: images, and features of images for the signal game.

`load_images` and `load_games` give tensors on a device, split once and for all into training, validation and test data;
`draw_games` makes a batch of games there. `get`, `check` and `known` download, verify and list the files, and
`make_features` makes those of the signal game from a folder of images.
"""

from sparsum.experiments.data._check import Finding as Finding
from sparsum.experiments.data._check import check as check
from sparsum.experiments.data._draw import Drawn as Drawn
from sparsum.experiments.data._draw import draw_games as draw_games
from sparsum.experiments.data._features import Features as Features
from sparsum.experiments.data._games import Games as Games
from sparsum.experiments.data._games import load_games as load_games
from sparsum.experiments.data._get import DownloadFailed as DownloadFailed
from sparsum.experiments.data._get import get as get
from sparsum.experiments.data._images import Images as Images
from sparsum.experiments.data._images import Split as Split
from sparsum.experiments.data._images import load_images as load_images
from sparsum.experiments.data._known import Known as Known
from sparsum.experiments.data._known import known as known
from sparsum.experiments.data._make_features import make_features as make_features
