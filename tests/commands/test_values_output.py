"""Commands that compute figures: weights, selections, files and formats."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
import torchvision
from commands.value_commands import SMALL, Cli, meta, rows
from support import float64_stats, swept

from hookcli.table import STATS_KEYS, TensorStats


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


@pytest.mark.sweep
def test_grouped_gradients_are_merged_exactly(cli: Cli) -> None:
    every = rows(cli("grads", "resnet18", *SMALL, "-f", "json").out)
    grouped = {row["fqn"]: row for row in rows(cli("grads", "resnet18", *SMALL, "--depth", "1", "-f", "json").out)}
    assert list(grouped) == ["fc", "layer4", "layer3", "layer2", "layer1", "bn1", "conv1.weight"]
    parts = [row for row in every if row["fqn"].startswith("layer3.")]
    keys = STATS_KEYS
    merged = TensorStats.merge(TensorStats(**{key: row[key] for key in keys}) for row in parts)
    assert grouped["layer3"]["merged"] == len(parts)
    assert grouped["layer3"]["mean"] == merged.mean and grouped["layer3"]["numel"] == merged.numel


@pytest.mark.sweep
@pytest.mark.parametrize("suffix", ["json", *map(swept, ("csv", "md")), "txt"])
def test_a_file_by_its_suffix(cli: Cli, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"report.{suffix}"
    ran = cli("shapes", "resnet18", "-o", str(target))
    assert (ran.code, ran.out) == (0, "") and ran.err.startswith(f"hookcli: wrote {target}: ")
    text = target.read_text()
    assert "layer4" in text and "\x1b" not in text
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    if suffix == "json":
        assert json.loads(text)["schema"] == 1


@pytest.mark.sweep
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


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["resnet18", *map(swept, ("densenet121", "googlenet", "mnasnet0_5"))])
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
    layer = ("torch.nn:TransformerEncoderLayer", "--arg", "d_model=8", "--arg", "nhead=2", "--arg", "batch_first=true")
    argv = ("activations", *layer, "-i", "2x3x8", "-q", "-f", "json")
    fast, slow = (json.loads(cli(*argv, *more).out)["reports"][0] for more in ((), ("--no-fastpath",)))
    assert (fast["meta"]["fastpath"], slow["meta"]["fastpath"]) == (True, False)
    assert torch.backends.mha.get_fastpath_enabled()
