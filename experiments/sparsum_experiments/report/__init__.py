"""What runs measured: read from their folders or records, summarised over seeds, as tables and as a page."""

from sparsum_experiments.report.comparison import read_comparisons as read_comparisons
from sparsum_experiments.report.markup import latex as latex
from sparsum_experiments.report.markup import markdown as markdown
from sparsum_experiments.report.page import check_page_file as check_page_file
from sparsum_experiments.report.page import page_file as page_file
from sparsum_experiments.report.page import write_page as write_page
from sparsum_experiments.report.page import write_report as write_report
from sparsum_experiments.report.sections import Section as Section
from sparsum_experiments.report.sections import differing_options as differing_options
from sparsum_experiments.report.sections import read_sections as read_sections
from sparsum_experiments.report.sections import summaries_by_setting as summaries_by_setting
from sparsum_experiments.report.sections import without_repetitions as without_repetitions
from sparsum_experiments.report.summary import Statistic as Statistic
from sparsum_experiments.report.summary import Summary as Summary
from sparsum_experiments.report.summary import best_by_method as best_by_method
from sparsum_experiments.report.summary import criteria_text as criteria_text
from sparsum_experiments.report.summary import statistic as statistic
from sparsum_experiments.report.summary import summarise as summarise
from sparsum_experiments.report.tables import rich_tables as rich_tables
from sparsum_experiments.report.tables import sections_table as sections_table
from sparsum_experiments.report.tables import summary_table as summary_table
