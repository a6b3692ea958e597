"""`hookcli coord-check` as it is typed: verdicts, figures against plain PyTorch, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities.coord_check.trained import NETS
from support import require_clear_error, swept
from torch import Tensor
from torch.nn.functional import cross_entropy

from hookcli.sources import importpath

Cli = Callable[..., Any]
WIDTHS = ("--arg", "width=16,32,64")
DATA = ("--data", "nets.py:data", "--loss", "cross-entropy")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def check(cli: Cli, net: str, *argv: str) -> dict[str, Any]:
    ran = cli("coord-check", f"nets.py:{net}", *WIDTHS, *argv, "--format", "json", "-q")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["reports"][0])


def made(name: str, *arguments: Any) -> Any:
    return importpath.load_object(f"nets.py:{name}")(*arguments)


FAST = ("--lr", "1e-2", "--steps", "3", "--seeds", "3")


@pytest.mark.sweep
def test_what_grows_without_mup_is_the_first_line_and_with_it_nothing_does(cli: Cli) -> None:
    report = check(cli, "MLP", *DATA, *FAST)
    assert report["totals"]["verdict"].startswith("The change of out's output grows with width: slope ")
    assert report["totals"]["verdict"].endswith("modules): hyperparameters will not transfer")
    rows = {row["fqn"]: row for row in report["rows"]}
    assert list(rows) == ["", "inp", "hidden", "out"]
    assert rows["out"]["change_slope"] > 0.6 and rows["out"]["with_width"] == "change grows"
    assert rows["inp"]["change_slope"] < 0.1
    report = check(cli, "mu", *DATA, *FAST, "--optimizer", "nets.py:mu_adam")
    assert report["totals"]["verdict"].startswith("Nothing grows with width")
    assert max(row["change_slope"] for row in report["rows"]) < 0.1
    asked = "nets.py:mu_adam, lr 0.01, 3 steps, 3 seeds, loss cross-entropy"
    assert (report["meta"]["optimizer"], report["meta"]["loss"]) == (asked, "cross-entropy")
    assert check(cli, "given", "--seeds", "1", "--steps", "1")["meta"]["loss"] == "sum"


def by_hand(width: int, seed: int, optimizer: Callable[..., Any], steps: int) -> list[dict[str, Tensor]]:
    """The output of each layer of the MLP before and after each step, from weights and formulas, without hooks."""
    torch.manual_seed(seed)
    model = made("MLP", width)
    [(x, target)] = made("batches")
    trained, seen = optimizer(model.parameters()), []
    for _ in range(steps + 1):
        layers, outputs = dict(model.named_children()), {}
        outputs["inp"] = x @ layers["inp"].weight.T + layers["inp"].bias
        outputs["hidden"] = outputs["inp"].clamp(min=0) @ layers["hidden"].weight.T + layers["hidden"].bias
        outputs["out"] = outputs["hidden"].clamp(min=0) @ layers["out"].weight.T + layers["out"].bias
        seen.append({name: output.detach() for name, output in outputs.items()})
        trained.zero_grad()
        cross_entropy(outputs["out"], target).backward()
        trained.step()
    return seen


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2),
    "nets.py:adam_of": lambda params: torch.optim.Adam(params, lr=1e-2),
}


@pytest.mark.parametrize("optimizer", ["adamw", swept("adam"), "sgd", "nets.py:adam_of"])
def test_sizes_and_changes_are_those_of_a_plain_loop(cli: Cli, optimizer: str) -> None:
    asked = (*DATA, "--optimizer", optimizer, "--lr", "1e-2", "--steps", "2", "--seeds", "2", "--seed", "5")
    rows = check(cli, "MLP", *asked, "--points")["rows"]
    assert len(rows) == 4 * 3 * 2 * 3
    for width in (16, 32, 64):
        for seed in range(2):
            seen = by_hand(width, 5 + seed, OPTIMIZERS[optimizer], 2)
            for row in (row for row in rows if (row["width"], row["seed"]) == (width, seed) and row["fqn"]):
                now, first = (seen[step][row["fqn"]] for step in (row["step"], 0))
                assert row["coordinate_size"] == pytest.approx(now.abs().mean().item(), rel=1e-9)
                assert row["coordinate_change"] == pytest.approx((now - first).abs().mean().item(), rel=1e-6)
                assert (row["coordinate_change"] == 0) == (row["step"] == 0)


def test_a_row_has_means_over_seeds_and_the_fit_of_all_points(cli: Cli) -> None:
    import numpy as np

    asked = (*DATA, "--steps", "2", "--seeds", "2", "--optimizer", "sgd", "--lr", "0.5", "--match", "hidden")
    (row,) = check(cli, "MLP", *asked)["rows"]
    points = check(cli, "MLP", *asked, "--points")["rows"]
    last = [point for point in points if point["step"] == 2]
    for name, width in {"size_narrowest": 16, "size_widest": 64}.items():
        sizes = [point["coordinate_size"] for point in last if point["width"] == width]
        assert len(sizes) == 2 and row[name] == pytest.approx(sum(sizes) / 2)
    for name, figure, step in (("initial", "size", 0), ("size", "size", 2), ("change", "change", 2)):
        pairs = [(p["width"], p[f"coordinate_{figure}"]) for p in points if p["step"] == step]
        (value, _), covariance = np.polyfit(*np.log2(np.array(pairs).T), 1, cov=True)
        assert row[f"{name}_slope"] == pytest.approx(value) and len(pairs) == 6
        assert row[f"{name}_slope_error"] == pytest.approx(covariance[0, 0] ** 0.5)
        assert row[f"{name}_growth"] == f"{round(value, 2) + 0.0:.2f} ± {covariance[0, 0] ** 0.5:.2f}"


def test_parts_of_all_kinds_are_followed_or_said_to_be_left_out(cli: Cli) -> None:
    report = check(cli, "Odd", "--input", "8x8", "--seeds", "2", "--steps", "2", "--lr", "1e-2")
    rows = {row["fqn"]: row for row in report["rows"]}
    assert {*rows} == {"", "twice", "several", "frozen", "narrow", "drop", "norm"}
    reasons = {item["fqn"]: item["reason"] for item in report["skipped"]}
    assert reasons == {
        "whole": "returns no floating-point tensor",
        "unused": "never called in train mode",
        "masks": "its output is not finite at initialization",
        "only.small": "not in the model at width=64",
    }
    assert "change_slope" not in rows["frozen"] and rows["frozen"]["with_width"] == ""
    points = check(cli, "Odd", "--input", "8x8", "--seeds", "1", "--steps", "1", "--points")["rows"]
    changes = {p["fqn"]: p["coordinate_change"] for p in points if p["step"] == 1 and p["width"] == 16}
    assert changes["frozen"] == 0 < changes["drop"]


def test_an_output_counts_with_all_its_tensors_and_calls(cli: Cli) -> None:
    asked = ("--input", "8x8", "--seeds", "1", "--steps", "1", "--optimizer", "sgd", "--points")
    points = check(cli, "Odd", *asked)["rows"]
    torch.manual_seed(0)
    model, x = made("Odd", 32), torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    first = model.twice(model.frozen(x))
    parts = [first, model.twice(first.relu())]
    (size,) = (p["coordinate_size"] for p in points if (p["fqn"], p["step"], p["width"]) == ("twice", 0, 32))
    assert size == pytest.approx(torch.cat(parts).abs().mean().item(), rel=1e-5)


def test_an_output_of_other_shapes_is_left_out_and_the_rest_goes_on(cli: Cli) -> None:
    report = check(cli, "Experts", "--input", "8x8", "--seeds", "1", "--steps", "2")
    assert [row["fqn"] for row in report["rows"]] == ["", "inp"]
    assert [item["reason"] for item in report["skipped"]] == ["its output has other shapes in other steps"]


def test_a_training_that_diverges_ends_the_figures(cli: Cli) -> None:
    report = check(cli, "Blows", *DATA, "--seeds", "2", "--steps", "4")
    what = "(the model's output is not finite after step 2)"
    assert report["totals"]["verdict"].startswith(f"Training diverges at width=32, 64 {what}, but not at 16: ")
    assert any(note.endswith(" (after step 1)") for note in report["meta"]["notes"])
    assert len(report["rows"]) == 4 and all(row["change_slope"] is not None for row in report["rows"])
    report = check(cli, "BlowsAlways", *DATA, "--seeds", "1")
    everywhere = "(the model's output is not finite after step 2 at width=16)"
    assert report["totals"]["verdict"] == f"Training diverges at every width {everywhere}: lower --lr"
    report = check(cli, "Lost", *DATA, "--seeds", "1")
    assert report["totals"]["verdict"] == "The loss is not finite at initialization (width=16): nothing was trained"


@pytest.mark.parametrize(
    ("net", "argv", "note"),
    [
        ("same", ("--seeds", "2"), "seeds: some give the same weights, "),
        ("Restless", ("--seeds", "1"), "not deterministic: a second training at width=16 "),
        ("MLP", ("--seeds", "2"), ""),
    ],
)
def test_notes_on_models_that_are_not_what_a_slope_needs(cli: Cli, net: str, argv: Any, note: str) -> None:
    notes = check(cli, net, *DATA, "--steps", "1", *argv)["meta"]["notes"]
    suspicious = [text for text in notes if text.startswith(("seeds: ", "not deterministic: "))]
    assert len(suspicious) == bool(note) and all(text.startswith(note) for text in suspicious)


@pytest.mark.parametrize("net", ["given", swept("lazy")])
def test_an_example_input_and_lazy_layers_will_do(cli: Cli, net: str) -> None:
    report = check(cli, net, "--seeds", "1", "--steps", "1", *(("--input", "2x8") if net == "lazy" else ()))
    assert len(report["rows"]) == 4 and "No output has changed" not in report["totals"]["verdict"]


def test_nothing_trained_is_said(cli: Cli) -> None:
    for net, argv in (("MLP", (*DATA, "--lr", "0")), ("Odd", ("--input", "8x8", "--match", "frozen"))):
        verdict = check(cli, net, *argv, "--seeds", "1")["totals"]["verdict"]
        assert verdict == "No output has changed: nothing that these modules depend on was trained"


def test_ctrl_c_leaves_the_seeds_that_are_done(cli: Cli) -> None:
    ran = cli("coord-check", "nets.py:Stops", *WIDTHS, *DATA, "--seeds", "3", "--steps", "2", "-f", "json")
    (report,) = json.loads(ran.out)["reports"]
    assert ran.code == 130 and report["meta"]["complete"] is False
    assert report["totals"]["runs"] == 3 and len(report["rows"]) == 4


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("MLP",), "give the width several values, as in --arg width=64,128,256,512"),
        (("MLP", "--arg", "width=16,32"), "--arg width=16,32: a slope needs three widths or more"),
        (("MLP", "--arg", "width=16,16,32"), "--arg width=16,16,32: a slope needs three widths or more"),
        (("MLP", "--arg", "width=16,x,32"), "a width is a number above 0, not 'x'"),
        (("MLP", "--arg", "width=16,0,32"), "a width is a number above 0, not '0'"),
        (("MLP", *WIDTHS, "--arg", "depth=1,2,3"), "several values are for the width alone"),
        (("MLP", "--arg", "wide=16,32,64"), "unknown argument of nets.py:MLP 'wide'"),
        (("MLP", *WIDTHS, "--input", "4x7"), "at width=16: inp (Linear) failed on input 4x7"),
        (("MLP", *WIDTHS, "--input", "4x8", "--optimizer", "adm"), "unknown --optimizer 'adm'; did you mean adam"),
        (("MLP", *WIDTHS, "--input", "4x8", "--optimizer", "nets.py:data"), "nets.py:data is list: name a function"),
        (("MLP", *WIDTHS, "--input", "4x8", "--optimizer", "nets.py:nothing"), "returned NoneType, not an optimizer"),
        (
            ("MLP", *WIDTHS, "--input", "4x8", "--optimizer", "nets.py:no_rate", "--lr", "1"),
            "--lr 1: nets.py:no_rate takes no argument lr; leave out --lr",
        ),
        (("frozen", *WIDTHS, "--input", "4x8"), "no gradients"),
        (("MLP", *WIDTHS, "--arg", "width=8"), "--arg width=8: --arg width=16,32,64 gives width already"),
        (("depth_alone", *WIDTHS, "--input", "4x8"), "--arg width: no parameter's shape depends on it"),
        (("MLP", *WIDTHS, "--input", "4x8", "--optimizer", "torch.optim:LBFGS"), "LBFGS needs a closure"),
        (("wide_input", *WIDTHS), "the model's example input depends on the width: 2x16 at width=16, 2x32 at width=32"),
        (("MLP", *WIDTHS, "--input", "4x8", "--device", "meta"), "--device meta: no values to look at"),
        (("MLP", *WIDTHS, "--input", "4x8", "--columns", "sise"), "unknown column 'sise'"),
    ],
)
def test_mistakes(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    net, *rest = argv
    require_clear_error(cli("coord-check", f"nets.py:{net}", *rest), said)


def test_a_function_of_the_model_has_its_own_rate(cli: Cli) -> None:
    own = check(cli, "MLP", *DATA, "--seeds", "1", "--steps", "1", "--optimizer", "nets.py:no_rate", "--points")
    sgd = check(cli, "MLP", *DATA, "--seeds", "1", "--steps", "1", "--optimizer", "sgd", "--lr", "0.25", "--points")
    assert own["rows"] == sgd["rows"]


def test_the_table_fits_and_begins_with_the_verdict(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = cli("coord-check", "nets.py:MLP", *WIDTHS, *DATA, *FAST, "-q")
    *lines, following = ran.out.splitlines()
    assert following.startswith("Next: hookcli coord-check nets.py:MLP --lr 0.001,0.003,0.01,0.03,0.1,0.3 ")
    assert lines[0].startswith("The change of out's output grows with width: slope ") and ran.err == ""
    assert max(map(len, lines)) <= 80 and any(" ± " in line and line.startswith("hidden ") for line in lines)


def test_sizes_are_those_of_mup_s_own_check(cli: Cli, tmp_path: Path) -> None:
    """The package's hooks and loop, on the same weights: in float64, equal to the last digits."""
    pytest.importorskip("mup")
    coord_check = pytest.importorskip("mup.coord_check")
    (tmp_path / "mup_nets.py").write_text(MUP_NETS)
    make = importpath.load_object("mup_nets.py:make")
    asked = (*WIDTHS, *DATA, "--optimizer", "mup:MuAdam", "--lr", "1e-2", "--steps", "3", "--seeds", "2")
    ran = cli("coord-check", "mup_nets.py:make", *asked, "--points", "-f", "json", "-q")
    rows = json.loads(ran.out)["reports"][0]["rows"]
    ours = {(row["fqn"], row["width"], row["seed"], row["step"]): row["coordinate_size"] for row in rows}
    theirs = {}
    for seed in range(2):

        def seeded(width: int, seed: int = seed) -> Any:
            torch.manual_seed(seed)
            return make(width)

        models = {width: (lambda width=width: seeded(width)) for width in (16, 32, 64)}
        settings = {"optimizer": "adam", "lr": 1e-2, "nsteps": 4, "nseeds": 1, "cuda": False, "show_progress": False}
        found = coord_check.get_coord_data(models, made("batches"), **settings)
        theirs |= {(row.module, row.width, seed, row.t - 1): row.l1 for row in found.itertuples()}
    assert len(ours) == 4 * 3 * 2 * 4 and ours == pytest.approx(theirs, rel=1e-12)
    ran = cli("coord-check", "mup_nets.py:make", *asked, "-q")
    assert ran.out.startswith("Nothing grows with width")


MUP_NETS = """
import mup
from nets import MLP

class Mu(MLP):
    def __init__(self, width):
        super().__init__(width)
        self.out = mup.MuReadout(width, 4).double()

def make(width):
    model = Mu(width)
    mup.set_base_shapes(model, Mu(16), delta=Mu(24))
    return model
"""
