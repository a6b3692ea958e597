"""The tables of `scripts/bench`: on the screen, and in docs/performance.md between two markers.

`TABLES` names every table and its rows, so that the page can be compared with what the bench writes without running it;
a section that is about to measure anything else fails.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- written by scripts/bench --markdown -->\n", "<!-- end -->\n"
BATCH = 10
GRADS_OF = ("parameters", "outputs", "inputs")
RULED = f"A training step of resnet50, batch {BATCH}, under hookcli run --rule"
TINY = "200 steps of a model of two layers that are not recorded, under hookcli run"
WHOLE_TINY = "A whole training of 10,000 steps of a model of two layers, under hookcli run (processor time)"
WHOLE = "A training of resnet18 that takes a minute, under hookcli run"
OPERATORS_OF = ("resnet50", "vit_b_16", "swin_t")
WEIGHTS = "A safetensors file of 10 GiB in bfloat16, as a process"
CACHED = ("resnet50", "vit_h_14")
LLAMA, COMPILED_BATCH = "a Llama of 4 layers", 4
COMPILED_OF = (("resnet50", False), ("vit_b_16", False), (LLAMA, False), (LLAMA, True))
"""The models under torch.compile, without and with backward."""
INSIGHT, TOKENS = "gpt2 of 4 layers", 2048
KERNELS = ("sdpa", "eager")
ROUNDING = f"{INSIGHT}, in eight number formats, {TOKENS} tokens, eval"
_NODES = ("plain", "Python hooks and statistics", "C++ hooks", "C++ hooks and statistics")
_ACTIVATIONS = (
    *("plain forward", "hookcli activations", "hookcli activations --hist"),
    *("hookcli activations, installed without a compiler", "naive hooks, six .item() a tensor"),
)
_OPERATORS = ("plain forward", "under the mode alone", "hookcli activations", "hookcli activations --ops")
_TORCHLENS = ("plain forward", "torchlens.trace (keeps every tensor)", "torchlens.trace and its stats_table")


def compiled_title(name: str, backward: bool) -> str:
    what = "Forward and backward" if backward else "Forward"
    return f"{what} of {name}, compiled by inductor, batch {COMPILED_BATCH}, {'train' if backward else 'eval'}"


def insight_title(kernel: str) -> str:
    return f"{INSIGHT}, attention by {kernel}, {TOKENS} tokens, eval"


TABLES: Mapping[str, Sequence[str]] = {
    "Start": (
        *("python -c 'import typer, rich.table'", "hookcli --help", "hookcli models"),
        *(f"hookcli shapes {name}, cached" for name in CACHED),
    ),
    **{
        f"Shapes of {name}, as a process": (
            *("bare script on meta", "hookcli shapes", "torchinfo.summary on CPU", "torchinfo.summary on meta"),
        )
        for name in ("resnet50", "vit_h_14")
    },
    **{f"Activations, {name}, batch {BATCH}, eval": _ACTIVATIONS for name in ("resnet50", "vit_b_16")},
    **{
        f"{what}, {name}, batch {BATCH}, eval": rows
        for name in OPERATORS_OF
        for what, rows in {"Operators": _OPERATORS, "TorchLens": _TORCHLENS}.items()
    },
    f"Forward and backward of resnet50, batch {BATCH}, train": (
        "plain",
        *(f"hookcli grads --of {kind}" for kind in GRADS_OF),
    ),
    **{
        f"{what} of resnet50, batch {BATCH}, train, under hooks on every autograd node": _NODES
        for what in ("Backward", "Forward and backward")
    },
    f"A training step of resnet50, batch {BATCH}, under hookcli run": (
        *("plain", "not recorded", "recorded"),
        *(f"{probe} alone" for probe in ("activations", "grads", "updates")),
        "--live tensorboard",
    ),
    RULED: ("plain", "not recorded", "a rule on grad_norm"),
    TINY: ("plain", "not recorded"),
    WHOLE_TINY: ("plain", "hookcli run"),
    WHOLE: ("plain", "hookcli run"),
    f"A training step of resnet50, batch {BATCH}, under wandb.watch": (
        *("plain", "histograms of gradients", "histograms of gradients and parameters"),
    ),
    f"A DDP step of resnet50 under hookcli run, 2 ranks of {BATCH} images, gloo": (
        *("plain DDP", "not recorded", "recorded"),
    ),
    **{
        f"A DDP step of resnet50 under {hook}, 2 ranks of {BATCH} images, gloo": ("plain DDP", "hookcli comm")
        for hook in ("allreduce", "fp16")
    },
    **{insight_title(kernel): ("plain forward", "hookcli attention") for kernel in KERNELS},
    ROUNDING: ("plain forward", "hookcli formats --of weights", "hookcli formats --of activations"),
    **{compiled_title(*of): ("compiled plain", "looks off", "looks on") for of in COMPILED_OF},
    "Check of resnet50, as a process": (
        *("bare script, forward and backward", "hookcli check", "hookcli check --meta"),
    ),
    "Check of resnet18, squeezenet1_1, mobilenet_v3_small": ("one process each", "one for all"),
    f"Two resnet50 side by side, batch {BATCH}, eval": (
        *("two plain forwards", "hookcli diff", "DebugMode, hashes of both compared"),
        "keep all outputs, compare in float64",
    ),
    WEIGHTS: ("read, block by block", "hookcli weights", "hookcli weights --no-stats"),
    "Peak memory on resnet50, two runs in a process, eval": ("plain", "hookcli activations"),
    "Peak memory on resnet50, two runs in a process, train": (
        "plain",
        *(f"hookcli grads --of {kind}" for kind in GRADS_OF),
    ),
}
UNMEASURED: Sequence[str] = (RULED, TINY, WHOLE_TINY, ROUNDING, *(insight_title(kernel) for kernel in KERNELS))
"""Tables that the page may lack, since the bench has not measured them on a quiet machine yet."""
GPU_MODELS, GPU_DTYPES, GPU_BATCH = ("resnet50", "vit_b_16"), ("bfloat16", "float32"), 256
GPU: Mapping[str, Sequence[str]] = {
    f"GPU: {what} of {name}, {dtype}": rows
    for name in GPU_MODELS
    for dtype in GPU_DTYPES
    for what, rows in {
        "activations": ("plain forward", "hookcli activations", "hookcli activations --hist"),
        "gradients": ("plain", *(f"hookcli grads --of {kind}" for kind in GRADS_OF)),
        "training step": ("plain", "not recorded", "recorded"),
    }.items()
}
"""The tables of `scripts/bench gpu`, which are printed only: the page was measured on a machine without a GPU."""


class Tables:
    """What the sections measured: printed at once, and noted in `file`, since sections measure in forked children."""

    def __init__(self, console: Console, file: Path) -> None:
        self.console = console
        self._file = file

    def check(self, title: str, rows: Iterable[str]) -> None:
        """Raise RuntimeError for rows that `TABLES` does not name; to be called before they are measured."""
        if unknown := sorted({*rows} - {*(TABLES.get(title) or GPU.get(title, ()))}):
            raise RuntimeError(f"_bench_table.TABLES does not name {', '.join(unknown)} of {title!r}")

    def show(self, title: str, rounds: int, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table, and note it for the page."""
        table = Table("", title=f"{title} ({rounds} rounds)", title_justify="left")
        for heading in headings:
            table.add_column(heading, justify="right")
        colour = {"met": "[green]met[/]", "over": "[bold red]over[/]"}
        for row in rows:
            table.add_row(*(colour.get(cell, cell) for cell in row))
        self.console.print(table, "")
        if title in TABLES and not self.console.quiet:  # of several ranks one notes
            with self._file.open("a") as file:
                print(json.dumps([title, rounds, headings, rows]), file=file)

    def write_page(self, threads: int, load: float, *, whole: bool) -> None:
        """Replace what the page holds between its markers; unless `whole`, only the tables that were measured now.

        Each of these then says when it was measured.
        """
        from _docs_blocks import PAGES
        from _docs_tables import with_tables

        before, _, rest = PAGE.read_text().partition(BEGIN)
        old, _, after = rest.partition(END)
        noted = {table[0]: _markdown(*table) for table in map(json.loads, self._file.read_text().splitlines())}
        conditions = _conditions(threads, load)
        if not whole:
            noted = {title: f"{text}\n{conditions}" for title, text in noted.items()}
            first, *there = old.strip("\n").split("\n\n**")
            conditions = f"{first}\n"
            kept = {text.partition("**")[0]: f"**{text}\n" for text in there}
            noted = kept | noted
        PAGE.write_text(before + BEGIN + "\n" + "\n".join([conditions, *noted.values()]) + "\n" + END + after)
        for page in PAGES:  # which show some of the tables
            if (new := with_tables(text := page.read_text())) != text:
                page.write_text(new)
                self.console.print(f"{page.relative_to(ROOT)}: written anew")


def _conditions(threads: int, load: float) -> str:
    git = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10")
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    there = {distribution.name for distribution in distributions()}  # a section leaves out what is not installed
    named = ("torch", "torchvision", "torchinfo", "torchlens", "wandb", "transformers")
    releases = ", ".join(f"{name} {version(name)}" for name in named if name in there)
    machine = f"{os.cpu_count()} CPUs ({platform.machine()}), {threads} threads, Python {platform.python_version()}"
    when = f"Measured on {time.strftime('%Y-%m-%d')} at commit {commit}"
    return f"{when}: {machine}, {releases}; load {load:.1f} at the start.\n"


def _markdown(title: str, rounds: int, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines: list[Any] = [["", *headings], [":---", *("---:" for _ in headings)], *rows]
    body = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"**{title}** ({rounds} rounds)\n\n{body}"
