"""The picture of a run: `write_report` makes one HTML page of what lies on disk."""

from openrlhf_dynamicrubric.report.page import main, write_report

__all__ = ["main", "write_report"]
