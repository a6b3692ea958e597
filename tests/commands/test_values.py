"""Commands that compute figures: against PyTorch, on a model of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from commands.value_commands import SMALL, Cli, meta, rows
from support import assert_stats, float64_stats, swept
from torch.nn.functional import cross_entropy

from hookcli.table import STATS_KEYS, TensorStats

TOP = ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool", "fc"]


def test_the_ten_top_level_shapes_of_resnet50(cli: Cli) -> None:
    ran = cli("shapes", "resnet50", "--input", "10x3x224x224", "--fill", "ones", "--depth", "1", "--format", "json")
    shapes = {row["fqn"]: row["output_shape"] for row in rows(ran.out) if row["fqn"]}
    assert list(shapes) == TOP
    assert shapes["conv1"] == [10, 64, 112, 112] and shapes["fc"] == [10, 1000]
    assert meta(ran.out)["device"] == "meta" and ran.err == ""


@pytest.mark.sweep
def test_the_mean_of_each_top_level_output(cli: Cli) -> None:
    ran = cli("activations", "resnet50", "-i", "2x3x64x64", "--fill", "ones", "--train", "--depth", "1", "-f", "json")
    means = {row["fqn"]: row["mean"] for row in rows(ran.out) if row["fqn"]}
    assert list(means) == TOP
    assert abs(means["bn1"]) < 1e-6
    assert means["avgpool"] == pytest.approx(means["layer4"], rel=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["--train", swept("--eval")])
def test_the_mean_of_every_parameters_gradient(cli: Cli, mode: str) -> None:
    ran = cli("grads", "resnet18", *SMALL, "--fill", "ones", mode, "--seed", "3", "--format", "json")
    torch.manual_seed(3)
    model = torchvision.models.resnet18(weights=None).train(mode == "--train")
    cross_entropy(model(torch.ones(2, 3, 64, 64)), torch.zeros(2, dtype=torch.long)).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    found = rows(ran.out)
    assert found[0]["fqn"] == "fc.bias" and {row["fqn"] for row in found} == grads.keys()
    for row in found:
        stats = TensorStats(**{key: row[key] for key in STATS_KEYS})
        assert_stats(stats, float64_stats(grads[row["fqn"]]))  # type: ignore[arg-type]


def test_the_same_seed_means_the_same_figures(cli: Cli, net: Path) -> None:
    argv = ("activations", "net.py:Net", "-i", "2x3x4x4", "-f", "json", "--seed")
    one, two, other = (cli(*argv, seed).out for seed in "778")
    assert rows(one) == rows(two) != rows(other)


# Boxes, for each of which a head computes.
FEW = ("--arg", "box_detections_per_img=4", "--arg", "box_batch_size_per_image=16")


KINDS = {
    "classification": ("mobilenet_v3_small", "2x3x64x64"),
    "in-place blocks": ("densenet121", "2x3x32x32"),
    "auxiliary heads": ("googlenet", "2x3x64x64"),
    "transformer": ("swin_t", "1x3x64x64"),
    "built by values": ("regnet_y_400mf", "2x3x64x64"),
    "quantizable": ("quantized_resnet18", "2x3x64x64"),
    "segmentation": ("lraspp_mobilenet_v3_large", "2x3x64x64"),
    "video": ("r3d_18", "2x3x4x32x32"),
    "optical flow": ("raft_small", "1x3x128x128"),
    "detection": ("ssdlite320_mobilenet_v3_large", "3x64x64"),
    "two-stage detection": ("fasterrcnn_mobilenet_v3_large_320_fpn", "3x64x64", *FEW),
    "keypoints": ("keypointrcnn_resnet50_fpn", "3x32x32", "--arg", "min_size=64", *FEW),
}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [kind if kind == "classification" else swept(kind) for kind in KINDS])
def test_one_model_of_each_kind(cli: Cli, kind: str) -> None:
    name, size, *more = KINDS[kind]
    for command in ("shapes", "activations", "grads"):
        ran = cli(command, name, "--input", size, *more, "--batch-size", "2", "--quiet", "--format", "json")
        assert ran.code == 0, ran.err
        assert len(rows(ran.out)) > 20 and meta(ran.out)["complete"] is True
        on_meta = command == "shapes" and "detection" not in kind and kind != "keypoints"
        assert meta(ran.out)["device"] == ("meta" if on_meta else "cpu")


@pytest.mark.sweep
@pytest.mark.parametrize("of", ["outputs", "inputs"])
def test_gradients_of_outputs_and_inputs(cli: Cli, of: str) -> None:
    found = rows(cli("grads", "resnet18", *SMALL, "--of", of, "--format", "json").out)
    first = [row for row in found if row["fqn"] == "conv1"]
    assert first[0]["shape"] == ([2, 64, 32, 32] if of == "outputs" else [2, 3, 64, 64])
    assert {row["kind"] for row in found} == {of.removesuffix("s")}


@pytest.mark.sweep
def test_natural_inputs(cli: Cli) -> None:
    assert meta(cli("shapes", "inception_v3", "-q", "-f", "json").out)["input"] == "1x3x299x299"
    assert meta(cli("inputs", "raft_small", "-q", "-f", "json").out)["input"] == "1x3x128x128, 1x3x128x128"
    detector = "ssdlite320_mobilenet_v3_large"
    natural = meta(cli("inputs", detector, "-b", "2", "-q", "-f", "json").out)
    assert (natural["input"], natural["batch"]) == ("3x320x320, 3x320x320", 2)
    ran = cli("grads", detector, "-b", "2", "-i", "3x64x64", "-q", "-f", "json")
    assert meta(ran.out)["input"] == "3x64x64, 3x64x64 with targets"
    assert meta(ran.out)["loss"] == "the model's own losses"


def test_batch_size_and_dtype(cli: Cli) -> None:
    argv = ("activations", "resnet18", "-i", "1x3x64x64", "-b", "3", "--dtype", "bfloat16")
    ran = cli(*argv, "--depth", "1", "-q", "-f", "json")
    row = next(row for row in rows(ran.out) if row["fqn"] == "conv1")
    assert row["shape"][0] == 3 and row["dtype"] == "bfloat16"


@pytest.mark.parametrize("loss", ["sum", "mean", "cross-entropy", "net.py:loss"])
def test_losses(cli: Cli, net: Path, loss: str) -> None:
    ran = cli("grads", "net.py:Net", "-i", "2x3x4x4", "--loss", loss, "-f", "json")
    assert ran.code == 0, ran.err
    said = meta(ran.out)
    assert said["loss"] == loss.rpartition(":")[2] and isinstance(said["loss_value"], float)


def test_a_vector_instead_of_a_loss_and_two_passes(cli: Cli, net: Path) -> None:
    shared = ("grads", "net.py:Net", "-i", "2x3x4x4", "--backward-vector", "ones", "-f", "json")
    once = {row["fqn"]: row["l2"] for row in rows(cli(*shared).out)}
    both = {(row["fqn"], row["pass"]): row["l2"] for row in rows(cli(*shared, "--passes", "2").out)}
    assert all(both[name, 1] == pytest.approx(2 * norm) for name, norm in once.items())
