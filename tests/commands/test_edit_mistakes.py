"""--edit from the command line: mistakes, and models that fail by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands.edit_nets import NET, SMALL, Cli, report
from support import assert_stats, each_once

from hookcli.cli import main


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)


MISTAKES: dict[tuple[str, ...], str] = {
    ("activations", "--edit", "relu"): "--edit 'relu': give 'PATTERN:WHAT=OP', for example 'layer4.*:output=zero'",
    ("activations", "--edit", "rel:output=zero"): "matches nothing: no module matches 'rel'; did you mean 'relu'?",
    ("activations", "--edit", "zz*:output=zero"): "matches nothing: no module matches 'zz*'",
    ("activations", "--edit", "net.relu:output=zero"): "no module matches 'net.relu'; did you mean 'relu'?",
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
    ("grads", "--edit", "lin.wight:grad=zero"): "no parameter matches 'lin.wight'; did you mean 'lin.weight'",
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


@pytest.mark.parametrize(("name", "place"), each_once(WRONG, ["lin:grad_output", "lin:grad_input", "lin.weight:grad"]))
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
    assert ran.code == 0 and "gradients on, since the model fails without" in ran.out + ran.err


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
        assert module.rows
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
        assert main([command, "--help", "all"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        for word in ("--edit", "PATTERN:WHAT=OP", "grad_input", "clamp(-1,1)", "pkg.mod:fn"):
            assert word in said
