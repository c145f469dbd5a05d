"""What runs measured: read from their folders or records, summarised over seeds, as tables and as a page."""

from sparsum.experiments.report._comparison import read_comparisons as read_comparisons
from sparsum.experiments.report._markup import latex as latex
from sparsum.experiments.report._markup import markdown as markdown
from sparsum.experiments.report._page import write_report as write_report
from sparsum.experiments.report._records import RECORD_KEYS as RECORD_KEYS
from sparsum.experiments.report._records import RunRecord as RunRecord
from sparsum.experiments.report._records import columns_of as columns_of
from sparsum.experiments.report._records import find_records as find_records
from sparsum.experiments.report._records import find_runs as find_runs
from sparsum.experiments.report._records import read_folders as read_folders
from sparsum.experiments.report._records import read_record as read_record
from sparsum.experiments.report._records import read_run as read_run
from sparsum.experiments.report._records import read_runs as read_runs
from sparsum.experiments.report._records import rounded as rounded
from sparsum.experiments.report._sections import Section as Section
from sparsum.experiments.report._sections import differing_options as differing_options
from sparsum.experiments.report._sections import read_sections as read_sections
from sparsum.experiments.report._sections import summaries_by_setting as summaries_by_setting
from sparsum.experiments.report._sections import without_repetitions as without_repetitions
from sparsum.experiments.report._summary import Statistic as Statistic
from sparsum.experiments.report._summary import Summary as Summary
from sparsum.experiments.report._summary import best_by_method as best_by_method
from sparsum.experiments.report._summary import statistic as statistic
from sparsum.experiments.report._summary import summarise as summarise
from sparsum.experiments.report._tables import rich_tables as rich_tables
from sparsum.experiments.report._tables import summary_table as summary_table
