"""What the experiments are trained on: images, and features of images for the signal game.

`load_images` and `load_games` return tensors on a device with fixed training, validation and test splits; `draw_games`
draws a batch of games there. `get`, `check` and `known` download, verify and list data sets, and `make_features` computes
the files of a signal game from a folder of images.
"""

from sparsum_experiments.data.catalogue import DownloadFailed as DownloadFailed
from sparsum_experiments.data.catalogue import check as check
from sparsum_experiments.data.catalogue import get as get
from sparsum_experiments.data.catalogue import known as known
from sparsum_experiments.data.extraction import make_features as make_features
from sparsum_experiments.data.games import Features as Features
from sparsum_experiments.data.games import Games as Games
from sparsum_experiments.data.games import draw_games as draw_games
from sparsum_experiments.data.games import load_games as load_games
from sparsum_experiments.data.images import Images as Images
from sparsum_experiments.data.images import Split as Split
from sparsum_experiments.data.images import load_images as load_images
from sparsum_experiments.data.sources import BadFile as BadFile
