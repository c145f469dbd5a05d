"""Figures of runs as SVG that needs no script: a script adds the values that are pointed at."""

from sparsum_experiments.report.figures.curves import MAX_POINTS as MAX_POINTS
from sparsum_experiments.report.figures.drawing import draw as draw
from sparsum_experiments.report.figures.figure import Figure as Figure
from sparsum_experiments.report.figures.figure import Point as Point
from sparsum_experiments.report.figures.figure import Series as Series
from sparsum_experiments.report.figures.marks import legend as legend
from sparsum_experiments.report.figures.of_runs import figures_of as figures_of
from sparsum_experiments.report.figures.of_runs import styles_of as styles_of
