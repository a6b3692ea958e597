"""The commands that run a model, through `main`: what a user sees, in every format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from support import assert_stats, float64_stats
from torch.nn.functional import cross_entropy

from hookcli.report import TensorStats

Cli = Callable[..., Any]
SMALL = ("--input", "2x3x64x64", "--quiet")


def rows(text: str) -> list[dict[str, Any]]:
    return json.loads(text)["reports"][0]["rows"]


def meta(text: str) -> dict[str, Any]:
    return json.loads(text)["reports"][0]["meta"]


TOP = ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool", "fc"]


def test_the_ten_top_level_shapes_of_resnet50(cli: Cli) -> None:
    ran = cli("shapes", "resnet50", "--input", "10x3x224x224", "--fill", "ones", "--depth", "1", "--format", "json")
    shapes = {row["fqn"]: row["output_shape"] for row in rows(ran.out) if row["fqn"]}
    assert list(shapes) == TOP
    assert shapes["conv1"] == [10, 64, 112, 112] and shapes["fc"] == [10, 1000]
    assert meta(ran.out)["device"] == "meta" and ran.err == ""


def test_the_mean_of_each_top_level_output(cli: Cli) -> None:
    ran = cli("activations", "resnet50", "-i", "2x3x64x64", "--fill", "ones", "--train", "--depth", "1", "-f", "json")
    means = {row["fqn"]: row["mean"] for row in rows(ran.out) if row["fqn"]}
    assert list(means) == TOP
    assert abs(means["bn1"]) < 1e-6
    assert means["avgpool"] == pytest.approx(means["layer4"], rel=1e-5)


@pytest.mark.parametrize("mode", ["--train", "--eval"])
def test_the_mean_of_every_parameters_gradient(cli: Cli, mode: str) -> None:
    ran = cli("grads", "resnet18", *SMALL, "--fill", "ones", mode, "--seed", "3", "--format", "json")
    torch.manual_seed(3)
    model = torchvision.models.resnet18(weights=None).train(mode == "--train")
    cross_entropy(model(torch.ones(2, 3, 64, 64)), torch.zeros(2, dtype=torch.long)).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    found = rows(ran.out)
    assert found[0]["fqn"] == "fc.bias" and {row["fqn"] for row in found} == grads.keys()
    for row in found:
        stats = TensorStats(**{key: row[key] for key in TensorStats.__dataclass_fields__})
        assert_stats(stats, float64_stats(grads[row["fqn"]]))  # type: ignore[arg-type]


def test_the_same_seed_means_the_same_figures(cli: Cli) -> None:
    one, two, other = (cli("activations", "resnet18", *SMALL, "--seed", seed, "-f", "json").out for seed in "778")
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


@pytest.mark.parametrize("kind", KINDS)
def test_one_model_of_each_kind(cli: Cli, kind: str) -> None:
    name, size, *more = KINDS[kind]
    for command in ("shapes", "activations", "grads"):
        ran = cli(command, name, "--input", size, *more, "--batch-size", "2", "--quiet", "--format", "json")
        assert ran.code == 0, ran.err
        assert len(rows(ran.out)) > 20 and meta(ran.out)["complete"] is True
        on_meta = command == "shapes" and "detection" not in kind and kind != "keypoints"
        assert meta(ran.out)["device"] == ("meta" if on_meta else "cpu")


@pytest.mark.parametrize("of", ["outputs", "inputs"])
def test_gradients_of_outputs_and_inputs(cli: Cli, of: str) -> None:
    found = rows(cli("grads", "resnet18", *SMALL, "--of", of, "--format", "json").out)
    first = [row for row in found if row["fqn"] == "conv1"]
    assert first[0]["shape"] == ([2, 64, 32, 32] if of == "outputs" else [2, 3, 64, 64])
    assert {row["kind"] for row in found} == {of.removesuffix("s")}


def test_natural_inputs(cli: Cli) -> None:
    assert meta(cli("shapes", "inception_v3", "-q", "-f", "json").out)["input"] == "1x3x299x299"
    assert meta(cli("shapes", "raft_small", "-q", "-f", "json").out)["input"] == "1x3x128x128, 1x3x128x128"
    ran = cli("grads", "ssdlite320_mobilenet_v3_large", "-q", "-f", "json")
    assert meta(ran.out)["input"] == "3x320x320, 3x320x320 with targets"
    assert meta(ran.out)["loss"] == "the model's own losses"


def test_batch_size_and_dtype(cli: Cli) -> None:
    ran = cli("activations", "resnet18", "-b", "3", "--dtype", "bfloat16", "--depth", "1", "-q", "-f", "json")
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


def test_a_model_of_ones_own_with_arguments_weights_and_example(cli: Cli, net: Path) -> None:
    ran = cli("shapes", "net.py:Net", "--arg", "width=4", "-i", "1x3x4x4", "-f", "json")
    assert rows(ran.out)[1]["output_shape"] == [1, 4, 4, 4]
    assert meta(cli("shapes", "net.py:pair", "-f", "json").out)["input"] == "2x3x4x4 (its example)"
    assert cli("shapes", "net.py:ready", "-i", "1x3x4x4").code == 0
    assert cli("shapes", "net:Net", "-i", "1x3x4x4").code == 0
    assert cli("shapes", "torch.nn:Identity", "-i", "3").code == 0


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_from_a_file(cli: Cli, net: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(5)
    state = {
        "conv.weight": torch.randn(8, 3, 3, 3), "conv.bias": torch.randn(8),
        "fc.weight": torch.randn(10, 128), "fc.bias": torch.randn(10),
    }  # fmt: skip
    (save_file if suffix == ".safetensors" else torch.save)(state, f"weights{suffix}")
    ran = cli(
        "activations", "net.py:Net", "-i", "2x3x4x4", "--fill", "zeros", "--weights", f"weights{suffix}", "-f", "json"
    )
    conv = next(row for row in rows(ran.out) if row["fqn"] == "conv")
    assert conv["mean"] == pytest.approx(state["conv.bias"].mean().item(), rel=1e-5)


def test_a_checkpoint_of_a_parallel_run_is_unpacked(cli: Cli, net: Path) -> None:
    cli("shapes", "net.py:Net", "-i", "2x3x4x4")
    import net as module  # type: ignore[import-not-found]

    state = {f"module.{k}": v for k, v in module.Net().state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, "checkpoint.pt")
    assert cli("shapes", "net.py:Net", "-i", "2x3x4x4", "--weights", "checkpoint.pt").code == 0


def test_depth_match_type_columns_sort(cli: Cli) -> None:
    ran = cli("activations", "resnet18", *SMALL, "--match", "layer1.*", "--type", "Conv2d", "-f", "csv",
              "--columns", "fqn,std", "--sort", "-std")  # fmt: skip
    table = list(csv.reader(io.StringIO(ran.out)))
    assert table[0] == ["fqn", "std"] and len(table) == 5
    spread = [float(line[1]) for line in table[1:]]
    assert spread == sorted(spread, reverse=True)


def test_a_match_on_parameters(cli: Cli) -> None:
    ran = cli("grads", "resnet18", *SMALL, "--match", "*.bias", "-f", "json")
    assert {row["fqn"].rpartition(".")[2] for row in rows(ran.out)} == {"bias"}


def test_grouped_gradients_are_merged_exactly(cli: Cli) -> None:
    every = rows(cli("grads", "resnet18", *SMALL, "-f", "json").out)
    grouped = {row["fqn"]: row for row in rows(cli("grads", "resnet18", *SMALL, "--depth", "1", "-f", "json").out)}
    assert list(grouped) == ["fc", "layer4", "layer3", "layer2", "layer1", "bn1", "conv1.weight"]
    parts = [row for row in every if row["fqn"].startswith("layer3.")]
    keys = TensorStats.__dataclass_fields__
    merged = TensorStats.merge(TensorStats(**{key: row[key] for key in keys}) for row in parts)
    assert grouped["layer3"]["merged"] == len(parts)
    assert grouped["layer3"]["mean"] == merged.mean and grouped["layer3"]["numel"] == merged.numel


@pytest.mark.parametrize("suffix", ["json", "csv", "md", "txt"])
def test_a_file_by_its_suffix(cli: Cli, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"report.{suffix}"
    ran = cli("shapes", "resnet18", "-o", str(target))
    assert (ran.code, ran.out) == (0, "") and ran.err.startswith(f"hookcli: wrote {target}: ")
    text = target.read_text()
    assert "layer4" in text and "\x1b" not in text
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    if suffix == "json":
        assert json.loads(text)["schema"] == 1


def test_a_table_in_a_pipe_is_plain_and_whole(cli: Cli) -> None:
    ran = cli("shapes", "vit_b_16", "--depth", "all")
    assert "\x1b" not in ran.out and "…" not in ran.out
    assert "parameters" in ran.out and "not measured" in ran.out
    assert len(rows(cli("shapes", "vit_b_16", "-f", "json").out)) + 2 <= len(ran.out.splitlines())


def test_published_weights_that_are_not_on_disk_need_none_for_shapes(cli: Cli) -> None:
    ran = cli("shapes", "vit_b_16", "--weights", "IMAGENET1K_SWAG_E2E_V1", "-f", "json")
    assert meta(ran.out)["input"] == "1x3x384x384"
    totals = json.loads(ran.out)["reports"][0]["totals"]
    assert totals["params"] == 86859496 and totals["macs"] / 1e9 == pytest.approx(55.484, abs=0.001)


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "googlenet", "mnasnet0_5"])
def test_published_weights_are_read_as_torchvision_reads_them(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In the forms in which they were published: with old key names, without counters, with heads to be dropped."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    weights = torchvision.models.get_model_weights(name).DEFAULT
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.manual_seed(11)
    extra = {"init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, **extra).eval()
    state = model.state_dict()
    if name in ("resnet18", "densenet121"):  # from before PyTorch 0.4.1
        state = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    for key in [key for key in state if "denselayer" in key]:
        old = (
            key.replace("norm1", "norm.1")
            .replace("conv1", "conv.1")
            .replace("norm2", "norm.2")
            .replace("conv2", "conv.2")
        )
        state[old] = state.pop(key)
    torch.save(state, folder / weights.url.rpartition("/")[2])
    ran = cli("activations", name, "--weights", "DEFAULT", *SMALL, "--fill", "ones", "--depth", "1", "-f", "json")
    assert ran.code == 0, ran.err
    if name == "googlenet":
        model.transform_input = True  # as its builder sets it with weights
    expected = float64_stats(model(torch.ones(2, 3, 64, 64)))
    assert rows(ran.out)[0]["mean"] == pytest.approx(expected.mean, rel=1e-4)


def test_weights_on_disk_are_used(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    weights = torchvision.models.ResNet18_Weights.IMAGENET1K_V1
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    state = torchvision.models.resnet18(weights=None).state_dict()
    torch.save(state | {"fc.bias": torch.full((1000,), 5.0)}, folder / weights.url.rpartition("/")[2])
    ran = cli(
        "activations", "resnet18", "--weights", "DEFAULT", *SMALL, "--fill", "zeros", "--match", "fc", "-f", "json"
    )
    assert rows(ran.out)[0]["mean"] == pytest.approx(5.0, abs=0.2)


def test_keyword_example_inputs_and_what_the_model_prints(cli: Cli, net: Path) -> None:
    (net / "kw.py").write_text(
        "import torch\n"
        "class Kw(torch.nn.Module):\n"
        "    def forward(self, x, scale):\n"
        "        print('hello from forward')\n"
        "        return x * scale\n"
        "def make():\n"
        "    return Kw(), {'x': torch.ones(2, 3), 'scale': 4.0}\n"
    )
    ran = cli("activations", "kw.py:make", "-f", "json")
    assert rows(ran.out)[0]["mean"] == 4.0 and "hello from forward" in ran.err


def test_a_match_on_a_modules_name_selects_its_parameters_and_says_nothing_of_others(cli: Cli) -> None:
    report = json.loads(cli("grads", "resnet18", *SMALL, "--match", "fc", "-f", "json").out)["reports"][0]
    assert {row["fqn"] for row in report["rows"]} == {"fc.weight", "fc.bias"} and report["skipped"] == []


def test_the_fast_path_can_be_switched_off(cli: Cli) -> None:
    fast = json.loads(cli("activations", "vit_b_32", "-q", "-f", "json").out)["reports"][0]
    slow = json.loads(cli("activations", "vit_b_32", "-q", "--no-fastpath", "-f", "json").out)["reports"][0]
    assert (fast["meta"]["fastpath"], slow["meta"]["fastpath"]) == (True, False)
    assert torch.backends.mha.get_fastpath_enabled()
