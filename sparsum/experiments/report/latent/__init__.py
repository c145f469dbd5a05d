"""What latent variables learned: classes, symbols and bits, each shown in its own way on the page of runs.

A view is made from the checkpoint of a run and its data, or read from the file that ``sparsum record --latent`` keeps.
"""

from sparsum.experiments.report.latent._fields import Fields as Fields
from sparsum.experiments.report.latent._kept import LATENT_FILE as LATENT_FILE
from sparsum.experiments.report.latent._kept import Latent as Latent
from sparsum.experiments.report.latent._kept import NoView as NoView
from sparsum.experiments.report.latent._kept import latent_of_run as latent_of_run
from sparsum.experiments.report.latent._kept import read_latent as read_latent
from sparsum.experiments.report.latent._section import latent_views as latent_views
