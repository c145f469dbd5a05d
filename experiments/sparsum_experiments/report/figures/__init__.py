"""Figures of runs, drawn by Vega as static SVG; a script of the page adds the values that one points at."""

from sparsum_experiments.report.figures.drawing import Drawing as Drawing
from sparsum_experiments.report.figures.drawing import draw as draw
from sparsum_experiments.report.figures.drawing import sample as sample
from sparsum_experiments.report.figures.figure import Figure as Figure
from sparsum_experiments.report.figures.figure import Point as Point
from sparsum_experiments.report.figures.figure import Series as Series
from sparsum_experiments.report.figures.of_runs import MAX_POINTS as MAX_POINTS
from sparsum_experiments.report.figures.of_runs import figures_of as figures_of
from sparsum_experiments.report.figures.of_runs import styles_of as styles_of
