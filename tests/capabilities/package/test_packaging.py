"""Package hooks on models small enough to follow: what they saw, that they are gone, that nothing changed."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import equal, untouched
from torch import nn
from torch.package import PackageExporter, PackageImporter

from hookcli.capabilities.package.rules import suggestion
from hookcli.errors import ModelError, UsageError
from hookcli.hooks import packaging
from hookcli.hooks.packaging import BlockedError, Rule, export, idle_rules, rehearse

OWN = """
import sys
import torch
from torch import nn
import pk_helper

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.twice = pk_helper.Twice()
        with torch.no_grad():
            self.fc.weight.fill_(1)
            self.fc.bias.fill_(5)

    def forward(self, x):
        return self.twice(self.fc(x))

def lam():
    net = Net()
    net.twice.f = lambda x: x
    return net
"""
HELPER = """
from torch import nn

class Twice(nn.Module):
    def forward(self, x):
        return 2 * x
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of a user's own model, which needs another of theirs, sys and torch."""
    (tmp_path / "pk_own.py").write_text(OWN)
    (tmp_path / "pk_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    import pk_own

    yield pk_own
    for name in ("pk_own", "pk_helper"):
        del sys.modules[name]


@pytest.fixture
def exporters(monkeypatch: pytest.MonkeyPatch) -> list[PackageExporter]:
    """Every exporter that is made."""
    made: list[PackageExporter] = []

    class Noted(PackageExporter):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(packaging, "PackageExporter", Noted)
    return made


RULES = [Rule("intern", "pk_own"), Rule("mock", "pk_nothing"), Rule("intern", "pk_helper"), Rule("extern", "sys")]


def hooks_of(exporter: PackageExporter) -> int:
    return len(exporter._extern_hooks) + len(exporter._intern_hooks) + len(exporter._mock_hooks)


def test_what_the_hooks_saw(own: Any, tmp_path: Path, exporters: list[PackageExporter]) -> None:
    model = own.Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with untouched(model):
        modules = export(model, "net", RULES, tmp_path / "m.pt2pkg", "model", {"note.txt": "hello"})
    assert equal(before, dict(model.state_dict()))
    went = {m.name: m.action for m in modules}
    assert {name for name, action in went.items() if action == "intern"} == {"<model.model.pkl>", "pk_own", "pk_helper"}
    assert went["sys"] == went["torch"] == went["torch.nn.modules.linear"] == "extern" and "mock" not in went.values()
    assert [m.index for m in modules] == list(range(len(modules)))
    needed_by = {m.name: m.needed_by for m in modules}
    assert (needed_by["pk_helper"], needed_by["sys"]) == ("<model.model.pkl>", "pk_own")
    [exporter] = exporters
    assert hooks_of(exporter) == 0
    with zipfile.ZipFile(tmp_path / "m.pt2pkg") as archive:
        externs = archive.read("archive/.data/extern_modules").decode().split()
        assert externs == [m.name for m in modules if m.action == "extern"]  # in the order of the hooks
        assert archive.read("archive/pk_own.py").decode() == OWN and archive.read("archive/model/note.txt") == b"hello"
    loaded = PackageImporter(tmp_path / "m.pt2pkg").load_pickle("model", "model.pkl")
    assert loaded(torch.ones(1, 3)).tolist() == [[16.0, 16.0]]  # 2 * (1 + 1 + 1 + 5)


def test_the_order_is_that_of_independent_hooks(own: Any, tmp_path: Path) -> None:
    seen: list[str] = []
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("pk_*")
        exporter.extern("sys")
        exporter.register_extern_hook(lambda _, name: seen.append(name))
        exporter.register_intern_hook(lambda _, name: seen.append(name))
        exporter.save_pickle("model", "model.pkl", own.Net())
    ours = export(own.Net(), "", [Rule("intern", "pk_*"), Rule("extern", "sys")], tmp_path / "m", "model", {})
    assert [m.name for m in ours] == seen


def test_what_blocks(own: Any, tmp_path: Path, exporters: list[PackageExporter]) -> None:
    model = own.Net()
    rules = [Rule("intern", "pk_own"), Rule("deny", "pk_helper")]
    with untouched(model), pytest.raises(BlockedError) as caught:
        export(model, "net", rules, tmp_path / "m", "model", {})
    problems = {m.name: (m.problem, m.needed_by) for m in caught.value.modules if m.problem}
    assert problems == {
        "pk_helper": ("denied by --deny pk_helper", "<model.model.pkl>"),
        "sys": ("no pattern matches it", "pk_own"),
    }
    assert hooks_of(exporters[0]) == 0


@pytest.mark.parametrize(
    "rules",
    [
        (),
        (Rule("intern", "pk_own"),),
        (Rule("intern", "**"),),
        (Rule("deny", "pk_*"),),
        (Rule("mock", "**"),),
        (Rule("deny", "**"), Rule("intern", "pk_*")),
        (Rule("extern", "nothing.**"), Rule("mock", "pk_helper")),
    ],
    ids=lambda rules: " ".join(map(str, rules)) or "none",
)
def test_suggestions_pass_and_load(own: Any, tmp_path: Path, rules: tuple[Rule, ...]) -> None:
    file = tmp_path / "m.pt2pkg"
    with pytest.raises(BlockedError) as caught:
        export(own.Net(), "net", rules, file, "model", {})
    found = suggestion(rules, caught.value.modules)
    modules = export(own.Net(), "net", found, file, "model", {})
    assert list(idle_rules(found, modules)) == [] and not any(m.problem for m in modules)
    assert {"pk_own", "pk_helper"} <= {m.name for m in modules if m.action == "intern"}
    assert PackageImporter(file).load_pickle("model", "model.pkl")(torch.zeros(1, 3)).tolist() == [[10.0, 10.0]]


def test_a_rehearsal_decides_as_the_export_does(own: Any, tmp_path: Path) -> None:
    real = export(own.Net(), "", RULES, tmp_path / "m", "model", {})
    roots = [m.name for m in real if m.needed_by == "<model.model.pkl>"]
    tried = rehearse(roots, RULES)
    assert {(m.name, m.action) for m in tried} == {(m.name, m.action) for m in real if not m.is_pickle}


def test_rules_without_effect(own: Any, tmp_path: Path) -> None:
    rules = [
        *RULES,
        Rule("extern", "pk_*"),
        Rule("extern", "torch.**"),
        Rule("intern", "torch.**"),
        Rule("deny", "a.*"),
    ]
    said = {
        str(rule): reason for rule, reason in idle_rules(rules, export(own.Net(), "", rules, tmp_path / "m", "m", {}))
    }
    assert said.keys() == {"--mock pk_nothing", "--extern 'pk_*'", "--intern 'torch.**'"}
    assert said["--mock pk_nothing"] == "matches no module"
    assert said["--extern 'pk_*'"].startswith("has no effect, since pk_") and "--intern pk_" in said["--extern 'pk_*'"]


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"--extern 'torch\*\*': \*\* stands for whole names"):
        Rule("extern", "torch**")


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.ReLU())
        self.inner[0].source = iter([]) if sys.version_info >= (3, 14) else (i for i in range(3))


def local() -> nn.Module:
    class Inside(nn.Module):
        pass

    return nn.Sequential(Inside())


def hooked() -> nn.Module:
    model = nn.Sequential(nn.ReLU())
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Locked, "source of inner.0 (ReLU): "),
        (local, "the class of 0 (Inside): "),
        (hooked, "_forward_hooks of 0 (ReLU): "),
    ],
)
def test_what_cannot_be_pickled_is_named(make: Callable[[], nn.Module], said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        export(make(), "m.py:f", [Rule("extern", "**")], tmp_path / "m", "model", {})
    assert str(caught.value).startswith(f"m.py:f can't be pickled: {said}")
    assert "\n" not in str(caught.value)
