"""hookcli diff: what goes wrong, and how it looks."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import pytest
from commands.diffs import INPUT, NET, Cli, save
from records import HEADER, end, recorded_step, text

# What goes wrong.

MISTAKES: dict[tuple[str, ...], str] = {
    (NET,): "diff needs a second model, or options",
    (NET, "net.py:Nett", *INPUT): "B: net.py: unknown name 'Nett'; did you mean Net",
    (NET, "resnt18"): "B: unknown model 'resnt18'; did you mean resnet18",
    (NET, f"{NET} --dtpe bfloat16", *INPUT): "unknown option '--dtpe'; did you mean --dtype",
    (NET, f"{NET} --input 1x3x4x4"): "(its own options are --arg, --weights,",
    (NET, f"{NET} --dtype 'bf", *INPUT): "No closing quotation",
    (NET, f"{NET} {NET}", *INPUT): "unexpected argument 'net.py:Net'; usage: B [OPTIONS] MODEL",
    (NET, NET): "net.py:Net: input shape needed, for example --input 1x3x224x224",
    (NET, NET, *INPUT, "--rtol", "-1"): "--rtol",
    (NET, NET, *INPUT, "--rtol", "much"): "--rtol 'much': give a number",
    (NET, f"{NET} --device warp", *INPUT): "B: --device warp: not available",
    (NET, f"{NET} --device meta", *INPUT): "B: --device meta: no values to compare",
    (NET, f"{NET} --compile=nope", *INPUT): "unknown --compile 'nope'",
    (NET, f"{NET} --amp=float64", *INPUT): "unknown --amp 'float64'",
    (NET, f"{NET} --amp bf16", *INPUT): "unknown --amp 'bf16'; did you mean bfloat16",
    (NET, f"{NET} --amp=", *INPUT): "--amp=: a value is missing; give --amp alone",
    (NET, f"{NET} --attention", *INPUT): "--attention",
    (NET, NET, "--amp", *INPUT): "put it into the quotes of that side, as in hookcli diff 'resnet18 --amp'",
    (f"{NET} --train", *INPUT): "diff needs a second model, or options that B alone has",
    (NET, f"{NET} --path nowhere", *INPUT): "B: --path nowhere: no such folder",
    ("resnet18", "resnet18 --path ."): "B: --path .: resnet18 is a torchvision model",
    ("train.py", "train.py"): "A: 'train.py' is a Python file: record each script with `hookcli run`, then compare the",
    (NET, "net.py"): "B: 'net.py' is a Python file: name the model in it: net.py:Net",
    ("mymodel", NET): "A: 'mymodel' is a folder of Transformers; did you mean hf:mymodel?",
    (NET, "gone.json"): "gone.json: can't be read as a saved report (No such file or directory)",
    (NET, "weights.pt"): "B 'weights.pt': weights belong to a model: give 'MODEL --weights weights.pt'",
    ("a.json", "b.json"): "A holds a report of activations, B a report of shapes: compare reports of the same command",
    ("a.json", "a.json", "--backward"): "--backward: both sides must be models",
    ("a.json", NET, "--same-weights", *INPUT): "--same-weights: both sides must be models",
    ("trace.json", "trace.json"): "reports of trace can't be compared",
    ("trace.json", NET, *INPUT): "a saved report of trace can't be compared with a model",
    (NET, NET, *INPUT, "--loss", "mean"): "--loss: without --backward nothing is differentiated",
    (NET, NET, *INPUT, "--match", "zz*"): "no module or parameter matches 'zz*'",
    (NET, NET, *INPUT, "--sort", "rel"): "--sort: unknown column 'rel'",
    (NET, NET, *INPUT, "-f", "dot"): "--format dot: only for `hookcli graph` or `hookcli flow` (",
    ("a.json", "a.json", "--columns", "rel_l2"): "--columns: unknown column 'rel_l2'",
    (NET, f"{NET} --edit zz:output=zero", *INPUT): "zz",
    (NET, f"{NET} --weights no.pt", *INPUT): "B: --weights: no file 'no.pt'",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_one_clear_line(cli: Cli, net: Path, argv: tuple[str, ...]) -> None:
    for name, command in (("a.json", "activations"), ("b.json", "shapes"), ("trace.json", "trace")):
        if name in argv:
            save(cli, name, NET, command=command)
    (net / "train.py").write_text("loss = net(x).sum()\nloss.backward()\n")
    (net / "mymodel").mkdir()
    (net / "mymodel" / "config.json").write_text('{"model_type": "bert"}')
    (net / "weights.pt").write_bytes(b"")
    ran = cli("diff", *argv)
    assert (ran.code, ran.out) == (2, ""), ran.out
    lines = ran.err.splitlines()
    assert lines[-1].startswith("hookcli: error: ") and MISTAKES[argv] in lines[-1], ran.err
    assert len(lines) <= 2 and "Traceback" not in ran.err


RECORD = "a.run.jsonl"
ENDS = {
    ("diff",): "hookcli diff resnet18 'resnet18 --dtype bfloat16' --rtol 2e-2",
    ("diff", NET): "hookcli diff resnet18 'resnet18 --dtype bfloat16' --rtol 2e-2",
    ("diff", NET, "resnt18"): "hookcli diff resnet18 'resnet18 --dtype bfloat16' --rtol 2e-2",
    ("diff", NET, "gone.json"): "hookcli diff resnet18 'resnet18 --dtype bfloat16' --rtol 2e-2",
    ("diff", RECORD): "hookcli diff a.run.jsonl b.run.jsonl",
    ("diff", RECORD, NET): "hookcli diff a.run.jsonl b.run.jsonl",
    ("diff", RECORD, "gone.run.jsonl"): "hookcli diff a.run.jsonl b.run.jsonl",
    ("diff", RECORD, RECORD, RECORD): "hookcli diff a.run.jsonl b.run.jsonl",
    ("diff", NET, "weights.pt"): f"hookcli diff {NET} '{NET} --weights weights.pt'",
    ("weights",): "hookcli weights resnet18",
    ("weights", "nothing"): "hookcli weights resnet18",
    ("weights", "gone.safetensors"): "hookcli weights resnet18",
    ("weights", RECORD): "hookcli show a.run.jsonl",
}


@pytest.mark.sweep
def test_mistakes_in_the_sides_end_with_a_command_that_runs(cli: Cli, net: Path) -> None:
    import torch

    torch.save(runpy.run_path("net.py")["Net"]().state_dict(), "weights.pt")
    for name in "ab":
        (net / f"{name}.run.jsonl").write_text(text([HEADER, recorded_step(0), end()]))
    for argv, example in ENDS.items():
        ran = cli(*argv)
        assert ran.code == 2 and ran.err.endswith(f"; for example: {example}\n"), ran.err
    for example in set(ENDS.values()):
        small = example.replace("resnet18", NET)
        given = INPUT if small.startswith(f"hookcli diff {NET}") else ()  # this model has no default input
        assert cli(*shlex.split(small)[1:], *given, "-q").code in (0, 1), example


def test_an_error_that_names_what_to_type_has_no_example_of_something_else(cli: Cli, net: Path) -> None:
    assert "did you mean Net? (choose from: " in (said := cli("diff", NET, "net.py:Nett", *INPUT).err)
    assert "for example" not in said and "for example" not in cli("diff", "net.py", NET).err


def test_a_record_alone_is_shown(cli: Cli, net: Path) -> None:
    (net / RECORD).write_text(text([HEADER, recorded_step(0), end()]))
    assert cli("diff", RECORD, NET).err.endswith("; for example: hookcli show a.run.jsonl\n")


CRASHES = """
from net import Net

class Crashes(Net):
    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def forward(self, x):
        x = self.conv(x)
        if self.fails:
            raise KeyError("lost")
        return x
"""


@pytest.mark.parametrize("crashing", [0, 1])
def test_a_crash_shows_what_was_compared(cli: Cli, net: Path, crashing: int) -> None:
    (net / "crashes.py").write_text(CRASHES)
    sides = [f"crashes.py:Crashes --arg fails={int(number == crashing)}" for number in (0, 1)]
    ran = cli("diff", *sides, *INPUT)
    assert ran.code == 2 and "conv" in ran.out and "incomplete: the run failed" in ran.out
    said = f"{'AB'[crashing]}: the model (Crashes) failed on input 2x3x4x4: KeyError: 'lost'"
    assert ran.err.splitlines() == [f"hookcli: error: {said}", "  at crashes.py:12 forward"]


def test_nothing_in_common(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --compile eager", *INPUT, "--match", "conv", "--ops")
    assert ran.code == 2 and "nothing to compare" in ran.err


def test_fits_a_terminal() -> None:
    """The table of a wide report, at 80 columns."""
    from hookcli.reporters.table import TableReporter
    from hookcli.table import Report, Row
    from hookcli.table.columns.layouts import TENSORS as COLUMNS
    from hookcli.table.grouping import View

    values = dict.fromkeys((column.name for column in COLUMNS), 0.0012345678)
    words = {"fqn": "layer1.0.downsample.conv", "type": "Conv2d", "path": "", "kind": "output", "dtype": "float32"}
    row = Row({**values, **words, "beyond": True, "shape": [10, 3, 224, 224], "call": 0, "differs": "x"})
    text = TableReporter().render([Report("diff", "a → b", COLUMNS, [row])], View(width=80))
    assert max(map(len, text.splitlines())) <= 80 and "beyond" in text and "Rel l2" in text.replace("\n", " ")


def test_a_pair_that_crashes_has_no_table_of_what_is_removed(cli: Cli, net: Path) -> None:
    """Where nothing was compared, the error says it all; where something was, that is shown and no more."""
    code = (
        "from torch import nn\nfrom net import Net\n\nclass Wide(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Softplus(), nn.Tanh()\n"
        "        self.net = Net()\n"
        "    def forward(self, x):\n        return self.net(self.b(self.a(x)))\n"
        "\nclass Late(Net):\n    def forward(self, x):\n        super().forward(x)\n        raise ValueError('late')\n"
        "\nclass Early(nn.Sigmoid):\n    def forward(self, x):\n        raise ValueError('early')\n"
    )
    (net / "bad.py").write_text(code)
    ran = cli("diff", "bad.py:Wide", "bad.py:Early", *INPUT)
    assert ran.code == 2 and ran.out == "" and "ValueError: early" in ran.err
    ran = cli("diff", "bad.py:Wide", "bad.py:Late", *INPUT)
    assert ran.code == 2 and "removed" not in ran.out.partition(" compared")[0]
    ran = cli("diff", NET, "bad.py:Late", *INPUT)
    assert ran.code == 2 and ran.out.startswith("B: the model (Late) failed") and "incomplete" in ran.out


def test_a_name_of_torchvision_is_not_looked_for_in_files_beside(cli: Cli, net: Path) -> None:
    (net / "small.py").write_text("def squeezenet1_1():\n    return 1\n")
    ran = cli("diff", "squeezenet1_1", "squeezenet1_1 --train", "--input", "1x3x32x32")
    assert ran.code in (0, 1) and "unknown model" not in ran.err
