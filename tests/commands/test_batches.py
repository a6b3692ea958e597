"""Real input, batch by batch: figures over all batches are those of the batches' tensors, concatenated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from commands.data_nets import loader, net, written
from commands.value_commands import Cli, meta, rows
from support import assert_stats, float64_stats
from torch import Tensor
from torch.nn.functional import cross_entropy

from hookcli.table import TensorStats


@pytest.fixture(autouse=True)
def batched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return written(tmp_path, monkeypatch)


def stats_of(row: dict[str, Any]) -> TensorStats:
    return TensorStats.of({key: float(value) for key, value in row.items() if key in TensorStats().named()})


def test_activations_of_all_batches_are_those_of_the_concatenated_outputs(cli: Cli) -> None:
    model, seen = net().eval(), {}
    for fqn, module in model.named_modules():
        module.register_forward_hook(lambda m, i, y, fqn=fqn: seen.setdefault(fqn, []).append(y.clone()))
    with torch.no_grad():
        for x, _ in loader():
            model(x.clone())
    ran = cli("activations", "batched.py:Net", "--data", "batched.py:loader", "--batches", "all", "-f", "json")
    assert ran.code == 0 and meta(ran.out)["batches"] == 3 and meta(ran.out)["target"] == "4, not used"
    found = {row["fqn"]: row for row in rows(ran.out)}
    assert [*found] == ["", *(fqn for fqn in found if fqn)] and found.keys() == seen.keys()
    for fqn, outputs in seen.items():
        whole = torch.cat(outputs)
        assert found[fqn]["shape"] == list(whole.shape) and found[fqn]["batches"] == 3
        assert_stats(stats_of(found[fqn]), float64_stats(whole))


def test_gradients_start_at_zero_in_each_batch_and_the_loss_gets_its_target(cli: Cli) -> None:
    model, losses = net().train(), []
    parts: dict[str, list[Tensor]] = {}
    for x, y in loader()[:2]:
        model.zero_grad()
        loss = cross_entropy(model(x.clone()), y)
        loss.backward()
        losses.append(loss.item())
        for fqn, p in model.named_parameters():
            assert p.grad is not None
            parts.setdefault(fqn, []).append(p.grad.reshape(-1).clone())
    command = ("grads", "batched.py:Net", "--data", "batched.py:loader", "--batches", "2", "-f", "json")
    ran = cli(*command, "--loss", "cross-entropy")
    assert meta(ran.out)["loss_value"] == pytest.approx(sum(losses) / 2)
    assert meta(ran.out)["target"] == "4, for the loss" and not ran.err
    found = {row["fqn"]: row for row in rows(ran.out)}
    assert found.keys() == parts.keys()
    for fqn, own in parts.items():
        assert found[fqn]["shape"] == list(model.get_parameter(fqn).shape)
        if fqn != "conv.bias":  # zero but for rounding, before a batch normalization
            assert_stats(stats_of(found[fqn]), float64_stats(torch.cat(own)), 1e-4)
    ran = cli(*command)
    assert "the loss (sum) does not use the batches' targets" in ran.err
    ran = cli(*command, "--loss", "batched.py:criterion", "--of", "outputs")
    assert meta(ran.out)["loss"] == "criterion" and {row["batches"] for row in rows(ran.out)} == {2}
    ran = cli("grads", "batched.py:Net", "--input", "2x3x4x4", "--loss", "batched.py:criterion")
    assert ran.code == 2 and "takes a target: give --data" in ran.err


def test_batches_are_let_go_and_a_data_set_keeps_its_values(cli: Cli) -> None:
    ran = cli("activations", "batched.py:Net", "--data", "batched.py:counted", "--batches", "all", "-f", "json")
    assert (ran.code, ran.err) == (0, "") and meta(ran.out)["batches"] == 8
    # The first layer writes into its input, a view of the data set; the second pass over it finds what the first did.
    runs = [
        cli("inputs", "batched.py:Net", "--data", f"batched.py:{name}", "-f", "json") for name in ("lists", "loader")
    ]
    assert rows(runs[0].out) == rows(runs[1].out) and rows(runs[0].out)[0]["min"] < 0


def test_a_channel_is_dead_if_it_is_in_all_batches(cli: Cli) -> None:
    found = []
    for batches in ("1", "2"):
        words = f"check batched.py:Gate --data batched.py:signs --batches {batches} --threshold HK010=0.1 -f json"
        ran = cli(*words.split())
        found.append([row["message"] for row in rows(ran.out) if row["check"] == "HK010"])
    assert found == [["2 of 3 channels zero for every input"], ["1 of 3 channels zero for every input"]]


def test_a_bad_value_is_found_in_its_batch(cli: Cli) -> None:
    ran = cli("check", "batched.py:Bias", "--data", "batched.py:nan_late", "--batches", "all", "-f", "json")
    (said,) = [row["message"] for row in rows(ran.out) if row["check"] == "HK002"]
    assert said == "24 of 48 input values are NaN (first in batch 2)"


def test_a_failure_keeps_the_batches_before_it(cli: Cli) -> None:
    whole = cli("activations", "batched.py:Net", "--data", "batched.py:inputs", "--batches", "2", "-f", "json")
    ran = cli("activations", "batched.py:Net", "--data", "batched.py:fails_late", "--batches", "9", "-f", "json")
    assert ran.code == 2 and "--data batched.py:fails_late: making batch 3 failed: OSError: disk gone" in ran.err
    assert (
        meta(ran.out)["complete"] is False and meta(ran.out)["batches"] == 2 and "disk gone" in meta(ran.out)["error"]
    )
    assert len(rows(ran.out)) == len(rows(whole.out))
    ran = cli("activations", "batched.py:Net", "--data", "batched.py:wrong_channels", "--batches", "9", "-f", "json")
    assert ran.code == 2 and "batch 2: conv (Conv2d) failed on input 4x1x4x4" in ran.err
    assert meta(ran.out)["batches"] == 1 and {row["shape"][0] for row in rows(ran.out)} == {4}


def test_data_that_ends_early_and_shapes_that_differ(cli: Cli) -> None:
    ran = cli("activations", "batched.py:Net", "--data", "batched.py:other_sizes", "--batches", "5", "-f", "json")
    assert ran.code == 0 and "--data batched.py:other_sizes ended after 2 of 5 batches" in ran.err
    found = {row["fqn"]: row for row in rows(ran.out)}
    assert found["conv"]["shape"] is None and found["conv"]["shapes"] == [[2, 8, 4, 4], [2, 8, 3, 4]]
    assert found["fc"]["shape"] == [4, 10]
    ran = cli("activations", "batched.py:Net", "--data", "batched.py:other_sizes", "--batches", "all")
    assert ran.code == 0 and "2 batches, first 2x3x4x4" in ran.out and ran.err == ""


def test_arrays_that_pytorch_can_only_copy(cli: Cli) -> None:
    """Flipped, of the other byte order, and read-only, where the model changes its input in place."""
    ran = cli("inputs", "batched.py:Net", "--data", "batched.py:arrays", "--batches", "2", "-f", "json")
    found = stats_of(rows(ran.out)[0])
    x, _ = loader()[0]
    assert ran.code == 0 and ran.err == ""
    assert_stats(found, float64_stats(torch.cat([x, x])))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--data batched.py:none_at_all", "--data batched.py:none_at_all: has no batch"),
        ("--data batched.py:number", "--data batched.py:number: gave int, not an iterable of batches"),
        ("--data batched.py:words --batches 2", "--data batched.py:words: batch 1: is str; give a tensor, a tuple"),
        ("--data batched.py:broken", "--data batched.py:broken: failed: KeyError: 'lost'"),
        ("--data batched.py:lost", "unknown name 'lost'"),
        ("--data batched.py:begun", "--data batched.py:begun: a generator can be read only once"),
        (
            "--data batched.py:keywords --batches 2",
            "--data batched.py:keywords: batch 2: unknown keyword of forward 'z'",
        ),
        ("--data batched.py:arrays --batches all", "batch 3: has an array of <U1, for which PyTorch has no dtype"),
        (
            "--data batched.py:loader --batch-size 4",
            "--batch-size: --data batched.py:loader chooses the size of its batches",
        ),
        ("--data batched.py:loader --input 1x3x4x4", "--input and --data: one generates input, the other is real"),
        ("--data batched.py:loader --fill ones", "--fill and --data: real input has its values already"),
        ("--data batched.py:loader --text hello", "--text and --data: give one of them"),
        ("--data batched.py:loader --batches 0", "--batches '0': give a number from 1, or all"),
        ("--batches 2", "--batches 2: needs --data, --image or --text"),
        ("--tokenizer .", "--tokenizer .: is for --text; add that"),
        ("--image batched.png", "--image: no file or folder 'batched.png'"),
        ("--image .", "--image: no picture in '.'"),
        ("--image batched.py", "--image: batched.py:Net comes with no transforms for pictures"),
        ("--text hello", "--text: batched.py:Net comes with no tokenizer; give --tokenizer FOLDER"),
        ("--text hello --tokenizer nowhere", "--tokenizer: no folder 'nowhere'"),
        ("--input-file batched.npy", "--input-file: no file 'batched.npy'"),
        ("--input-file batched.py", "--input-file: batched.py: give a file of .npy, .npz"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, options: str, said: str) -> None:
    ran = cli("activations", "batched.py:Net", *options.split())
    assert ran.code == 2 and said in ran.err and ran.err.count("\n") <= 2


def test_other_commands_take_the_first_batch_and_a_file_names_the_data(cli: Cli, batched: Path) -> None:
    ran = cli("inputs", "batched.py:Net", "--data", "batched.py:dataset", "--batch-size", "5")
    said = "--data batched.py:dataset: only the first of 3 batches was run; --batches all runs all of them"
    assert ran.code == 0 and said in ran.err
    ran = cli("shapes", "batched.py:Net", "--data", "batched.py:dataset", "--batch-size", "5", "-f", "json")
    assert ran.err == ""
    assert rows(ran.out)[0]["input_shape"] == [5, 3, 4, 4] and meta(ran.out)["device"] == "meta"
    assert meta(ran.out)["data"] == "--data batched.py:dataset" and "fill" not in meta(ran.out)
    ran = cli("flow", "batched.py:Net", "--data", "batched.py:loader", "--batches", "2")
    assert ran.code == 2 and "--batches" in ran.err
    (batched / "pyproject.toml").write_text(
        "[tool.hookcli]\nmodels = ['batched.py:Net']\ndata = 'batched.py:loader'\nbatches = 2\n"
    )
    ran = cli("check", "-f", "json")
    assert ran.code == 0 and meta(ran.out)["batches"] == 2
    ran = cli("check", "--input", "3x3x4x4", "-f", "json")
    assert meta(ran.out)["input"] == "3x3x4x4" and "batches" not in meta(ran.out)


@pytest.mark.sweep
def test_a_page_of_batches(cli: Cli, batched: Path) -> None:
    given = ("--data", "batched.py:loader", "--batches", "2", "-o", "page.html")
    assert cli("report", "batched.py:Net", *given).code == 0
    assert cli("report", "batched.py:Net", "batched.py:Net --seed 1", *given).code == 0
