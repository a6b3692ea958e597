"""TensorBoard's event files, written with the `tensorboard` package alone: its protocol buffers and record writer."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from hookcli.reporters import series
from hookcli.reporters.base import Exporter, require
from hookcli.system.escaping import visible
from hookcli.table import Report
from hookcli.table.grouping import View

_LONGEST = 100  # characters of a folder's name: file systems take 255 bytes


class TensorboardReporter(Exporter):
    """A folder of runs: FOLDER/MODEL/PHASE holds the figures of a model, with and without gradients.

    Values are float32, as TensorBoard has them; NaN and infinities are as they are. What was run is on the Text tab.
    """

    target: ClassVar[Literal["new folder"]] = "new folder"
    live = True
    then = "`tensorboard --logdir {path}` shows them"

    def __init__(self) -> None:
        require("tensorboard", "tensorboard.summary.writer.record_writer")

    def export(self, reports: Iterable[Report], view: View, path: Path) -> None:
        """Write each step as it comes, one event per report, so that TensorBoard shows it at its next look."""
        runs: dict[tuple[str, ...], _Run] = {}
        with ExitStack() as stack:
            for point in series.points(reports):
                if point.run not in runs:
                    taken = [str(run.folder) for run in runs.values()]
                    texts = (visible(name).replace("/", "_").replace("\\", "_").strip(". ") for name in point.run)
                    names = (series.encodable(text[:_LONGEST]) or "model" for text in texts)  # which folders can have
                    folder = series.unused(str(path / "/".join(names)), taken, sign="")
                    runs[point.run] = stack.enter_context(closing(_Run(Path(folder), point.about)))
                runs[point.run].add(point)


class _Run:
    """One run: a folder with an event file."""

    def __init__(self, folder: Path, about: Mapping[str, object]) -> None:
        self.folder = folder
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        writer: Any = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        self._writer = writer((folder / name).open("xb"))
        self._write(self._event(file_version="brain.Event:2"))
        self._write(self._described(about))

    def close(self) -> None:
        self._writer.close()

    def add(self, point: series.Point) -> None:
        """Append the figures of a step."""
        event = self._event(step=point.step)
        for tag, value in point.figures.items():
            event.summary.value.add(tag=series.encodable(tag), simple_value=value)
        for tag, flat in point.histograms.items():
            histo = event.summary.value.add(tag=series.encodable(tag)).histo
            limits, counts = series.buckets(flat)
            finite = flat["numel"] - flat["nan"] - flat["inf"]
            histo.min, histo.max, histo.num = flat["min"], flat["max"], finite
            histo.sum, histo.sum_squares = flat["mean"] * finite, flat["l2"] * flat["l2"]
            histo.bucket_limit.extend(limits[1:])
            histo.bucket.extend(counts)
        self._write(event)

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def _described(self, about: Mapping[str, object]) -> Any:
        """Return the event for the Text tab: what was run, as lines that Markdown leaves as they are."""
        event = self._event()
        value = event.summary.value.add(tag="run")
        value.metadata.plugin_data.plugin_name = "text"
        value.tensor.dtype = import_module("tensorboard.compat.proto.types_pb2").DT_STRING
        lines = [f"    {visible(f'{key}: {item}')}" for key, item in about.items() if item not in (None, "", [])]
        value.tensor.string_val.append(series.encodable("\n".join(lines)).encode())
        return event
