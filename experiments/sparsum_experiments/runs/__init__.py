"""Runs on disk: their folders and records, each format with its reader and writer."""

from sparsum_experiments.runs.folder import RunFolder as RunFolder
from sparsum_experiments.runs.folder import SilentFolder as SilentFolder
from sparsum_experiments.runs.records import LATENT_FOLDER as LATENT_FOLDER
from sparsum_experiments.runs.records import read_records as read_records
from sparsum_experiments.runs.records import records_file as records_file
from sparsum_experiments.runs.records import write_records as write_records
from sparsum_experiments.runs.run import Run as Run
from sparsum_experiments.runs.run import find_runs as find_runs
from sparsum_experiments.runs.run import read_evaluation as read_evaluation
from sparsum_experiments.runs.run import read_folders as read_folders
from sparsum_experiments.runs.run import read_run as read_run
from sparsum_experiments.runs.run import read_runs as read_runs
from sparsum_experiments.runs.run import record_of as record_of
from sparsum_experiments.runs.run import rounded as rounded
from sparsum_experiments.runs.run import without_errors as without_errors
from sparsum_experiments.runs.schema import Config as Config
from sparsum_experiments.runs.schema import EpochMetrics as EpochMetrics
from sparsum_experiments.runs.schema import Record as Record
from sparsum_experiments.runs.schema import RunArgs as RunArgs
from sparsum_experiments.runs.writer import RunWriter as RunWriter
