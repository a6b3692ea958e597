"""Charts and distributions as SVG and PNG, read back: every figure stands where the report says."""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from records import RUN, save

from hookcli.errors import UsageError
from hookcli.reporters.pictures import SvgReporter
from hookcli.table import HIST_COLUMNS, STATS_COLUMNS, Column, Report, Row, Skipped, TensorStats, columns_named
from hookcli.table.grouping import View
from hookcli.tensors.stats import measure, resolve

pytestmark = pytest.mark.xdist_group("pictures")  # whose library one worker imports
Cli = Callable[..., Any]
Path2D = list[tuple[str, float, float]]
STEPS = (*columns_named("step", "forward"), Column("loss", "Loss"), Column("ratio", "|dw|/|w|"))


def over_time(rows: Sequence[dict[str, Any]], model: str = "Net", **meta: Any) -> Report:
    filled = [Row({"step": 10 * n, "forward": None, **row}) for n, row in enumerate(rows)]
    columns = [*STEPS, *(Column(f"{name}_b", name) for name in ("loss", "ratio") if "against" in meta)]
    return Report("over-time", model, columns, filled, meta, grouping="list")


def drawn(*reports: Report) -> ET.Element:
    return ET.fromstring(SvgReporter().render(reports, View()))


def words(root: ET.Element) -> list[str]:
    return ["".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("text")]


def path(root: ET.Element, identifier: str) -> Path2D:
    """The commands of the path of this identifier, each with its place."""
    group = next(element for element in root.iter() if element.get("id") == identifier)
    text = next(element.get("d", "") for element in group.iter() if element.tag.endswith("path"))
    return [(kind, float(x), float(y)) for kind, x, y in re.findall(r"([ML]) ([-\d.]+) ([-\d.]+)", text)]


def check_heights(points: Path2D, values: Sequence[float]) -> None:
    (_, left, bottom), (_, right, top) = points[0], points[-1]
    assert len(points) == len(values)
    for number, ((_, x, y), value) in enumerate(zip(points, values, strict=True)):
        assert x == pytest.approx(left + (right - left) * number / (len(values) - 1), abs=0.01)
        assert y == pytest.approx(bottom + (top - bottom) * (value - values[0]) / (values[-1] - values[0]), abs=0.01)


def test_curves_are_where_their_figures_say() -> None:
    losses, ratios = [4.0, 3.5, 1.0, 2.0], [1e-6, 1e-3, 1e-4, 1.0]
    root = drawn(over_time([{"loss": a, "ratio": b} for a, b in zip(losses, ratios, strict=True)]))
    check_heights(path(root, "curve-0A"), losses)
    check_heights(path(root, "curve-1A"), [math.log10(ratio) for ratio in ratios])
    said = words(root)
    assert {"Loss", "|dw|/|w| (logarithmic)", "step"} <= set(said)
    assert "Net · 4 recorded steps (0 to 30)" in said


@pytest.mark.sweep
def test_what_is_not_finite_is_a_gap_with_a_cross_and_what_is_flat_a_line_of_text() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        root = drawn(over_time([{"loss": x, "ratio": 0.5} for x in (1.0, 2.0, bad, 3.0, 4.0)]))
        assert [kind for kind, *_ in path(root, "curve-0A")] == ["M", "L", "M", "L"]
        crosses = next(element for element in root.iter() if element.get("id") == "curve-0-lost")
        assert sum(element.tag.endswith("use") for element in crosses.iter()) == 1
        assert "|dw|/|w|: 0.5000 throughout" in words(root)
    missing = drawn(over_time([{"loss": x} for x in (1.0, None, 3.0)]))
    assert not any(element.get("id") == "curve-0-lost" for element in missing.iter())


def test_nothing_is_drawn_of_nothing() -> None:
    assert "Net · no recorded step" in words(drawn(over_time([])))
    assert "Net · 1 recorded step (0)" in words(drawn(over_time([{"loss": math.nan}])))


def test_two_runs_have_a_curve_each() -> None:
    rows = [{"loss": 4.0 - n, "loss_b": 4.0 + n} for n in range(3)]
    root = drawn(over_time(rows, against={"a": "one.jsonl", "b": "two.jsonl"}))
    assert {"A: one.jsonl", "B: two.jsonl"} <= set(words(root))
    (_, _, before), *_, (_, _, after) = path(root, "curve-0A")
    (_, _, other), *_, (_, _, last) = path(root, "curve-0B")
    assert before == other and after > before > last  # y grows downwards


@pytest.mark.sweep
def test_names_are_text_and_not_markup_or_mathematics() -> None:
    name = "<script>$\\frac{1}{2}$ & ]]>\x1b[31m"
    report = over_time([{"loss": 1.0}, {"loss": 2.0}], model=name)
    assert any(word.startswith("<script>$\\frac{1}{2}$ & ]]>\\x1b[31m · ") for word in words(drawn(report)))
    assert SvgReporter().render([report], View()) == SvgReporter().render([report], View())


def distribution(x: torch.Tensor, *skipped: Skipped) -> ET.Element:
    stats = resolve([measure(x, hist=True)])[0]
    columns = [*columns_named("fqn"), *STATS_COLUMNS, *HIST_COLUMNS]
    rows = [Row({"fqn": "fc", "shape": list(x.shape)}, stats)]
    return drawn(Report("activations", "Net", columns, rows, skipped=skipped))


def test_what_was_not_measured_stands_below() -> None:
    below = " ".join(words(distribution(torch.ones(3), Skipped("head", "never called"))))
    assert "not measured: " in below and "head" in below and "never called" in below
    assert "not measured" not in " ".join(words(distribution(torch.ones(3))))


def test_bars_are_as_high_as_their_shares() -> None:
    root = distribution(torch.tensor([-1.5, 0.0, 0.0, 0.3, 1.0, 1.1, 1.9, 2.0]))
    heights = []
    for number in range(8):  # from -1.5 | -1 | -0.5: none | of zeros | from 0 | 0.5 | 1 | 1.5 until 2
        ys = [y for *_, y in path(root, f"bar-{number}")]
        heights.append(max(ys) - min(ys))
    assert [height / heights[0] for height in heights] == pytest.approx([1, 0, 0, 2, 1, 0, 2, 2], abs=0.01)
    assert any(word.startswith("fc · 8 · mean 0.6000") for word in words(root))


def test_a_tensor_without_a_finite_element_says_so() -> None:
    assert "no finite element" in words(distribution(torch.full((3,), math.nan)))
    assert "no finite element" in words(distribution(torch.empty(0)))


def test_zeros_do_not_hide_the_rest() -> None:
    root = distribution(torch.cat([torch.zeros(1000), torch.linspace(1, 2, 11)[:-1]]))
    ys = [y for number in range(1, 30) for *_, y in path(root, f"bar-{number}")]
    assert max(ys) - min(ys) > 30 and "zeros 99.0%" in words(root)


def test_suffixes_choose_the_picture(cli: Cli, net: Path) -> None:
    record = str(save(net / "a.jsonl", RUN))
    assert cli("show", record, "--over-time", ".", "-o", "a.svg").code == 0
    assert "Loss (logarithmic)" in words(ET.fromstring((net / "a.svg").read_text()))
    ran = cli("show", record, "--over-time", ".", "--columns", "loss", "-o", "a.png")
    assert ran.code == 0 and "wrote a.png" in ran.err, ran.err
    head = (net / "a.png").read_bytes()[:24]
    width, height = struct.unpack(">II", head[16:])
    assert head.startswith(b"\x89PNG") and width > 1000 and height > 200
    ran = cli("activations", "net.py:Net", "-i", "2x3x4x4", "--hist", "conv", "-o", "h.svg")
    assert ran.code == 0 and any(
        w.startswith("conv (Conv2d)") for w in words(ET.fromstring((net / "h.svg").read_text()))
    )


def test_mistakes_are_told_before_the_work(cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = str(save(net / "a.jsonl", RUN))
    ran = cli("shapes", "net.py:Net", "-i", "2x3x4x4", "-o", "x.png")
    assert (ran.code, ran.out) == (2, "") and "`hookcli show --over-time`" in ran.err, ran.err
    assert "--output" in cli("show", record, "--over-time", ".", "-f", "png").err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for form in ("svg", "png"):
        ran = cli("show", record, "--over-time", ".", "-o", f"x.{form}")
        assert ran.code == 2 and len(ran.err.splitlines()) == 1, ran.err
        assert f"--format {form}: matplotlib " in ran.err and "pip install 'hookcli[charts]'" in ran.err
        assert not (net / f"x.{form}").exists()
    with pytest.raises(UsageError, match="matplotlib"):
        SvgReporter().check(STEPS)


def gradient(fqn: str, index: int, l2: float, nan: int = 0, kind: str = "parameter") -> Row:
    of = "Linear" if kind == "parameter" else ""
    return Row({"fqn": fqn, "kind": kind, "type": of, "index": index}, TensorStats(8, 0.0, 1.0, -1.0, 1.0, l2, nan=nan))


def test_norms_of_gradients_are_drawn_from_the_input_to_the_loss() -> None:
    sizes = {"c": 1e-2, "b": 1e-5, "a": 1e-6}  # in order of arrival
    rows = [gradient(f"{name}.weight", n, norm) for n, (name, norm) in enumerate(sizes.items())]
    rows += [gradient("d.weight", -1, 0.0), gradient("e.weight", -2, 1.0, nan=1), gradient("a.bias", 3, 2.0)]
    root = drawn(Report("grads", "Net", [*columns_named("fqn", "kind", "pass"), *STATS_COLUMNS], rows))
    said = words(root)
    assert said.index("a") < said.index("b") < said.index("c") < said.index("d") < said.index("e")
    assert {"Linear weight", "Linear bias", "zero", "NaN or Inf", "L2 norm (logarithmic)"} <= set(said)
    assert "layer, from the input to the loss" in said and any("Net" in word for word in said)
    check_heights(path(root, "gradient-1"), [math.log10(norm) for norm in (1e-6, 1e-5, 1e-2)])  # of weights


def test_only_so_many_histograms_are_drawn_and_those_with_nan_among_them() -> None:
    values = [torch.arange(4.0) + n for n in range(82)]
    values[50][0] = math.nan
    rows = [Row({"fqn": f"f{n}"}, resolve([measure(x, hist=True)])[0]) for n, x in enumerate(values)]
    said = words(drawn(Report("activations", "Net", [*columns_named("fqn"), *STATS_COLUMNS, *HIST_COLUMNS], rows)))
    titles = [word.split()[0] for word in said if re.match(r"f\d+ · mean", word)]
    assert len(titles) == 24 and titles[0] == "f0" and titles[-1] == "f81" and "f50" in titles
    assert any(word.startswith("24 of 82 tensors: those with NaN or Inf, others evenly spaced") for word in said)
