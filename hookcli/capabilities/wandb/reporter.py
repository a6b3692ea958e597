"""Offline runs of Weights & Biases, which `wandb sync` uploads; nothing is sent by hookcli."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from hookcli.reporters import series
from hookcli.reporters.base import Exporter, require
from hookcli.table import Report
from hookcli.table.grouping import View

_BINS = 512  # wandb.Histogram takes no more
_SILENT = {"WANDB_ERROR_REPORTING": "false"}  # or wandb would send its own errors


class WandbReporter(Exporter):
    """An offline run for each model and phase, in FOLDER/wandb, grouped by script; the run's config says what was run.

    Each step is a row of the run's history with the metric `step`, against which all others are charted.
    """

    target: ClassVar[Literal["folder"]] = "folder"
    live = True
    then = "`wandb sync {path}/wandb/offline-run-*` uploads them"

    def __init__(self) -> None:
        require("wandb", "wandb", **_SILENT)

    def export(self, reports: Iterable[Report], view: View, path: Path) -> None:
        """Write each step as it comes."""
        os.environ.update(_SILENT)
        path.mkdir(parents=True, exist_ok=True)  # else wandb writes to a temporary folder
        runs: dict[tuple[str, ...], Any] = {}
        with ExitStack() as stack:
            for point in series.points(reports):
                if point.run not in runs:
                    runs[point.run] = stack.enter_context(_begun(point, path))
                histograms = {tag: _histogram(flat) for tag, flat in point.histograms.items()}
                runs[point.run].log({"step": point.step, **point.figures, **histograms})


def _begun(point: series.Point, path: Path) -> Any:
    wandb: Any = import_module("wandb")
    script = point.about.get("script")
    model, *phase = point.run
    run = wandb.init(
        project="hookcli",
        dir=path.absolute(),
        name=" ".join(filter(None, [script, *point.run])),
        group=script or model,
        job_type=phase[0] if phase else None,
        config=dict(point.about),
        reinit="create_new",
        settings=wandb.Settings(
            mode="offline", silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True,
            x_disable_meta=True, x_save_requirements=False,
        ),
    )  # fmt: skip
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def _histogram(flat: Mapping[str, object]) -> object:
    limits, counts = series.buckets(flat, _BINS)
    return import_module("wandb").Histogram(np_histogram=(counts, limits))
