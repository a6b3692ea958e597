"""Ranks and singular values of outputs, weights and updates, against explicit singular values in float64."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small
from support import Later
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.spectrum.layout import COLUMNS
from hookcli.capabilities.spectrum.probe import SpectrumProbe
from hookcli.capabilities.spectrum.spectra import Matrix
from hookcli.hooks.session import HookSession
from hookcli.record.file.reading import read_record
from hookcli.table import Report, Row
from hookcli.table.folding import folded
from hookcli.table.grouping import group_rows
from hookcli.tensors.files.pytorch import stored
from hookcli.tensors.files.statistics import spectrum

pytestmark = pytest.mark.xdist_group("timm and Transformers")
transformers = Later("transformers")
Cli = Callable[..., Any]
Net = tuple[nn.Module, list[Tensor]]


def bert() -> Net:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes)).eval(), [torch.arange(20)[None]]


NETS: dict[str, Callable[[], Net]] = {
    "densenet": lambda: (small("densenet121").eval(), [torch.randn(2, 3, 32, 32)]),
    "vit": lambda: (small("vit_b_32").eval(), [torch.randn(3, 3, 64, 64)]),
    "bert": bert,
}


def right(matrix: Tensor) -> dict[str, float]:
    """The figures of a matrix by their definitions, of its singular values in float64."""
    values = torch.linalg.svdvals(matrix.detach().double())
    shares = values / values.sum()
    entropy = -sum(p * math.log(p) for p in shares.tolist() if p > 0)
    figures = {"effective_rank": math.exp(entropy), "stable_rank": float(values.square().sum() / values[0].square())}
    return figures | {"spectral_norm": float(values[0]), "top_share": float(shares[0])}


def agrees(row: Any, figures: dict[str, float]) -> bool:
    return {name: row[name] for name in figures} == pytest.approx(figures, rel=1e-4)


def outputs(model: nn.Module, *inputs: Tensor) -> dict[str, tuple[Tensor, list[Tensor]]]:
    """The first tensor that each module returns, and those that it receives."""
    found, received = dict[str, tuple[Tensor, list[Tensor]]](), dict[str, list[Tensor]]()

    def enter(name: str) -> Callable[..., None]:
        return lambda _, args: received.update({name: [x.detach().clone() for x in args if isinstance(x, Tensor)]})

    def leave(name: str) -> Callable[..., None]:
        def see(module: nn.Module, args: Any, output: Any) -> None:
            parts = [output] if isinstance(output, Tensor) else output.values() if hasattr(output, "values") else output
            found[name] = next(x for x in parts if isinstance(x, Tensor)).detach().clone(), received[name]

        return see

    handles = [part.register_forward_hook(leave(name)) for name, part in model.named_modules()]
    handles += [part.register_forward_pre_hook(enter(name)) for name, part in model.named_modules()]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    return found


def tokens(x: Tensor) -> Tensor:
    """Tokens by features: of images the channels, else the last dimension, are features."""
    return x.movedim(1, -1).flatten(0, -2) if x.dim() == 4 else x.flatten(0, -2)


@pytest.mark.parametrize("name", [*NETS])
def test_every_output_and_weight_has_the_figures_of_its_singular_values(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = NETS[name]()
    [report] = hookcli.capture(model, *inputs, probes="spectrum")
    seen = outputs(model, *inputs)
    rows = {row.fqn: row for row in reversed(report.rows) if row["kind"] == "output"}  # the first output of each
    assert len(rows) > 10
    for fqn, row in rows.items():
        x, received = seen[fqn]
        assert agrees(row, right(tokens(x))) and row["shape"] == list(tokens(x).shape), fqn
        assert row["dimensions"] == min(tokens(x).shape)
        if received and received[0].is_floating_point() and received[0].dim() > 1:
            assert row["input_rank"] == pytest.approx(right(tokens(received[0]))["effective_rank"], rel=1e-4), fqn
        if len(tokens(x)) > len(x) and x.dim() > 2:
            items = tokens(x).view(len(x), -1, row["shape"][1])
            apart = (items - items.mean(1, keepdim=True)).norm() / items.norm()
            assert row["token_spread"] == pytest.approx(float(apart), rel=1e-4, abs=1e-6)
    weights = {row.fqn: row for row in report.rows if row["kind"] == "parameter"}
    matrices = {fqn: p for fqn, p in model.named_parameters() if p.dim() > 1 and p.any()}
    assert weights.keys() == matrices.keys()
    for fqn, p in matrices.items():
        assert agrees(weights[fqn], right(p.flatten(1))) and weights[fqn]["shape"] == list(p.flatten(1).shape)
        whole = stored(fqn, p, kind="parameter", type="", tied="")
        by_lanczos = spectrum(whole.rows, whole.columns)
        assert by_lanczos and by_lanczos.norm == pytest.approx(weights[fqn]["spectral_norm"], rel=0.05)  # may be below
        assert weights[fqn]["stable_rank"] == pytest.approx(by_lanczos.stable_rank, rel=0.1)


@pytest.mark.parametrize("rows", [2, 5])
def test_calls_and_batches_merge_as_if_they_were_one_matrix(rows: int) -> None:
    """With 8 columns: some batches together have fewer rows, some have more."""

    class Twice(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            return self.body(self.body(x))

    torch.manual_seed(0)
    model = Twice(OrderedDict(body=nn.Sequential(nn.Linear(8, 8), nn.Tanh())))
    probe, batches = SpectrumProbe(of="outputs"), torch.randn(3, rows, 8)
    with HookSession(model) as session, torch.no_grad():
        probe.attach(session)
        for number, batch in enumerate(batches):
            session.begin_batch(number, 3)
            model(batch)
            probe.batch_ended()
    with torch.no_grad():
        first = model.body(batches)
        second = model.body(first)
    found = {row.fqn: row for row in probe.rows()}
    for fqn in ("body", "body.1"):
        assert agrees(found[fqn], right(torch.cat([first.flatten(0, 1), second.flatten(0, 1)])))
        assert found[fqn]["calls"] == 6 and found[fqn]["shape"] == [6 * rows, 8]
    received = right(torch.cat([batches.flatten(0, 1), first.flatten(0, 1)]))
    assert found["body"]["input_rank"] == pytest.approx(received["effective_rank"], rel=1e-6)
    assert agrees(found[""], right(second.flatten(0, 1))) and probe._places["", ""].output.nbytes <= 8 * 8 * 8


def trained(model: nn.Module, x: Tensor, weights: dict[str, list[Tensor]] | None = None) -> list[Tensor]:
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean() + torch.rand(())
        loss.backward()
        before = {fqn: p.detach().clone() for fqn, p in model.named_parameters()}
        optimizer.step()
        for fqn, p in model.named_parameters() if weights is not None else ():
            weights.setdefault(fqn, []).append(p.detach() - before[fqn])
        losses.append(loss.detach())
    return [*losses, *(p.detach().clone() for p in model.parameters()), torch.rand(2)]


def net(shortcut: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(shortcut) for _ in range(3)))


class Block(nn.Module):
    """Attention to all tokens alike, as before its weights have learned anything, with a shortcut around it or not."""

    def __init__(self, shortcut: bool) -> None:
        super().__init__()
        self.norm, self.value, self.shortcut = nn.LayerNorm(16), nn.Linear(16, 16), shortcut

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.value(self.norm(x)).mean(1, keepdim=True).expand_as(x)
        return x + mixed if self.shortcut else mixed.clone()


def test_updates_are_recorded_and_nothing_changes_for_the_program(tmp_path: Path) -> None:
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(1))
    changes: dict[str, list[Tensor]] = {}
    alone = trained(net(), x, changes)
    model = net()
    with hookcli.watch(model, every=1, output=tmp_path / "a.jsonl", probes=["updates", "spectrum"]):
        watched = trained(model, x)
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    record = read_record(tmp_path / "a.jsonl")
    assert len(record.entries) == 3
    for number, step in enumerate(record.steps(record.entries)):
        rows = {row.fqn: row for row in step.rows("spectrum") if row["kind"] == "update"}
        assert rows.keys() == {fqn for fqn, p in model.named_parameters() if p.dim() > 1}
        for fqn, row in rows.items():
            assert agrees(row, right(changes[fqn][number])), fqn


@pytest.mark.parametrize("items", [1, 8])
def test_attention_without_a_shortcut_is_found_however_many_items_stay_apart(items: int, tmp_path: Path) -> None:
    x = torch.randn(items, 12, 16, generator=torch.Generator().manual_seed(1))

    def found(*reports: Report) -> list[str]:
        return [one.fqn for report in reports for one in report.findings if one.check == "HK051"]

    assert found(hookcli.check(net(shortcut=False), x, spectrum=True)) == ["0"]
    assert not found(hookcli.check(net(), x, spectrum=True))
    assert "HK051" not in hookcli.check(net(shortcut=False), x).meta["checks"]
    model = net(False)
    with hookcli.watch(model, every=1, output=tmp_path / "a.jsonl", probes=["spectrum"], check=True) as recording:
        model(x)
    assert found(*recording.reports()) == ["0"]
    [spectrum] = hookcli.capture(net(shortcut=False), x, probes="spectrum")
    alike = "all tokens become alike: effective rank 1.000 (" if items == 1 else "the tokens of each item become alike"
    assert str(spectrum.totals["verdict"]).startswith(f"layer 0: {alike}")


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*NETS])
def test_fresh_models_are_not_accused(name: str) -> None:
    model, inputs = NETS[name]()
    for train in (False, True):
        report = hookcli.check(model.train(train), *inputs, select="HK051")
        assert not report.findings and list(report.meta["checks"]) == ["HK051"]


def test_what_has_no_row_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 3000), nn.Linear(3000, 3000))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    [report] = hookcli.capture(model, torch.arange(8)[None], probes="spectrum")
    reasons = {(item.fqn, item.reason.partition(" (")[0]) for item in report.skipped}
    assert ("1.weight", "with NaN or Inf") in reasons and ("1", "with NaN or Inf") in reasons
    assert report.totals["verdict"] == "NaN or Inf in 1.weight"
    assert ("3.weight", "more than 2,048 rows and columns") in reasons and "0" in report and "2.weight" in report
    monkeypatch.setattr("hookcli.capabilities.spectrum.probe._MOST", 300)
    [report] = hookcli.capture(nn.Sequential(*map(nn.ReLU, [False] * 4)), torch.randn(8, 8), probes="spectrum")
    assert [item.fqn for item in report.skipped if "narrow with --match" in item.reason] == ["", "1", "2", "3"]


def test_nested_tensors_have_no_rows() -> None:
    """A strided one does not tell its shape as a whole."""
    x = torch.nested.nested_tensor([torch.ones(3, 4), torch.eye(5, 4)], layout=torch.strided)
    report = hookcli.capture(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (x,), [SpectrumProbe()])[0]
    assert not [row for row in report.rows if row["kind"] == "output"]
    assert {"0", "1"} <= {item.fqn for item in report.skipped}


def test_memory_that_a_compiled_program_uses_again_is_read_again() -> None:
    class Reuses(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            y = self[0](x)
            y.data.mul_(torch.arange(8.0))  # which no version tells
            return self[1](y)

    model = Reuses(nn.Linear(8, 8), nn.Tanh())
    probe, x = SpectrumProbe(of="outputs"), torch.randn(9, 8)
    with HookSession(model, inside_compiled=True) as session:
        probe.attach(session)
        model(x)
    expected = right(model[0](x) * torch.arange(8.0))["effective_rank"]
    assert {row.fqn: row for row in probe.rows()}["1"]["input_rank"] == pytest.approx(expected, rel=1e-4)


def test_small_singular_values_are_no_rank() -> None:
    values = torch.tensor([1.0, 1.0, 1e-3, 1e-9])
    left, _ = torch.linalg.qr(torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    figures, exact = Matrix.of(left * values).figures(), right(torch.diag(values[:3]))["effective_rank"]
    assert figures and figures.effective_rank == pytest.approx(exact, rel=1e-6)


@pytest.mark.sweep
def test_the_command_says_what_matters_first_and_fits(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = cli("spectrum", "squeezenet1_1", "--input", "1x3x64x64")
    lines = ran.out.splitlines()
    assert (
        ran.code == 0
        and lines[0].startswith("no rank collapses; lowest effective rank: ")
        and max(map(len, lines)) <= 80
    )
    ran = cli("spectrum", "squeezenet1_1", "--of", "weights", "-f", "json")
    assert [row["kind"] for row in json.loads(ran.out)["reports"][0]["rows"]] == ["parameter"] * 26


def test_a_folded_row_has_all_figures_of_the_block_with_the_lowest_rank() -> None:
    """Minima of different blocks made a rank of 10 stand beside an input of rank 12 that another block had."""
    figures = [(20.0, 31.0, 0.4, 4.0), (10.0, 33.0, 0.6, 3.0), (15.0, 12.0, 0.1, 9.0)]
    rows = [
        Row(
            {"fqn": f"blocks.{n}", "kind": "output", "type": "Block", "index": n, "path": "", "dimensions": 34}
            | {"effective_rank": rank, "input_rank": of_input, "token_spread": spread, "stable_rank": stable}
            | {"input_spread": None, "spectral_norm": 1.0 + n, "top_share": 0.1 * n}
        )
        for n, (rank, of_input, spread, stable) in enumerate(figures)
    ]
    report = Report("spectrum", "net", COLUMNS, rows, {"containers": ["blocks"]}, {}, [])
    [row] = group_rows(folded(report), 1).rows
    assert row.fqn == "blocks.0-2"
    kept = ("effective_rank", "input_rank", "token_spread", "stable_rank", "spectral_norm", "top_share")
    assert [row[name] for name in kept] == [10.0, 33.0, 0.6, 3.0, 2.0, 0.1]
