"""Several processes on parts of a batch give the figures of one process with the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine.ranks.support import MODELS, hookcli, load, reports_of_ranks
from support import assert_stats, float64_stats, swept
from torch import Tensor, nn

from hookcli.cli import main
from hookcli.table import Report

pytestmark = pytest.mark.xdist_group("together")  # one run of two ranks

INPUT = ("--input", "8x3x8x8", "--eval")
SAME = {
    "activations": ("activations", "models.py:Net", *INPUT),
    "inputs": ("inputs", "models.py:Net", *INPUT),
    "ones": ("activations", "models.py:Net", *INPUT, "--fill", "ones"),
    "parameters": ("grads", "models.py:Net", *INPUT),
    "mean": ("grads", "models.py:Net", *INPUT, "--loss", "cross-entropy", "--passes", "2"),
    "outputs": ("grads", "models.py:Net", *INPUT, "--of", "outputs", "--loss", "mean"),
    "vector": ("grads", "models.py:Net", *INPUT, "--of", "inputs", "--backward-vector", "randn"),
    "via": (
        "grads",
        "models.py:Net",
        *INPUT,
        "--of",
        "outputs",
        "--via",
        "module",
        "--match",
        "fc",
        "--edit",
        "fc:output=scale(2)",
    ),
    "natural": ("activations", "resnet18", "--batch-size", "4"),
}
SHARDED = {
    "parameters, sharded": (*SAME["parameters"], "--parallel", "fsdp"),
    "mean, sharded": (*SAME["mean"], "--parallel", "fsdp"),
    "outputs, sharded": (*SAME["outputs"], "--parallel", "fsdp"),
    "activations, sharded": (*SAME["activations"], "--parallel", "fsdp"),
}
LOOKED_AT = {
    "values": ("activations", "models.py:Values", "--input", "4x4"),
    "each": ("grads", "models.py:Net", *INPUT, "--ranks", "each"),
    "second": ("activations", "models.py:only", "--arg", "what=nan", "--input", "4x4", "--ranks", "0,1"),
    "narrow": ("activations", "models.py:only", "--arg", "what=narrow", "--input", "4x4", "--match", "1"),
    "trace": ("trace", "models.py:Net", "--input", "4x3x8x8"),
    "graph": ("graph", "models.py:Net", "--input", "4x3x8x8"),
}


def one_process(name: str, folder: Path) -> Report:
    path = folder / "one.json"
    assert main([*SAME[name.partition(",")[0]], "--output", str(path), "--quiet"]) == 0
    return load(path)


def key(row) -> tuple:
    return tuple(row.get(name) for name in ("fqn", "kind", "call", "pass", "path"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    (folder / "models.py").write_text(MODELS)
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, Report]:
    return reports_of_ranks({**SAME, **SHARDED, **LOOKED_AT}, folder, 2)


@pytest.mark.parametrize("name", [*SAME, *SHARDED])
def test_the_report_is_that_of_one_process_with_the_whole_batch(two, folder, name, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    expected = one_process(name, folder)
    rows = {key(row): row for row in two[name].rows}
    unmergeable = {"pos"} if expected.rows[0].get("kind") in ("output", "input") else set()
    assert rows.keys() == {key(row) for row in expected.rows if row.fqn not in unmergeable}
    for row in expected.rows:
        if row.fqn in unmergeable:
            assert any(item.fqn == row.fqn and "sum over ranks" in item.reason for item in two[name].skipped)
            continue
        found = rows[key(row)]
        for what in ("type", "shape", "dtype"):
            assert found[what] == row[what], (row.fqn, what)
        assert_stats(found.stats, row.stats)
    assert two[name].meta["input"] == expected.meta["input"]
    assert two[name].meta["processes"] == 2
    if expected.meta.get("loss_value") is not None:
        assert two[name].meta["loss_value"] == pytest.approx(expected.meta["loss_value"], rel=1e-5)


def test_parameters_that_got_no_gradient_are_said_and_no_bucket_is_lost_for_them(two) -> None:
    reasons = {item.fqn: item.reason for item in two["parameters"].skipped}
    assert reasons == {"unused.weight": "no gradient reached it", "unused.bias": "no gradient reached it"}


def test_gradients_are_those_that_pytorch_computes_in_float64(two, folder, monkeypatch) -> None:
    """Independent of all of hookcli but how it seeds the model and draws the input."""
    model, x = net_and_input(folder, monkeypatch)
    model(x).sum().backward()
    for name in ("parameters", "parameters, sharded"):
        reached = {fqn for fqn, p in model.named_parameters() if p.grad is not None}
        assert {row.fqn for row in two[name].rows} == reached
        for row in two[name].rows:
            grad = model.get_parameter(row.fqn).grad
            assert row["shape"] == list(grad.shape)
            assert_stats(row.stats, float64_stats(grad))


def test_each_rank_has_its_own_gradients_and_they_add_up(two, folder, monkeypatch) -> None:
    model, x = net_and_input(folder, monkeypatch)
    for rank, part in enumerate(x.chunk(2)):
        model.zero_grad()
        model(part).sum().backward()
        rows = {row.fqn: row for row in two["each"].rows if row["rank"] == rank}
        assert_stats(rows["conv.weight"].stats, float64_stats(model.conv.weight.grad))
    assert two["each"].meta["rank"] == [0, 1]
    names = [column.name for column in two["each"].columns]
    assert names[:2] == ["fqn", "rank"] and names[-1] == "deviates"


def net_and_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Tensor]:
    monkeypatch.syspath_prepend(str(folder))
    from models import Net

    torch.manual_seed(0)
    model = Net().eval().double()
    return model, torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()


def test_the_rank_that_holds_a_nan_is_marked(two) -> None:
    marks = {(row.fqn, row["rank"]): row["deviates"] for row in two["second"].rows}
    assert marks["1", 1] == "NaN here alone" and marks["1", 0] is None
    assert marks["0", 0] is None and marks["0", 1] is None


def test_shapes_that_do_not_go_together_are_said(two) -> None:
    (row,) = two["narrow"].rows
    assert row["shape"] == [[2, 4], [2, 2]] and row.stats.numel == 12
    (item,) = [item for item in two["narrow"].skipped if item.fqn == "1"]
    assert item.reason == "the ranks' shapes do not go together: 2x4 on rank 0, 2x2 on rank 1"


def test_shapes_of_the_whole_batch_that_are_not_known_are_said(two) -> None:
    assert {tuple(row["shape"]) for row in two["values"].rows} == {(4, 4)}
    (item,) = two["values"].skipped
    assert item.reason == "the shapes of the whole batch: dimension 0 is taken for the batch everywhere"


@pytest.mark.parametrize("name", ["trace", "graph"])
def test_what_can_not_be_merged_is_the_first_ranks(two, name) -> None:
    assert two[name].meta["rank"] == 0 and two[name].meta["processes"] == 2
    shapes = [row.get("shape") for row in two[name].rows]
    assert shapes


@pytest.mark.sweep
def test_what_is_not_as_in_one_process_is_said(folder) -> None:
    ran = hookcli(
        *("grads", "models.py:Values", "--input", "4x4", "--nproc", "2", "--loss", "models:squares", "-f", "json"),
        folder=folder,
    )
    assert ran.returncode == 0, ran.stderr
    assert "the loss squares is treated as a mean over the batch" in ran.stderr
    assert "each process draws its own random numbers" in ran.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("parallel", ["ddp", swept("fsdp")])
def test_edits_of_gradients_that_are_averaged_afterwards_are_refused(folder, parallel) -> None:
    edit = ("--edit", "fc.weight:grad=ones", "--parallel", parallel)
    ran = hookcli("grads", "models.py:Values", "--input", "4x4", "--eval", "--nproc", "2", *edit, folder=folder)
    assert ran.returncode == 2 and "before they are averaged" in ran.stderr and "rank" not in ran.stderr


@pytest.mark.sweep
def test_four_processes(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    found = reports_of_ranks({"parameters": SAME["parameters"]}, folder, 4)["parameters"]
    expected = {row.fqn: row for row in one_process("parameters", folder).rows}
    assert found.meta["processes"] == 4
    for row in found.rows:
        assert_stats(row.stats, expected[row.fqn].stats)
