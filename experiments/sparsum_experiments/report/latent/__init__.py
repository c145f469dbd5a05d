"""What latent variables learned: classes, symbols and bits, each shown in its own way on the page of runs.

A view is made from the checkpoint of a run and its data, or read from the file that ``sparsum record --latent`` wrote.
"""

from sparsum_experiments.report.latent.kept import Latent as Latent
from sparsum_experiments.report.latent.kept import NoView as NoView
from sparsum_experiments.report.latent.kept import latent_of_run as latent_of_run
from sparsum_experiments.report.latent.kept import read_latent as read_latent
from sparsum_experiments.report.latent.section import Shown as Shown
from sparsum_experiments.report.latent.section import show_latent as show_latent
