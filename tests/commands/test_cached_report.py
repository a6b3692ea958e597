"""`hookcli shapes` of a library's model is measured once: later it is the same report, at once, without torch."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import forks
import paged
import pytest

from hookcli.commands.cached_report import CachedReport
from hookcli.commands.options import Options
from hookcli.sources import identity
from hookcli.table import Report, Row, columns_named

MODEL = "alexnet"
VIEWS = [
    *(("-f", name) for name in ("table", "json", "csv", "markdown", "html")),
    *(("--depth", "1"), ("--sort", "-params", "--columns", "fqn,params,macs"), ("--quiet",)),
]
REPORT = Report("shapes", MODEL, columns_named("fqn"), [Row({"fqn": "a"})], {"device": "meta"})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hookcli" / "reports"


def unpacked(text: str) -> str:
    """The text of a page with its document readable."""
    return re.sub(r"<script.*</script>", "", text, flags=re.DOTALL) + paged.data(text)[0] if "<html" in text else text


def shown(cli: Callable[..., Any], *argv: str) -> str:
    ran = cli("shapes", *argv)
    assert ran.code == 0 and not ran.err, ran.err
    return str(ran.out)


@pytest.mark.sweep
def test_every_format_and_view_is_that_of_the_run_but_for_one_word(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Sequence[Report]] = []
    put = CachedReport.put
    monkeypatch.setattr(CachedReport, "put", lambda self, reports: (put(self, reports), ran.append(reports)))
    first = shown(cli, MODEL)
    with monkeypatch.context() as patched:  # shown from the run's own reports: another run takes other times
        patched.setattr(CachedReport, "get", lambda _: ran[0])
        measured = {view: shown(cli, MODEL, *view) for view in VIEWS}
    assert first == measured["-f", "table"]
    monkeypatch.setitem(sys.modules, "hookcli.engine.capture", None)  # nothing runs from here on
    for view, text in measured.items():
        again = unpacked(shown(cli, MODEL, *view))
        assert re.sub(r' · cached|, "cached": ?true', "", again) == unpacked(text), view
        assert ("cached" in again) == (view != ("-f", "csv"))  # which says nothing of the run
    ran = cli("shapes", MODEL, "--columns", "nonsense")
    assert ran.code == 2 and "nonsense" in ran.err and not ran.out


@pytest.mark.sweep
def test_a_hit_imports_no_torch_and_says_so(cli: Callable[..., Any]) -> None:
    shown(cli, MODEL)
    code = f"import sys; from hookcli.cli import main; main(['shapes', {MODEL!r}]); sys.exit('torch' in sys.modules)"
    ran = forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and " · cached" in " ".join(ran.stdout.split()), ran.stderr


def test_no_cache_neither_reads_nor_writes(cli: Callable[..., Any], folder: Path) -> None:
    assert "cached" not in shown(cli, MODEL, "--no-cache") and not folder.exists()
    CachedReport("shapes", MODEL, Options()).put([REPORT])
    assert len(shown(cli, MODEL, "-f", "csv")) < 100 < len(shown(cli, MODEL, "-f", "csv", "--no-cache"))


@pytest.mark.sweep
def test_every_option_that_matters_has_its_own_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.commands.cached_report.stamp", lambda _: "as it was")  # another test edits files
    CachedReport("shapes", MODEL, Options()).put([REPORT])
    for shown in ({"depth": "1"}, {"format": "csv"}, {"quiet": True}, {"columns": "fqn"}, {"output": "a.json"}):
        assert CachedReport("shapes", MODEL, Options(**shown)).get()
    for number, measured in enumerate(
        (
            *({"arg": ["num_classes=3"]}, {"weights": "DEFAULT"}, {"seed": 1}, {"input": ["2x3x64x64"]}),
            *({"batch_size": 3}, {"train": True}, {"dtype": "bfloat16"}, {"fastpath": False}, {"match": "*.0"}),
            *({"type": "Conv2d"}, {"device": "meta"}, {"fill": "ones"}, {"threads": 1}, {"strict": False}),
        )
    ):
        cached = CachedReport("shapes", MODEL, Options(**measured))
        assert not cached.get(), measured
        cached.put([Report("shapes", f"{number}", REPORT.columns, REPORT.rows, REPORT.meta)])
        assert [report.model for report in cached.get()] == [f"{number}"]
    assert [report.model for report in CachedReport("shapes", MODEL, Options()).get()] == [MODEL]
    assert not CachedReport("shapes", "vgg11", Options()).get() + CachedReport("flow", MODEL, Options()).get()
    monkeypatch.setenv("TORCH_SOMETHING", "1")
    assert not CachedReport("shapes", MODEL, Options()).get()


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        *(("net.py:Net", {}), ("torch.nn:ReLU", {}), ("nothing:at-all", {}), ("package:net.pt", {})),
        (MODEL, {"edit": ["conv1:output=zero"]}),
        *((MODEL, {"device": "cuda"}), (MODEL, {"weights": "net.py"}), (MODEL, {"arg": ["file=net.py"]})),
    ],
)
def test_ones_own_models_files_and_devices_are_never_cached(
    spec: str, options: dict[str, Any], net: Path, folder: Path
) -> None:
    cached = CachedReport("shapes", spec, Options(**options))
    cached.put([REPORT])
    assert not cached.get() and not folder.exists()


def test_a_run_for_real_holds_for_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Report("shapes", MODEL, REPORT.columns, REPORT.rows, {"device": "cpu"})
    cached = CachedReport("shapes", MODEL, Options())
    cached.put([real])
    assert cached.get()
    with monkeypatch.context() as moved:
        moved.setattr("platform.node", lambda: "elsewhere")
        assert not cached.get()
    cached.put([REPORT])
    assert [report.meta["device"] for report in cached.get()] == ["meta"]


def test_other_libraries_models_are_cached_where_their_configuration_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    config = tmp_path / "mine" / "config.json"
    config.write_text('{"model_type": "bert", "hidden_size": 8}')
    kept = {"timm:resnet18", "hf:bert", "hf:mine", f"hf:{tmp_path}/mine"}
    elsewhere = {"timm:mine", "timm:hf-hub:org/name", "timm:org/name", "hf:org/name", "hf:nothing"}
    assert {spec for spec in kept | elsewhere if identity.identity(spec)} == kept
    before = identity.identity("hf:mine")
    config.write_text('{"model_type": "bert", "hidden_size": 9}')
    assert identity.identity("hf:mine") != before
    for text in ("{", "[]", '{"model_type": ["bert"]}', '{"model_type": "ours"}'):
        config.write_text(text)
        assert identity.identity("hf:mine") is None
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in str(CachedReport("shapes", "hf:bert", Options())._key)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))  # which has no spec
    assert identity.identity("resnet18") is None


def test_changed_code_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: tmp_path / name for name in ("hookcli", "torch", "torchvision")}
    for name, content in (("torch/version.py", "1"), ("torch/nn/linear.py", "2"), ("torchvision/models/a.py", "3")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "hookcli").mkdir()
    (tmp_path / "hookcli" / "cli.py").write_text("4")
    monkeypatch.setattr(identity, "package_folder", places.get)
    monkeypatch.setattr("hookcli.system.cache._BEGUN", time.time() + 60)  # the files are older than the process
    for name in ("torch/nn/linear.py", "torchvision/models/a.py", "hookcli/cli.py"):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / name)
        monkeypatch.setitem(sys.modules, name, module)
    CachedReport("shapes", MODEL, Options()).put([REPORT])
    for name in ("torch/version.py", "torch/nn/linear.py", "torchvision/models/a.py", "hookcli/cli.py"):
        assert CachedReport("shapes", MODEL, Options()).get()
        before = (tmp_path / name).stat()
        (tmp_path / name).write_text("e")
        os.utime(tmp_path / name, ns=(before.st_atime_ns, before.st_mtime_ns))
        cached = CachedReport("shapes", MODEL, Options())
        assert not cached.get(), name
        cached.put([REPORT])
    del places["torchvision"]
    assert not CachedReport("shapes", MODEL, Options()).get()


def test_damaged_and_unwritable_caches_cost_nothing_but_time(
    cli: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = CachedReport("shapes", MODEL, Options())
    cached.put([REPORT])
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert not cached.get()
    for text in ("", "{}", "[]", '{"reports": [1]}', '{"reports": [{"probe": 1}]}'):
        with monkeypatch.context() as patched:
            patched.setattr("hookcli.system.cache.Cache.get", lambda *_, text=text: text)
            assert not cached.get()
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert "cached" not in shown(cli, MODEL)


def test_a_check_of_several_models_without_values_runs_those_that_are_not_cached(
    cli: Callable[..., Any], net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("check", "--meta", "--max-params", "5M", "--input", "2x3x64x64")
    first = cli(*command, "squeezenet1_0")
    assert first.code == 0 and "cached" not in first.out
    ran = cli(*command, "squeezenet1_0", "alexnet")
    assert ran.code == 1 and ran.out.replace(" · cached", "").startswith(first.out) and ran.out.count("cached") == 1
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "hookcli.engine.checking", None)  # nothing runs
        again = cli(*command, "squeezenet1_0", "alexnet", "--report", "found.html", "-f", "json")
        assert again.code == 1 and again.out.count('"cached": true') == 2 and "HK022" in again.out
        for changed in (["--no-backward"], ["--ignore", "HK001"], ["--max-macs", "9G"], ["--no-cache"]):
            assert cli(*command, "squeezenet1_0", *changed).code == 2
    for other in (["--meta", "net.py:Net", "--input", "2x3x4x4"], ["squeezenet1_0", "--input", "2x3x64x64"]):
        for _ in range(2):
            assert "cached" not in cli("check", *other).out  # one's own model; values
