"""What runs measured: read from their folders or records, summarised over seeds, as tables and as a page."""

from sparsum_experiments.report.comparison import read_comparisons as read_comparisons
from sparsum_experiments.report.markup import latex as latex
from sparsum_experiments.report.markup import markdown as markdown
from sparsum_experiments.report.page import check_page_file as check_page_file
from sparsum_experiments.report.page import page_file as page_file
from sparsum_experiments.report.page import write_page as write_page
from sparsum_experiments.report.page import write_report as write_report
from sparsum_experiments.report.sections import read_sections as read_sections
from sparsum_experiments.report.summary import Statistic as Statistic
from sparsum_experiments.report.summary import statistic as statistic
from sparsum_experiments.report.tables import sections_table as sections_table
