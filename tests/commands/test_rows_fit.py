"""Rows on a terminal: names lose parts of their middle, never letters; figures stay; remarks stand below their rows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.shown import on_terminal
from commands.test_marked_rows import GPT, INPUT
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support import swept

from hookcli.table.names import abbreviated

Cli = Callable[..., Any]
ADAPTED = """import torch
from torch import nn

class Lora(nn.Module):  # named as PEFT names its layers
    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(16, 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, 16, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_projection, self.value_projection = Lora(nn.Linear(16, 16)), Lora(nn.Linear(16, 16))

    def forward(self, x):
        return self.value_projection(torch.tanh(self.query_projection(x)))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attention = Attention()

    def forward(self, x):
        return x + self.self_attention(x)

class Wrapped(nn.Module):
    def __init__(self, name, inner):
        super().__init__()
        self.name = name
        self.add_module(name, inner)

    def forward(self, x):
        return getattr(self, self.name)(x)

def model():
    inner = nn.Sequential(*[Layer() for _ in range(3)])
    for name in ("h", "transformer", "model", "base_model"):
        inner = Wrapped(name, inner)
    return inner
"""
LONG = """
from torch import nn

class Named(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        for part in self.children():
            x = part(x)
        return x

def model():
    deep = nn.Linear(16, 16)
    for level in range(30):
        deep = Named(**{f"nested{level}": deep})
    long = {"a" * 200: nn.Linear(16, 16), "a" * 199 + "b": nn.ReLU(), "编码器" * 30: nn.Linear(16, 16)}
    return Named(**long, 层归一化模块=nn.LayerNorm(16), deep=deep)
"""
OUTER = ("--depth", "1", "-q")
SCREEN = {"LINES": "24", "NO_COLOR": "1"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("adapted.py").write_text(ADAPTED)
    Path("gpt.py").write_text(GPT)


def is_abbreviation(text: str, name: str) -> bool:
    """True if each piece of the text between gaps is whole parts of the name, in order."""
    pattern = ".*".join(rf"(?<![^.:]){re.escape(piece.lstrip(':'))}(?![^.:])" for piece in text.split("…") if piece)
    return re.fullmatch(f".*?{pattern}", name, re.DOTALL) is not None


def test_names_lose_parts_of_their_middle() -> None:
    assert abbreviated(["bert.encoder.layer.0-3.intermediate"], 28) == ["bert…layer.0-3.intermediate"]
    same = [f"bert.encoder.layer.{n}.attention.self.{part}.weight" for n in range(3) for part in ("query", "key")]
    short = abbreviated(same, 28)
    assert len(set(short)) == 6 and max(map(len, short)) <= 28
    assert abbreviated(["encoder.layer.self:scaled_dot_product_attention_1"], 20) == [
        "…self:scaled_dot_product_attention_1"  # no word is broken
    ]


@pytest.mark.sweep
@given(st.lists(st.text("ab.:1", min_size=1, max_size=40), max_size=6), st.integers(1, 50))
def test_no_name_becomes_anothers(names: list[str], width: int) -> None:
    short = abbreviated(names, width)
    assert len(set(short)) == len(set(names)) and len(short) == len(names)
    assert all(text == name or (len(text) < len(name) and "…" in text) for text, name in zip(short, names, strict=True))


@pytest.mark.parametrize("width", [80, swept(100), swept(120)])
def test_long_names_push_no_figures_out(width: int, cli: Cli) -> None:
    names = {
        line.split(",")[0] for line in cli("grads", "adapted.py:model", "-i", "4x16", "-f", "csv").out.splitlines()
    }
    said = on_terminal(width, "grads", "adapted.py:model", "-i", "4x16", "--depth", "all", "-q", **SCREEN)
    lines = said.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("Name"))
    assert {"Mean", "Std", "Min", "Max", "L2", *(["Zeros"] if width > 80 else [])} <= {*lines[head].split()}
    rows = [line.split() for line in lines[head + 2 :] if re.match(r"\S+\.\S+ ", line)]
    assert len(rows) == 12 == len(names) - 1 and max(map(len, lines[: head + 14])) <= width
    assert all(sum(is_abbreviation(row[0], name) for name in names) == 1 for row in rows)


@pytest.mark.sweep
@pytest.mark.parametrize("width", [80, swept(120)])
def test_words_as_long_as_a_line_and_deep_nesting_push_no_figures_out(width: int) -> None:
    Path("long.py").write_text(LONG)
    for depth in ("1", "all"):
        said = on_terminal(width, "activations", "long.py:model", "-i", "4x16", "--depth", depth, "-q", **SCREEN)
        head, _, *rows = said.splitlines()[said.splitlines().index(next(re.finditer("^Layer.*$", said, re.M))[0]) :]
        assert {"Mean", "Std", "Min", "Max"} <= {*head.split()} and len({row.split()[0] for row in rows}) == len(rows)
        assert all(cell_len(row) <= width for row in rows) and "层归一化模块" in said
        assert f"{'a' * 12}…{'a' * 12} " in said and f"{'a' * 12}…{'a' * 11}b " in said
        assert ("nested29" in said) == (depth == "all")


@pytest.mark.sweep
@pytest.mark.parametrize("command", ["plugins", swept("comm adapted.py:model -i 4x16 --hook allreduce,fp16")])
def test_no_word_is_broken(command: str) -> None:
    lines = on_terminal(80, *command.split(), "-q", **SCREEN).splitlines()
    rows = [line for line in lines if line.startswith(("reporter", "allreduce", "fp16"))]
    assert len(rows) >= 2 and max(map(len, lines)) <= 80
    assert "plugins" not in command or any(line.endswith("github:GithubReporter") for line in rows)


@pytest.mark.sweep
def test_remarks_stand_below_their_rows_and_evict_nothing(cli: Cli) -> None:
    healthy = on_terminal(80, "activations", "gpt.py:GPT", *INPUT, "--arg", "dead=none", *OUTER, **SCREEN)
    dead = on_terminal(80, "activations", "gpt.py:GPT", *INPUT, *OUTER, **SCREEN).splitlines()
    heads = [next(line for line in lines if line.startswith("Layer")) for lines in (healthy.splitlines(), dead)]
    assert heads[0].split() == heads[1].split() and "Type" in heads[1]
    (at,) = (number for number, line in enumerate(dead) if line.startswith("blocks.3 "))
    assert dead[at + 1] == "  ▲ mlp.act all zero" and dead[at + 2].startswith("blocks.4 ")
    whole = on_terminal(80, "activations", "gpt.py:GPT", *INPUT, "--depth", "all", "-q", **SCREEN)
    assert re.search(r"^    act +\S+ .*100%.*\n      ▲ all zero$", whole, re.MULTILINE)
    wide = on_terminal(160, "activations", "gpt.py:GPT", *INPUT, "--depth", "all", "-q", **SCREEN)
    assert re.search(r"^    act .* all zero$", wide, re.MULTILINE)  # there is room beside it


@pytest.mark.sweep
def test_short_marks_of_many_rows_stand_beside_them() -> None:
    lines = on_terminal(80, *CAPTIONED["diff"], "--ops", "-q", NO_COLOR="1").splitlines()
    assert re.search(r" beyond$", next(line for line in lines if line.startswith("head ")))
    at = next(number for number, line in enumerate(lines) if line.startswith("blocks.0 "))
    assert lines[at + 1].startswith("  ▲ beyond, in ") and max(map(len, lines[:-1])) <= 80


@pytest.mark.sweep
def test_bars_are_shares_after_a_space() -> None:
    said = on_terminal(100, "shapes", "gpt.py:GPT", *INPUT, "--depth", "1", "--columns", "fqn,macs", "-q", **SCREEN)
    bars = {
        line.split()[0]: line.partition(" M" if " M " in line else " K")[2] for line in said.splitlines() if "█" in line
    }
    assert bars["(model)"].strip() == "█" * 7 and len(bars) >= 1
    small = next(line for line in said.splitlines() if line.startswith("blocks.0"))
    assert 1 <= len(re.sub("[^▏▎▍▌▋▊▉█]", "", small)) <= 2  # a seventh of the model, not half of a scale of decades
    assert not re.search(r"\d[▏▎▍▌▋▊▉█▁▂▃▄▅▆▇]", said)


def test_what_is_piped_from_a_terminal_is_not_wider_than_it(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    argv = [sys.executable, "-m", "hookcli", "grads", "adapted.py:model", "-i", "4x16", "--depth", "all", "-q"]
    file = (tmp_path / "file.txt").open("w")
    for columns, stream, errors in ((80, subprocess.PIPE, theirs), (80, subprocess.PIPE, None), (None, file, theirs)):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        errors = errors or subprocess.DEVNULL  # `2>/dev/null | head`: stdin alone is a terminal
        ran = forks.run(argv, stdin=theirs, stdout=stream, stderr=errors, env=environment, text=True)
        text = ran.stdout if columns else Path("file.txt").read_text()
        rows = [line for line in text.splitlines() if ".lora_" in line and "  " in line]
        assert len(rows) >= 12 and (max(map(len, rows)) <= 80) == bool(columns)
        assert not re.search("[▏▎▍▌▋▊▉█]", text)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("command", "first", "heading"),
    [
        ("flow resnet18", "71 calls: 20 Conv2d, 20 BatchNorm2d, 17 ReLU, 8 add_, ", {"Layer", "Type", "From"}),
        swept("trace resnet18 -i 2x3x64x64", r"1,\d+ events: \d+ saved_tensor_pack, ", {"Kind", "Where"}),
    ],
)
def test_a_long_sequence_begins_with_a_summary_and_fits_the_screen(command: str, first: str, heading: set[str]) -> None:
    lines = on_terminal(80, *command.split(), "-q", **SCREEN).splitlines()
    assert re.match(first, lines[0]) and len(lines) <= 26
    assert heading <= {*next(line for line in lines if re.match(" *(Id|Kind|µs) ", line)).split()}
    assert any(re.match(r"the first \d+ of .* rows.*\(--depth all", line) for line in lines)


CAPTIONED = {
    "shapes": ("shapes", "resnet18"),
    "activations": ("activations", "gpt.py:GPT", *INPUT),
    "grads": ("grads", "gpt.py:GPT", *INPUT),
    "memory": ("memory", "squeezenet1_1", "-i", "2x3x32x32"),
    "fits": ("memory", "adapted.py:model", "-i", "4x16", "--fits", "20MiB"),
    "trace": ("trace", "gpt.py:GPT", *INPUT),
    "graph": ("graph", "resnet18", "-i", "1x3x64x64"),
    "weights": ("weights", "gpt.py:GPT"),
    "diff": ("diff", "gpt.py:GPT --seed 1", "gpt.py:GPT", *INPUT),
}


OF_A_KIND = ("activations", "grads", "trace", "graph", "weights", "fits", "memory", "diff")  # as others are


@pytest.mark.sweep
@pytest.mark.parametrize("name", [swept(name) if name in OF_A_KIND else name for name in CAPTIONED])
def test_two_lines_at_most_stand_below_a_table(name: str, cli: Cli) -> None:
    """They count what they leave out; a pipe and --depth all have all of it. What a peak consists of is not cut."""
    argv = CAPTIONED[name]
    lines = on_terminal(80, *argv, **SCREEN).splitlines()
    lines = lines[:-1] if lines[-1].startswith("Next: ") else lines
    is_row = [len(re.findall(r"\S {2,}(?=\S)", line)) > 1 or line.startswith("  ▲") for line in lines]
    below = lines[len(lines) - is_row[::-1].index(True) :]
    assert 1 <= len(below) <= (4 if name == "memory" else 2) and max(map(len, lines)) <= 80, below
    whole = " ".join(cli(*argv).out.split())
    noted = {"shapes": "AdamW +", "memory": "not included: ", "fits": "not included: ", "diff": "Excess: "}.get(name)
    if noted:
        deep = " ".join(on_terminal(80, *argv, "--depth", "all", **SCREEN).split())
        assert re.search(r"\d notes?\b.* \(--depth all", below[-1]) and noted not in " ".join(lines)
        assert noted in deep and noted in whole
