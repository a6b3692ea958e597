"""`--edit` from the command line: figures against hooks by hand, marks, meta, and what each mistake says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from support import assert_stats, float64_stats
from torch import Tensor, nn

from hookcli.cli import main
from hookcli.report import Report

Cli = Callable[..., Any]

SMALL = """
import torch
from torch import nn


class Small(nn.Module):
    '''Gradients of weight [1, 2, 3] by hand; drop, a module that never runs, and one that gets integers.'''

    def __init__(self):
        super().__init__()
        self.lin, self.relu, self.out = nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)
        self.embed, self.drop, self.unused = nn.Embedding(4, 2), nn.Dropout(0.5), nn.Linear(2, 2)
        with torch.no_grad():
            self.lin.weight.fill_(1.0)
            self.lin.bias.zero_()
            self.out.weight.fill_(1.0)

    def forward(self, x):
        found = self.embed(torch.arange(len(x)) % 4) * 0
        return self.out(self.drop(self.relu(self.lin(x))) + found)


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.lin(x * torch.tensor([1.0, 2.0, 3.0]))


class Frees(Weight):
    def forward(self, x):
        y = super().forward(x)
        y.sum().backward()
        return y


class Frozen(Weight):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Hooked(Weight):
    def __init__(self, where):
        super().__init__()
        if where == "forward":
            self.lin.register_forward_hook(self.boom)
        elif where == "backward":
            self.lin.register_forward_hook(lambda m, a, o: o.register_hook(self.boom) and None)
        else:
            self.lin.register_full_backward_hook(self.boom)

    def boom(self, *details):
        raise ValueError("from a hook of one's own")


class Legacy(Weight):
    def __init__(self):
        super().__init__()
        self.lin.register_backward_hook(lambda m, i, o: None)


def shorter(x):
    return x[..., :1]

def fails(x):
    raise ValueError("not today")

def halves(x):
    return x.half()

def overwrites(x):
    return x.mul_(2)

def nothing(x):
    pass

number = 3
"""


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)


NET = ("small.py:Small", "--input", "2x3", "--fill", "ones")


def report(cli: Cli, *argv: str) -> Report:
    ran = cli(*argv, "--format", "json")
    assert ran.code == 0, ran.err
    return Report.from_dict(json.loads(ran.out)["reports"][0])


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
    line, run = [line for line in table.out.splitlines() if "edited" in line]
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


MISTAKES: dict[tuple[str, ...], str] = {
    ("activations", "--edit", "relu"): "--edit 'relu': give 'PATTERN:WHAT=OP', for example 'layer4.*:output=zero'",
    ("activations", "--edit", "rel:output=zero"): "matches nothing: unknown module 'rel'; did you mean relu?",
    ("activations", "--edit", "zz*:output=zero"): "matches nothing: unknown module 'zz*'; no module has such a name",
    ("activations", "--edit", "relu:outputs=zero"): "unknown place 'outputs'; did you mean output",
    ("activations", "--edit", "relu:output=nul"): "unknown operation 'nul'",
    ("activations", "--edit", "relu:output=scale"): "missing a required argument: 'factor'; use scale(factor)",
    ("activations", "--edit", "relu:output=small.py:shortr"): "unknown name 'shortr'; did you mean shorter?",
    ("activations", "--edit", "relu:output=small.py:number"): "small.py:number is int, not a function",
    ("activations", "--edit", "relu:output=nope.py:f"): "--edit 'relu:output=nope.py:f': no file 'nope.py'",
    ("activations", "--edit", "lin.weight:output=zero"): "lin.weight is a parameter: what changes is its gradient",
    ("activations", "--edit", "relu:grad_output=zero"): "there are no gradients here; use `hookcli grads`",
    ("shapes", "--edit", "relu:grad_input=zero"): "there are no gradients here; use `hookcli grads`",
    ("inputs", "--edit", "lin.weight:grad=zero"): "there are no gradients here; use `hookcli grads`",
    ("grads", "--edit", "lin:grad=zero"): "lin is a module: name its parameters, as in 'lin.*:grad'",
    ("grads", "--edit", "lin.wight:grad=zero"): "unknown parameter 'lin.wight'; did you mean lin.weight",
    ("grads", "--of", "outputs", "--via", "module", "--edit", "relu:grad_output=zero"): "without --via module",
    ("grads", "--via", "module"): "--via module: module hooks see outputs and inputs; give --of outputs",
    ("grads", "--via", "modul"): "unknown --via 'modul'; did you mean module?",
    ("shapes", "--edit", "lin:output=small.py:fails"): "small.py:fails failed: ValueError: not today",
    ("activations", "--match", "out", "--edit", "lin:output=small.py:nothing"): "returned NoneType, not a tensor",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_one_clear_line(cli: Cli, argv: tuple[str, ...]) -> None:
    ran = cli(argv[0], *NET, *argv[1:])
    assert ran.code == 2 and (ran.out == "" or argv[0] == "shapes"), ran.out
    [line] = ran.err.splitlines()
    assert line.startswith("hookcli: error: ") and MISTAKES[argv] in line, line


def test_a_wrong_shape_names_both_and_shows_what_came_before(cli: Cli) -> None:
    ran = cli("activations", *NET, "--edit", "out:input=small.py:shorter")
    assert ran.code == 2 and "Traceback" not in ran.err
    assert ran.err == (
        "hookcli: error: --edit 'out:input=small.py:shorter', at input of out: "
        "returned shape 2x1 for a tensor of shape 2x2\n"
    )
    assert "relu" in ran.out and " · incomplete" in ran.out


WRONG = {
    "halves": "returned float16 on cpu for a tensor of float32 on cpu",
    "overwrites": "changes its tensor in place, which the model still uses; return a new tensor",
    "nothing": "returned NoneType, not a tensor; return the new tensor",
    "fails": "small.py:fails failed: ValueError: not today",
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("place", ["lin:grad_output", "lin:grad_input", "lin.weight:grad"])
def test_in_backward_too(cli: Cli, place: str, name: str) -> None:
    of = ("--of", "inputs") if "grad_input" in place else ()
    ran = cli("grads", *NET, *of, "--eval", "--edit", f"{place}=small.py:{name}")
    assert ran.code == 2 and ran.err.count("\n") == 1 and WRONG[name] in ran.err
    where, _, what = place.partition(":")
    assert f"at {what} of {where}: " in ran.err and "out" in ran.out and "incomplete" in ran.out


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ("unused:output=zero", "what it matches was never called, or had no tensor as output"),
        ("unused:grad_output=zero", "no gradient reached it; what it matches was never called, or needs none"),
        ("unused.weight:grad=zero", "no gradient reached it; what it matches was never called, or needs none"),
        ("embed:input=zero", "it reached only int64 tensors, which edits leave alone"),
        ("lin:grad_input=zero", "no gradient reached it; what it matches was never called, or needs none"),
    ],
)
def test_an_edit_that_changed_nothing_is_an_error_after_the_report(cli: Cli, edit: str, why: str) -> None:
    ran = cli("grads", *NET, "--edit", edit)
    assert ran.code == 2 and ran.err == f"hookcli: error: --edit {edit!r} changed nothing: {why}\n"
    assert "lin.weight" in ran.out and "out.weight" in ran.out


# Models that fail, or have no gradients, by themselves.

LIN = ("--input", "1x3")


@pytest.mark.parametrize("command", ["grads", "graph", "trace"])
def test_a_model_without_gradients(cli: Cli, command: str) -> None:
    ran = cli(command, "small.py:Frozen", *LIN)
    assert ran.code == 2 and ran.err.startswith("hookcli: error: no gradients: nothing in the output requires grad")
    ran = cli(command, "small.py:Frozen", *LIN, "--edit", "lin.weight:grad=zero")
    assert ran.err.endswith("matches nothing: lin.weight is frozen (requires_grad=False)\n")


def test_a_graph_that_an_earlier_backward_freed(cli: Cli) -> None:
    ran = cli("grads", "small.py:Frees", *LIN)
    assert ran.code == 2 and ran.err.startswith(
        "hookcli: error: backward failed: the graph was freed by an earlier backward: the model runs one itself"
    )
    assert "retain_graph=True" in ran.err and "lin.weight" in ran.out
    ran = cli("activations", "small.py:Frees", *LIN)
    assert ran.code == 2 and "the model runs backward itself" in ran.err and "small.py:" in ran.err


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("forward", "lin (Linear) failed on input 1x3: ValueError: from a hook of one's own"),
        ("backward", "backward failed: ValueError: from a hook of one's own"),
        ("module", "a backward hook of lin (Linear) failed: ValueError: from a hook of one's own"),
    ],
)
@pytest.mark.parametrize("edit", [(), ("--edit", "lin.weight:grad=scale(2)")])
def test_a_hook_of_ones_own_that_raises(cli: Cli, where: str, said: str, edit: tuple[str, ...]) -> None:
    ran = cli("grads", "small.py:Hooked", "--arg", f"where={where}", *LIN, *edit)
    *_, first, second = ran.err.splitlines()  # before them PyTorch may warn of the hook itself
    assert ran.code == 2 and first == f"hookcli: error: {said}"
    assert second.startswith("  at small.py:") and " boom" in second


def test_via_module_from_the_command_line(cli: Cli) -> None:
    for of in ("outputs", "inputs"):
        tensor, module = (report(cli, "grads", *NET, "--of", of, "--via", via) for via in ("tensor", "module"))
        assert [row.fqn for row in tensor.rows] and {row.fqn for row in module.rows} <= {r.fqn for r in tensor.rows}
        figures = {row.fqn: row.stats for row in tensor.rows}
        for row in module.rows:
            stats = figures[row.fqn]
            assert stats is not None
            assert_stats(row.stats, stats)


def test_what_via_module_refuses(cli: Cli) -> None:
    ran = cli("grads", "resnet18", "-i", "2x3x32x32", "--of", "outputs", "--via", "module")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("hookcli: error: relu (ReLU) failed on input 2x64x16x16: it changes in place a tensor")
    assert "tensor hooks work here (hookcli grads without --via module)" in ran.err
    ran = cli("grads", "small.py:Legacy", *LIN, "--of", "outputs", "--via", "module")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("hookcli: error: lin (Linear) has, or had, a hook of the deprecated")
    assert cli("grads", "small.py:Legacy", *LIN, "--of", "outputs").code == 0


def test_help_names_places_and_operations(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("activations", "grads", "shapes", "trace"):
        assert main([command, "--help"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        for word in ("--edit", "PATTERN:WHAT=OP", "grad_input", "clamp(-1,1)", "pkg.mod:fn"):
            assert word in said
