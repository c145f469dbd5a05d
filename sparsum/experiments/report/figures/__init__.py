"""Figures of runs as SVG that needs no script: a script adds the values that are pointed at."""

from sparsum.experiments.report.figures._curves import MAX_POINTS as MAX_POINTS
from sparsum.experiments.report.figures._draw import draw as draw
from sparsum.experiments.report.figures._figure import Figure as Figure
from sparsum.experiments.report.figures._figure import Point as Point
from sparsum.experiments.report.figures._figure import Series as Series
from sparsum.experiments.report.figures._marks import legend as legend
from sparsum.experiments.report.figures._of_runs import figures_of as figures_of
from sparsum.experiments.report.figures._of_runs import styles_of as styles_of
