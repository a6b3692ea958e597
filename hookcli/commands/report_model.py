"""Runs a model once for all parts of a report page: the work of `hookcli report MODEL`."""

from __future__ import annotations

from hookcli.commands.check_config import Job
from hookcli.commands.check_models import crashed, examined
from hookcli.commands.probe_command import use_threads
from hookcli.commands.progress import working
from hookcli.commands.report_file import Page
from hookcli.errors import ModelError
from hookcli.table.columns.layouts import FINDINGS, SHAPES, STATISTICS


def report_model(job: Job, page: Page) -> int:
    """Write the page of a model. One that crashes has the page of what was seen until then, and its error is raised."""
    for columns in (FINDINGS, SHAPES, STATISTICS):
        page.output.check_columns(columns)  # a format for one of the reports alone is refused before the run
    try:
        with working(job.options) as progress:
            progress.stage("importing torch")
            use_threads(job.options)
            examination = examined(job, progress, in_full=True)
    except ModelError as error:
        page.salvage([crashed(job, error)])
        raise
    page.write(examination.shown)
    if examination.error:
        raise examination.error
    return 0
