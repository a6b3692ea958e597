"""Compares `hookcli memory` with the peaks that PyTorch's profiler measures on the CPU allocator.

    scripts/sweep memory                     100 torchvision models, a training step with SGD and with AdamW
    scripts/sweep memory --match 'resnet*'   the ones whose names match
    scripts/sweep memory --markdown          all, and write the table of docs/memory.md

Measured peaks are kept in scripts/memory_peaks.json: another version of PyTorch, or of an input, is measured anew.
Exits 1 unless 95 of 100 are within 5 %.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

from _memory_truth import measured_peaks

from hookcli.sources.catalog import ModelEntry, entries
from hookcli.table.formatting import size

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
BEGIN, END = "<!-- written by scripts/sweep memory --markdown -->\n", "<!-- end -->\n"
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
COUNT, SIDE = 100, 224
LIMIT, WITHIN = 0.05, 0.95


@dataclass(frozen=True)
class Compared:
    """A model's peaks with one optimizer, in bytes, and the phases in which they are."""

    model: str
    given: str
    optimizer: str
    measured: Mapping[str, Any]
    computed: int
    phases: Mapping[str, int]

    @property
    def error(self) -> float:
        return self.computed / float(self.measured["peak"]) - 1


def memory_models(match: str) -> list[tuple[str, str]]:
    """The models with the fewest parameters, as (name, input), smallest first.

    Without detectors: their shapes depend on values, and they scale a small image up.
    """
    models = [entry for entry in entries().values() if entry.kind != "detection"]
    chosen = sorted(models, key=lambda entry: (entry.params or 0, entry.name))[:COUNT]
    return [(one.name, _input(one)) for one in chosen if any(fnmatchcase(one.name, glob) for glob in match.split(","))]


def _input(entry: ModelEntry) -> str:
    """A batch of 2 images of at most 224 pixels, or one clip."""
    if entry.kind == "optical_flow":
        return "2x3x128x128,2x3x128x128"
    shape = list(entry.inputs[0])
    if entry.kind != "video":
        shape[0] = 2
        if "inception" not in entry.name:  # which needs its 299
            shape[2:] = [min(side, SIDE) for side in shape[2:]]
    return "x".join(map(str, shape))


def compared(models: Sequence[tuple[str, str]], measured: Mapping[str, Any]) -> Iterator[Compared]:
    """Both figures of each model that could be measured."""
    from hookcli.capabilities.memory.plan import MemoryPlan
    from hookcli.capabilities.memory.simulate import simulate
    from hookcli.engine.setting import Setting
    from hookcli.sources.finding import find_recipe
    from hookcli.sources.inputs import parse_input

    for name, given in models:
        if "error" in measured[name]:
            continue
        setting = Setting(inputs=tuple(map(parse_input, given.split(","))), train=True, targets=True)
        for optimizer in OPTIMIZERS:
            step = simulate(find_recipe(name), setting, MemoryPlan(optimizer=optimizer)).steady
            yield Compared(name, given, optimizer, measured[name][optimizer], step.peak.highest, step.by_phase())


def summary(found: Sequence[Compared]) -> str:
    """The distribution of errors, per optimizer."""
    lines = []
    for optimizer, title in OPTIMIZERS.items():
        errors = sorted((abs(one.error), one.model) for one in found if one.optimizer == optimizer)
        near = {limit: sum(error <= limit for error, _ in errors) for limit in (0.01, LIMIT)}
        middle, (worst, model) = median(error for error, _ in errors), errors[-1]
        within = ", ".join(f"{count} of {len(errors)} within {limit:.0%}" for limit, count in reversed(near.items()))
        lines.append(f"{title}: {within}; median error {middle:.2%}, largest {worst:.1%} ({model})")
    return "\n".join(lines)


def table(found: Sequence[Compared]) -> Iterator[str]:
    """The rows of the page's table, largest error first."""
    by_model: dict[str, dict[str, Compared]] = {}
    for one in found:
        by_model.setdefault(one.model, {})[one.optimizer] = one
    titles = [f"{title} {what}" for title in OPTIMIZERS.values() for what in ("measured", "computed", "error")]
    yield f"| Model | Input | {' | '.join(titles)} |"
    yield f"| :--- | :--- |{' ---: |' * len(titles)}"
    for name, pair in sorted(by_model.items(), key=lambda item: -max(abs(one.error) for one in item[1].values())):
        cells = [c for o in pair.values() for c in (size(o.measured["peak"]), size(o.computed), f"{o.error:+.2%}")]
        given = next(iter(pair.values())).given.partition(",")[0]
        yield f"| {name} | {given} | {' | '.join(cells)} |"


def write_page(found: Sequence[Compared]) -> None:
    """Replace the page's table."""
    from importlib.metadata import version

    releases = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision"))
    text = "\n\n".join((f"{date.today()}, {releases}.", summary(found).replace("\n", "\n\n"), "\n".join(table(found))))
    whole = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(whole.sub(lambda _: f"{BEGIN}\n{text}\n\n{END}", PAGE.read_text()))


def main(arguments: Sequence[str]) -> int:
    """The work of `scripts/sweep memory`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="*", help="only models whose name matches one of these globs (A,B)")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for measuring one model")
    parser.add_argument("--markdown", action="store_true", help="write the table of docs/memory.md")
    options = parser.parse_args(arguments)
    if options.markdown and options.match != "*":
        parser.error("--markdown takes all models")
    models = memory_models(options.match)
    import torch  # measuring forks, and OpenMP's threads do not survive a fork

    torch.set_num_threads(1)
    measured = measured_peaks(models, lambda text: print(text, file=sys.stderr, flush=True), options.timeout)
    found = []
    for one in compared(models, measured):
        found.append(one)
        figures = f"{one.measured['peak']:,} measured, {one.computed:,} computed, {one.error:+.2%}"
        print(f"{one.model} {one.optimizer}: {figures} {dict(one.measured)} {dict(one.phases)}", flush=True)
    print(summary(found))
    if options.markdown:
        write_page(found)
    return int(sum(abs(one.error) <= LIMIT for one in found) < WITHIN * len(found))
