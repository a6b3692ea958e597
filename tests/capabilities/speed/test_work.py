"""The work of recorded steps: samples, tokens and operations, their rates, and the share of a peak."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import observed, report
from records import HEADER, save
from support import Hides, each_once, swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from hookcli.capabilities.speed.peaks import PUBLISHED, parsed_peak, published_peak
from hookcli.errors import UsageError
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.reading import read_record
from hookcli.record.file.views.over_time import of_figure, over_time
from hookcli.table import Row

STEPS, ROWS, WORDS = 6, 8, 5


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(20, 8), nn.Linear(8, 16), nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.mix(self.embed(tokens)).relu())
        return scores


def language() -> tuple[nn.Module, Tensor, Tensor]:
    tokens = torch.randint(20, (ROWS, WORDS))
    return Language(), tokens, tokens.roll(-1, 1)


def images() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    return model, torch.randn(ROWS, 3, 8, 8), torch.randint(3, (ROWS,))


Make = Callable[[], tuple[nn.Module, Tensor, Tensor]]


def train(make: Make, *, micro: int = 1) -> nn.Module:
    """`micro`: the number of batches whose gradients are summed before a step."""
    model, x, y = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(micro):
            F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
    return model


def counted(make: Make) -> int:
    """The operations of a step, as PyTorch counts them while it runs."""
    model, x, y = make()
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
    return int(counter.get_total_flops())


def rows(make: Make, micro: int = 1, **options: Any) -> list[Row]:
    seen = observed(lambda: train(make, micro=micro), **options)
    return [report(step, "speed").rows[0] for step in seen.of()]


@pytest.mark.parametrize(
    ("micro", "make", "tokens"), each_once([1, 3], starmap(pytest.param, [(language, ROWS * WORDS), (images, None)]))
)
def test_the_work_of_each_step(make: Make, tokens: int | None, micro: int) -> None:
    for row in rows(make, micro, throughput=True):
        assert (row["step_samples"], row["step_flops"]) == (micro * ROWS, micro * counted(make))
        assert row["step_tokens"] == (tokens and micro * tokens)


def test_rates_follow_from_one_time_and_the_share_from_the_peak() -> None:
    first, *others = rows(language, peak_flops="2T")
    assert first.get("samples_per_second") is None and len(others) == STEPS - 1
    for row in others:
        each = [row[f"{name}_per_second"] / row[f"step_{name}"] for name in ("samples", "tokens", "flops")]
        assert each == pytest.approx([each[0]] * 3, rel=1e-3) and each[0] > 0  # operations are a whole number
        assert row["peak_flops"] == 2e12
        assert row["peak_share"] == pytest.approx(row["flops_per_second"] / 2e12, rel=1e-3)


def test_the_peak_of_the_cpu_is_measured() -> None:
    row = rows(language, throughput=True)[-1]
    assert row["peak_flops"] > 1e6 and row["peak_share"] > 0


def test_nothing_is_counted_unless_asked_for() -> None:
    assert not any(one.probe == "speed" for step in observed(lambda: train(images)).of() for one in step.reports)


def test_work_that_a_graph_hides_is_not_told() -> None:
    hiding = type("CheckpointFunction", (Hides,), {})

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = hiding.apply(self.layer(x))  # type: ignore[attr-defined]
            return scores

    row = rows(lambda: (Hidden(), torch.randn(ROWS, 4), torch.randint(3, (ROWS,))), throughput=True)[-1]
    assert row["step_flops"] is None and row["step_samples"] == ROWS and "peak_share" not in row.values


def test_figures_over_time() -> None:
    seen = observed(lambda: train(language), throughput=True)
    [history] = of_figure(over_time(seen.of(), ""), "samples_per_second")
    assert [row.get("samples_per_second") is None for row in history.rows] == [True] + [False] * (STEPS - 1)


@pytest.mark.parametrize(("make", "tokens"), [(language, True), swept(images, False)])
def test_the_page_of_a_record_charts_rates(make: Make, tokens: bool, tmp_path: Path) -> None:
    seen = observed(lambda: train(make), throughput=True)
    page = RecordPage(read_record(save(tmp_path / "a.run.jsonl", [HEADER, *seen.of()])))
    page.take()
    steps = page.payload()["steps"]
    charted = {name: title for title, labels in steps["charts"] for name in labels}
    shown = {figure["name"]: figure["values"] for figure in steps["tracks"][0]["figures"]}
    rates = {name for name in charted if name.endswith("_per_second")}
    assert rates == {"samples_per_second", "tokens_per_second", "flops_per_second"}
    assert charted["peak_share"] == "Share of the device's peak (MFU)" and "peak_share" in shown
    assert rates & shown.keys() == rates - (set() if tokens else {"tokens_per_second"})
    recorded = [report(step, "speed").rows[0].get("samples_per_second") for step in seen.of()]
    assert shown["samples_per_second"] == [None, *(pytest.approx(rate, rel=1e-6) for rate in recorded[1:])]


@pytest.mark.parametrize(("text", "flops"), [("989T", 989e12), ("989e12", 989e12), ("1.5 P", 1.5e15), ("60G", 6e10)])
def test_peaks_are_typed_in_short(text: str, flops: float) -> None:
    assert parsed_peak(text) == flops


@pytest.mark.parametrize("text", ["", "fast", "989X", "0", "-3T", "1.2.3T"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--peak-flops"):
        parsed_peak(text)


@pytest.mark.parametrize(
    ("name", "kind", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "float16", 756e12),
        ("NVIDIA H100 NVL", "bfloat16", 835e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
        ("NVIDIA A10", "float16", 125e12),
        ("NVIDIA L4", "float32", 30.3e12),
        ("NVIDIA L40S", "bfloat16", 362e12),
        ("Tesla V100-SXM2-16GB", "tf32", None),
        ("Tesla T4", "float16", 65e12),
        ("Tesla T4", "bfloat16", None),
        ("NVIDIA GeForce GTX 1080", "float16", None),
    ],
)
def test_published_peaks_are_found_by_name(name: str, kind: str, flops: float | None) -> None:
    assert published_peak(name, kind) == flops


def test_the_page_has_the_peaks() -> None:
    page = Path(__file__).parents[3] / "docs" / "questions" / "speed.md"
    lines = [line for line in page.read_text().splitlines() if re.match(r"\| \[", line)]
    kinds = ("float16", "bfloat16", "tf32", "float32", "float64")
    wanted = [
        f"| [{words}]({one.source}) | {' | '.join(f'{one.tflops[k]:g}' if k in one.tflops else '-' for k in kinds)} |"
        for words, one in PUBLISHED.items()
    ]
    assert lines == wanted
