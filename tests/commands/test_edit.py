"""--edit from the command line: figures, marks and noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from commands.edit_nets import NET, SMALL, Cli, report
from support import assert_stats, float64_stats
from torch import Tensor, nn

from hookcli.table import Report


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)


def edited(report: Report) -> dict[str, str]:
    return {row.fqn: row["edited"] for row in report.rows if row.get("edited")}


def test_doubling_a_gradient_of_1_2_3(cli: Cli) -> None:
    argv = ("grads", "small.py:Weight", "--input", "1x3", "--fill", "ones")
    assert_stats(report(cli, *argv).rows[0].stats, float64_stats(torch.tensor([1.0, 2.0, 3.0])))
    found = report(cli, *argv, "--edit", "lin.weight:grad=scale(2)")
    assert_stats(found.rows[0].stats, float64_stats(torch.tensor([2.0, 4.0, 6.0])))
    assert found.rows[0]["edited"] == "scale(2)" and found.meta["edits"] == ["lin.weight:grad=scale(2)"]


@pytest.mark.parametrize(("first", "then", "expected"), [("scale(2)", "square", 36), ("square", "scale(2)", 18)])
@pytest.mark.parametrize("what", ["output", "grad"])
def test_the_order_of_the_command_line_is_the_order_of_the_edits(
    cli: Cli, what: str, first: str, then: str, expected: int
) -> None:
    """Three at both places: the sum of three ones; and, with the mean as loss, the gradient of what it is times."""
    place = {"output": "lin:output", "grad": "out.weight:grad"}[what]
    command = ("activations",) if what == "output" else ("grads", "--eval", "--loss", "mean")
    found = report(cli, *command, *NET, "--edit", f"{place}={first}", "--edit", f"{place}={then}")
    row = next(row for row in found.rows if row.fqn == place.partition(":")[0])
    assert (row["min"], row["max"], row["edited"]) == (expected, expected, f"{first}, {then}")


@pytest.mark.parametrize("command", ["activations", "inputs", "shapes", "grads", "trace"])
def test_each_command_takes_edits_and_marks_the_rows(cli: Cli, command: str) -> None:
    edits = {"inputs": "relu:input=scale(2)", "grads": "out.weight:grad=scale(2)"}
    edit = edits.get(command, "relu:output=scale(2)")
    extra = ("--kinds", "forward") if command == "trace" else ()
    found = report(cli, command, *NET, *extra, "--edit", edit)
    assert edited(found) == {edit.partition(":")[0]: "scale(2)"} and found.meta["edits"] == [edit]
    table = cli(command, *NET, *extra, "--edit", edit)
    run, line = [line for line in table.out.splitlines() if "edited" in line]
    assert line.rstrip().endswith("edited: scale(2)") and edit.partition(":")[0] in line
    assert f" · edited {edit} · " in run
    plain = cli(command, *NET, *extra)
    assert "edited" not in plain.out and "edits" not in report(cli, command, *NET, *extra).meta


@pytest.mark.parametrize(("of", "what"), [("outputs", "grad_output"), ("inputs", "grad_input")])
def test_gradients_of_outputs_and_inputs_are_shown_as_edited(cli: Cli, of: str, what: str) -> None:
    plain = report(cli, "grads", *NET, "--eval", "--of", of)
    found = report(cli, "grads", *NET, "--eval", "--of", of, "--edit", f"relu:{what}=scale(2)")
    assert edited(found) == {"relu": "scale(2)"}
    for before, after in zip(plain.rows, found.rows, strict=True):
        assert before.fqn == after.fqn
        assert after["l2"] == pytest.approx(before["l2"] * (2 if before.fqn in ("relu", "lin", "") else 1)) or (
            before.fqn == "" and of == "outputs"
        )


def test_activations_of_a_resnet_equal_those_of_hooks_by_hand(cli: Cli) -> None:
    edits = ["layer1:output=clamp(-0.5,0.5)", "layer3.0:input=scale(-2)", "*.bn1:output=square"]
    options = [word for edit in edits for word in ("--edit", edit)]
    found = report(cli, "activations", "resnet18", "-i", "1x3x64x64", "--fill", "ones", *options)
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    seen: dict[tuple[str, int], Tensor] = {}
    calls: dict[str, int] = {}
    model.layer1.register_forward_hook(lambda m, a, o: o.clamp(-0.5, 0.5))
    model.layer3[0].register_forward_pre_hook(lambda m, a: (a[0] * -2,))

    def see(fqn: str) -> Callable[..., None]:
        def hook(m: nn.Module, a: Any, o: Tensor) -> None:
            calls[fqn] = calls.get(fqn, -1) + 1
            seen[fqn, calls[fqn]] = o.detach().clone()

        return hook

    for fqn, module in model.named_modules():
        if fqn.endswith(".bn1"):
            module.register_forward_hook(lambda m, a, o: o**2)
        module.register_forward_hook(see(fqn))
    with torch.no_grad():
        model(torch.ones(1, 3, 64, 64))
    assert len(found.rows) == len(seen)
    for row in found.rows:
        assert_stats(row.stats, float64_stats(seen[row.fqn, row["call"]]), rel=1e-4)
    assert edited(found).keys() == {"layer1", *(f"layer{n}.{k}.bn1" for n in range(1, 5) for k in range(2))}


@pytest.mark.sweep
def test_shapes_with_an_edit_still_need_no_compute(cli: Cli) -> None:
    plain, found = (
        report(cli, "shapes", "vit_b_16", *edit) for edit in ((), ("--edit", "encoder.layers.*.mlp:output=noise(0.1)"))
    )
    assert found.meta["device"] == "meta" and len(edited(found)) == 12
    assert [row["output_shape"] for row in plain.rows] == [row["output_shape"] for row in found.rows]
    assert plain.totals == found.totals


def test_a_selection_leaves_edits_elsewhere_at_work_and_adds_no_row(cli: Cli) -> None:
    for narrowed in (("--match", "out"), ("--type", "ReLU")):
        plain = report(cli, "activations", *NET, *narrowed)
        found = report(cli, "activations", *NET, *narrowed, "--edit", "lin:output=zero")
        [before], [after] = plain.rows, found.rows
        assert before.fqn == after.fqn and after["zeros"] == after["numel"] > before["zeros"]
    grads = report(cli, "grads", *NET, "--match", "lin.weight", "--edit", "relu:grad_output=zero")
    assert [(row.fqn, row["zeros"]) for row in grads.rows] == [("lin.weight", 6)]


def test_grouped_rows_say_what_in_them_was_edited(cli: Cli) -> None:
    ran = cli("activations", "resnet18", "-i", "1x3x64x64", "--depth", "1", "--edit", "layer2.1.bn2:output=zero")
    [line] = [line for line in ran.out.splitlines() if line.startswith("layer2")]
    assert line.rstrip().endswith("edited: 1.bn2")
    ran = cli("grads", *NET, "--depth", "1", "--edit", "lin.*:grad=ones")
    [line] = [line for line in ran.out.splitlines() if line.startswith("lin")]
    assert line.rstrip().endswith("edited: ones")


def test_csv_and_markdown_hold_the_edited_figures(cli: Cli) -> None:
    for form in ("csv", "markdown"):
        ran = cli("activations", *NET, "--edit", "relu:output=scale(2)", "--format", form)
        assert ran.code == 0 and "relu" in ran.out


def noise_of(cli: Cli, *argv: str) -> dict[tuple[str, int], float]:
    found = report(cli, "activations", "resnet18", "-i", "1x3x64x64", *argv)
    return {(row.fqn, row["call"]): row["mean"] for row in found.rows}


@pytest.mark.sweep
def test_noise_follows_the_seed_and_differs_between_layers(cli: Cli) -> None:
    edits = ("--edit", "layer1.*.bn*:output=zero", "--edit", "layer1.*.bn*:output=noise(1)")
    first, again, other = (noise_of(cli, *edits, "--seed", seed) for seed in ("0", "0", "1"))
    assert first == again
    places = [key for key in first if key[0].startswith("layer1") and ".bn" in key[0]]
    assert len(places) == 4 == len({first[key] for key in places})
    assert all(first[key] != other[key] for key in places)


def test_noise_leaves_the_masks_of_dropout_alone(cli: Cli) -> None:
    argv = ("activations", "small.py:Small", "--input", "64x3", "--fill", "ones", "--train", "--match", "drop")
    zeros = [report(cli, *argv, *edit).rows[0]["zeros"] for edit in ((), ("--edit", "lin:output=noise(0.001)"))]
    assert 0 < zeros[0] == zeros[1]
