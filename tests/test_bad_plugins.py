"""Plugins of other distributions that are not what they say: each costs one line, which names its distribution."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookcli import registry
from hookcli.checks.finite import ActivationNotFinite
from hookcli.errors import PluginError
from hookcli.registry import Plugin
from hookcli.table import Finding

Cli = Callable[..., Any]
NET = ("net.py:Net", "-i", "2x3x4x4")
WHO = "plugin 'odd' ({kind}, from odd-plugins 3.1)"
PROBE = """
from hookcli.probes.base import Probe
from hookcli.table import Column, Row
class P(Probe):
    name = "odd"
    columns = (Column("fqn", "Layer"),)
    def attach(self, session): pass
    def rows(self): return [Row({{"fqn": "a"}})]
    {}
"""
REPORTER = """
class R:
    suffixes = (".odd",)
    def render(self, reports, view): return "odd\\n"
    {}
"""
CHECK = """
from hookcli.checks.base import Check
class C(Check):
    id, name, means, advice, needs = "odd", "odd-one", "it", "that", ()
    def judge(self, facts): return []
    {}
"""
SOURCE = """
class S:
    def recipe(self, request): raise RuntimeError("empty")
    {}
"""
BAD = {
    ("probes", "P", "import sys; sys.exit(3)"): "does not load: SystemExit: 3",
    ("probes", "P", "class Own(BaseException): pass\nraise Own('mine')"): "does not load: Own: mine",
    ("probes", "P", "x = 1"): "does not load: AttributeError: module 'odd_code' has no attribute 'P'",
    ("probes", "P", "P = 'text'"): "is not a plugin of hookcli: its entry point names str, not a class",
    ("probes", "P", "P = lambda: None"): "is not a plugin of hookcli: its entry point names function, not a class",
    ("probes", "P", "class P: pass"): "is not a plugin of hookcli: the class P has no method attach",
    ("probes", "P", PROBE.format("columns = 'text'")): "columns must be a tuple of Column, not str",
    ("probes", "P", PROBE.format("columns = ('fqn',)")): "columns must be a tuple of Column, not tuple",
    ("probes", "P", PROBE.format("needs_backward = 'yes'")): "needs_backward must be bool, not str",
    ("probes", "P", PROBE.format("name = 3")): "name must be str, not int",
    ("probes", "P", PROBE.format("def __init__(self): raise GeneratorExit")): "failed: GeneratorExit",
    ("probes", "P", PROBE.format("def __init__(self): self.columns = 7")): "columns must be a tuple of Column, not int",
    ("probes", "P", PROBE.format("def attach(self, session): raise SystemExit(0)")): "failed: SystemExit: 0",
    ("probes", "P", PROBE.format("def rows(self): return 'text'")): "rows() returned str, not a list of Rows",
    ("probes", "P", PROBE.format("def rows(self): return [3, None]")): "rows() returned int among its Rows",
    ("probes", "P", PROBE.format("def rows(self): raise KeyboardError")): "failed: NameError",
    ("probes", "P", PROBE.format("def skipped(self): return ['a']")): "skipped() returned str among its Skippeds",
    ("reporters", "R", "R = 5"): "its entry point names int, not a class",
    ("reporters", "R", REPORTER.format("suffixes = '.odd'")): "suffixes must be a tuple of str, not str",
    ("reporters", "R", REPORTER.format("needs = 3")): "needs must be a tuple of str, not int",
    ("reporters", "R", REPORTER.format("def render(self, reports, view): return None")): "render() returned NoneType",
    ("reporters", "R", REPORTER.format("def render(self, reports, view): raise SystemExit")): "failed: SystemExit",
    ("sources", "S", SOURCE.format("recipe = 3")): "the class S has no method recipe",
    ("sources", "S", SOURCE.format("")): "failed: RuntimeError: empty",
    (
        "sources",
        "S",
        SOURCE.format("def recipe(self, request): return 'resnet'"),
    ): "recipe() returned str, not a Recipe",
    ("edits", "e", "e = 3"): "an edit is a function, not int",
}
BAD_CHECKS = {
    CHECK.format("needs = 'grads'"): "needs must be a tuple of str, not str",
    CHECK.format("severity = 5"): "severity must be str, not int",
    CHECK.format("def __init__(self, limit): raise SystemExit"): "failed: SystemExit",
    CHECK.format("too_little = 3"): "failed: TypeError: 'int' object is not callable",
    CHECK.format("follows = None"): "follows must be a tuple of str, not NoneType",
    CHECK.format("def judge(self, facts): return ['bad']"): "failed: TypeError: judge() gave str, not a Finding",
    CHECK.format("def judge(self, facts): return [self.finding(None, 'x')]"): "failed: TypeError: it gave NoneType",
    CHECK.format("def judge(self, facts): yield self.finding('', 'x'); raise SystemExit(3)"): "failed: SystemExit: 3",
    CHECK.format("def near(self, facts): raise MemoryError('near')"): "failed: MemoryError: near",
    CHECK.replace('"odd"', '"ODD"').format(""): "has the id 'ODD': name the entry point after the id",
    "import sys; sys.exit(3)": "does not load: SystemExit: 3",
}
COMMANDS = {
    "probes": ("odd", *NET),
    "reporters": ("activations", *NET, "--format", "odd"),
    "checks": ("check", *NET),
    "sources": ("shapes", "odd:thing"),
    "edits": ("activations", *NET, "--edit", "*:output=odd"),
}


@pytest.fixture
def installed(net: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plugin]:
    """A distribution that brings this plugin, as its metadata declares it."""
    monkeypatch.syspath_prepend(str(net))

    def install(kind: str, attribute: str, code: str, name: str = "odd") -> Plugin:
        (net / "odd_code.py").write_text(code)
        monkeypatch.delitem(sys.modules, "odd_code", raising=False)
        plugin = Plugin(kind, name, f"odd_code:{attribute}", "odd-plugins 3.1")
        monkeypatch.setattr(registry, "_external", lambda: (plugin,))
        return plugin

    return install


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad[0]}-{BAD[bad][:30]}")
def test_one_line_names_it_and_its_distribution(
    cli: Cli, installed: Callable[..., Plugin], bad: tuple[str, str, str]
) -> None:
    kind = bad[0]
    installed(*bad)
    ran = cli(*COMMANDS[kind])
    assert ran.code == 2 and len(ran.err.splitlines()) == 1, ran.err
    assert BAD[bad] in ran.err and "odd-plugins 3.1" in ran.err, ran.err
    require_listed_alone(cli)


def require_listed_alone(cli: Cli) -> None:
    """The rest works, and the list of plugins has what does not load."""
    assert cli("shapes", *NET).code == 0
    listed = cli("plugins", "--load", "--format", "csv")
    fails = "does not load" in listed.out or "is not a plugin" in listed.out
    assert listed.err == "" and listed.code == (2 if fails else 0)


@pytest.mark.parametrize("code", BAD_CHECKS, ids=BAD_CHECKS.__getitem__)
def test_a_check_costs_itself_alone(cli: Cli, installed: Callable[..., Plugin], code: str) -> None:
    """It is never among those that passed, nor does it change the exit code; --debug shows its traceback."""
    installed("checks", "C", code)
    ran = cli("check", *NET)
    assert ran.code == 0 and ran.err.startswith("hookcli: check odd ") and "is left out: " in ran.err, ran.err
    assert len(ran.err.splitlines()) == 1 and "odd-plugins 3.1" in ran.err
    assert re.match(r"All \d+ checks passed, 1 check could not judge \(", ran.out), ran.out
    assert "not judged: " in ran.out and BAD_CHECKS[code] in " ".join([*ran.out.split(), *ran.err.split()])
    (report,) = json.loads(cli("check", *NET, "-f", "json").out)["reports"]
    (skipped,) = [one for one in report["skipped"] if one["fqn"].startswith("odd ")]
    assert skipped["kind"] == "not_judged" and BAD_CHECKS[code] in skipped["reason"]
    assert "odd" not in report["meta"]["checks"] and report["totals"]["failed_checks"] == 1 and not report["findings"]
    traced = cli("check", *NET, "--debug").err
    assert traced.startswith("Traceback (most recent call last):") and traced.endswith(ran.err)
    assert cli("check", *NET, "--max-params", "1").code == 1  # what other checks find decides
    require_listed_alone(cli)


def test_a_check_that_does_not_load_can_not_be_selected(cli: Cli, installed: Callable[..., Plugin]) -> None:
    """People would take it for passed."""
    installed("checks", "C", "C = 5")
    ran = cli("check", *NET, "--select", "odd")
    assert ran.code == 2 and "error: odd is selected but can't judge: plugin 'odd' (checks, from odd" in ran.err
    assert "it can't judge: plugin 'odd' (checks, from odd-plugins 3.1)" in " ".join(cli("explain", "odd").out.split())


def test_a_check_of_hookcli_s_that_raises_is_a_bug(cli: Cli, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(self: ActivationNotFinite, measured: object) -> Iterator[Finding]:
        raise KeyError("ours")

    monkeypatch.setattr(ActivationNotFinite, "judge", judge)
    ran = cli("check", *NET)
    assert ran.code == 2 and "KeyError: 'ours'" in ran.err and "this is a bug in hookcli, please report it" in ran.err


@pytest.mark.parametrize("kind", ["probes", "reporters", "checks", "sources", "edits"])
def test_a_built_in_is_used_whoever_brings_another_of_its_name(
    cli: Cli, installed: Callable[..., Plugin], kind: str
) -> None:
    name = {"probes": "shapes", "reporters": "json", "checks": "HK006", "sources": "torchvision", "edits": "zero"}[kind]
    plugin = installed(kind, "x", "raise SystemExit(5)", name=name)
    argv = {"checks": ("check", *NET), "edits": ("activations", *NET, "--edit", "conv:output=zero", "-f", "json")}
    argv["sources"] = ("shapes", "torchvision:resnet18", "-f", "json")
    ran = cli(*argv.get(kind, ("shapes", *NET, "-f", "json")))
    said = f"hookcli: {plugin} is not used: a built-in plugin has the same name\n"
    assert ran.code in (0, 1) and ran.out and ran.err.count(said) == 1, ran.err
    ran = cli("plugins", "--load", "-f", "json", "-q")
    assert ran.code == 0 and "not used: a built-in plugin has the same name" in ran.out and ran.err == ""


def test_two_others_of_one_name_are_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    both = tuple(Plugin("probes", "odd", f"{who}:P", f"{who} 1.0") for who in ("one", "two"))
    monkeypatch.setattr(registry, "_external", lambda: both)
    with pytest.raises(PluginError, match=r"one 1\.0 and two 1\.0 both bring it"):
        registry.load("probes", "odd")
