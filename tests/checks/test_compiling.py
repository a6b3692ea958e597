"""Graph breaks, recompilations and functions left uncompiled, planted in models, and as PyTorch tells of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from checks import compiled_nets as nets
from support import needs_inductor, swept, untouched
from torch import nn
from torch._dynamo import utils

from hookcli import check
from hookcli.errors import UsageError
from hookcli.hooks.compilations import CompilationLog
from hookcli.table import Report

pytestmark = pytest.mark.xdist_group("torch.compile")  # whose imports and precompiled headers one worker needs
ALL = ("HK039", "HK040", "HK041", "HK042", "HK043")
OTHERS = [swept(net) for net in (nets.Item, nets.Branch, nets.Timed, nets.Array)]
BROKEN = [nets.Prints, nets.LeftOut, *OTHERS]
LEFT = [nets.Loop, swept(nets.Tries)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    utils.counters.clear()
    yield
    torch.compiler.reset()


def compiled(model: nn.Module, backend: str = "eager", **settings: Any) -> Report:
    """The report of these checks alone: others look inside, which compiles once more."""
    return check(model, nets.example(), compile=backend, **{"select": ["HK039", "HK040", "HK041", "HK042"]} | settings)


def found(report: Report, *ids: str) -> list[tuple[str, str, str]]:
    """The check, the place, and the message of each finding of these checks that is more than a remark."""
    rows = [one for one in report.findings if one.check in (ids or ALL) and one.severity != "info"]
    return [(one.check, f"{Path(one.file or '').name}:{one.line}", one.message) for one in rows]


@pytest.mark.parametrize("net", [nets.Plain, *BROKEN, *LEFT, swept(nets.Counts)], ids=lambda net: net.__name__)
def test_what_is_planted_is_found_at_its_line_and_nothing_else(net: type[nn.Module]) -> None:
    expected = nets.marked(net)
    items = found(compiled(net()))
    assert [(check, place) for check, place, _ in items] == list(expected)
    for (_, _, message), words in zip(items, expected.values(), strict=True):
        assert words in message


@pytest.mark.parametrize("net", [*map(swept, (nets.Prints, nets.LeftOut)), *OTHERS], ids=lambda net: net.__name__)
def test_breaks_and_graphs_are_those_that_pytorch_explains(net: type[nn.Module]) -> None:
    explained = dynamo.explain(net())(nets.example())
    frames = {(Path(one.user_stack[-1].filename).name, one.user_stack[-1].lineno) for one in explained.break_reasons}
    torch.compiler.reset()
    report = compiled(net(), backward=False)
    places = {place for _, place, _ in found(report, "HK039")}
    assert places == {f"{file}:{line}" for file, line in frames if file == "compiled_nets.py"}
    assert f" {explained.graph_count} graph" in " ".join(report.meta["notes"])


class Messages(logging.Handler):
    """Counts the messages that PyTorch logs of recompilations."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += record.getMessage().startswith("Recompiling function")


@pytest.fixture
def logged() -> Iterator[Messages]:
    logger, handler = logging.getLogger("torch._dynamo.guards.__recompiles"), Messages()
    torch._logging.set_logs(recompiles=True)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    torch._logging.set_logs()


@pytest.mark.sweep
@pytest.mark.parametrize("net", [nets.Counts, *map(swept, (nets.Plain, nets.Prints))], ids=lambda net: net.__name__)
def test_recompilations_are_those_that_pytorch_logs(net: type[nn.Module], logged: Messages) -> None:
    report = compiled(net(), select=["HK040"])
    assert logged.number == sum(one.value or 0 for one in report.findings if one.check == "HK040") > 0


def test_a_model_that_is_compiled_as_often_as_allowed_is_an_error() -> None:
    report = compiled(nets.CountsOn())
    (limit,) = [one for one in report.findings if one.check == "HK041"]
    (again,) = [one for one in report.findings if one.check == "HK040"]
    assert limit.severity == "error" and "self.calls ==" in limit.message and limit.file and limit.line
    assert again.value == dynamo.config.recompile_limit - 1


def test_other_sizes_are_a_remark_or_not_judged() -> None:
    (finding,) = [one for one in compiled(nets.Plain()).findings if one.check in ALL]
    assert (finding.check, finding.severity) == ("HK040", "info")
    assert "x.size(0) was 4, is 5" in finding.message and "mark_dynamic" in finding.remedy
    torch.compiler.reset()
    report = compiled(nets.OneSize())
    assert found(report) == []
    (skipped,) = [item for item in report.skipped if item.fqn.startswith("HK040")]
    assert "a batch of 5 fails" in skipped.reason


@pytest.mark.parametrize(("limit", "judged"), [(0, ["HK043"]), swept(1, [])])
def test_a_budget_of_graph_breaks(limit: int, judged: list[str]) -> None:
    report = compiled(nets.Prints(), thresholds={"max-graph-breaks": limit})
    errors = [one for one in report.findings if one.severity == "error"]
    assert [one.check for one in errors] == judged
    assert all(one.message == "1 graph break, allowed: 0" for one in errors)


def test_nothing_stays_behind() -> None:
    x, model, level = nets.example(), nets.Plain(), logging.getLogger("torch._dynamo").level
    kept = utils._compilation_metrics.maxlen
    with untouched(model):
        check(model, x, compile="aot_eager")
    assert logging.getLogger("torch._dynamo").level == level and utils._compilation_metrics.maxlen == kept
    assert not dynamo.eval_frame._debug_get_cache_entry_list(nets.Plain.forward)


@pytest.mark.sweep
def test_a_model_that_is_compiled_already_runs_as_it_is() -> None:
    model: Any = torch.compile(nets.Prints(), backend="aot_eager")
    report = compiled(model, "eager")
    assert found(report) and "as the model is compiled" in " ".join(report.meta["notes"])


def many_breaks(number: int, folder: Path) -> nn.Module:
    """A model with this number of lines that break the graph, more than PyTorch keeps metrics of."""
    lines = [f"        x = x + {n}\n        print({n})\n" for n in range(number)]
    code = (
        "from torch import nn\nclass Many(nn.Module):\n    def forward(self, x):\n"
        + "".join(lines)
        + "        return x\n"
    )
    (folder / "many.py").write_text(code)
    space: dict[str, Any] = {"__name__": "many"}
    exec(compile(code, str(folder / "many.py"), "exec"), space)
    model: nn.Module = space["Many"]()
    return model


@pytest.fixture
def few() -> Iterator[None]:
    """PyTorch keeps metrics of two compilations, instead of 64."""
    kept = utils._compilation_metrics.maxlen
    utils.set_compilation_metrics_limit(2)
    yield
    utils.set_compilation_metrics_limit(kept)


@pytest.mark.usefixtures("few")
@pytest.mark.sweep
def test_more_compilations_than_pytorch_keeps_metrics_of(tmp_path: Path) -> None:
    report = check(many_breaks(4, tmp_path), torch.ones(2, 2), compile="eager", backward=False)
    assert len([one for one in report.findings if one.check == "HK039"]) == 4
    assert " 4 graphs" in " ".join(report.meta["notes"]) or " 5 graphs" in " ".join(report.meta["notes"])


LIBRARY = """
def trace(x):
    y = x * 2
    print("library")
    return y + 1
"""
USER = """
from torch import nn
import printing_library

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = self.fc(x)
        y = printing_library.trace(y)  # \x1b[31m red
        return y
"""


@pytest.mark.sweep
def test_a_library_is_named_after_the_users_own_line(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "printing_library.py").write_text(LIBRARY)
    (tmp_path / "net.py").write_text(USER)
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.chdir(tmp_path)
    ran = cli("check", "net.py:Net", "--compile", "eager", "-i", "4x8", "--fail-on", "warning", "--select", "HK039")
    line = USER.splitlines().index(next(text for text in USER.splitlines() if "trace(y)" in text)) + 1
    (row,) = [text for text in ran.out.splitlines() if text.startswith("HK039")]
    assert ran.code == 1 and f"net.py:{line} `y = printing_library.trace(y)" in row
    assert "in printing_library.py:4 trace" in row and "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compile=nonsense"], "unknown --compile 'nonsense'; choose from: inductor,"),
        (["--compile", "nonsense"], "unknown --compile 'nonsense'; choose from: inductor,"),
        (["--compile="], "--compile=: a value is missing; give --compile alone, or --compile=inductor"),
        (["--max-graph-breaks", "0"], "give --compile"),
        (["--select", "HK040"], "give --compile"),
        (["--compile", "--meta"], "--meta and --compile"),
    ],
)
def test_mistakes(cli: Callable[..., Any], net: Path, words: list[str], message: str) -> None:
    ran = cli("check", "net.py:Net", "-i", "2x3x4x4", *words)
    assert ran.code == 2 and message in ran.err and "TESTING" not in ran.err and ran.err.count("\n") == 1


def test_compilation_that_is_switched_off_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with pytest.raises(UsageError, match="TORCH_COMPILE_DISABLE"):
        compiled(nets.Plain())


def test_a_model_that_cannot_be_compiled(cli: Callable[..., Any], net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> Any:
        raise NotImplementedError("no compiler here")

    refuses._tags = ()  # type: ignore[attr-defined]
    monkeypatch.setitem(dynamo.backends.registry._COMPILER_FNS, "refuses", refuses)
    monkeypatch.setitem(dynamo.backends.registry._BACKENDS, "refuses", None)
    ran = cli("check", "net.py:Net", "-i", "2x3x4x4", "--compile=refuses")
    assert ran.code == 2 and "HK001" in ran.out and "HK039 graph-break and 3 more: not judged" in ran.out
    assert "under torch.compile (refuses)" in ran.err and "no compiler here" in ran.err
    assert "--compile=refuses" in next(line for line in ran.out.splitlines() if line.startswith("Next:"))


@needs_inductor
@pytest.mark.sweep
def test_with_inductor_as_people_type_it(cli: Callable[..., Any]) -> None:
    """A single matrix product: inductor compiles no C++ for it."""
    linear = ("torch.nn:Linear", "--arg", "in_features=4", "--arg", "out_features=4", "--arg", "bias=False")
    ran = cli("check", *linear, "-i", "2x4", "--no-backward", "--select", "HK039", "--compile")
    assert ran.code == 0 and "torch.compile (inductor): 1 graph" in ran.out


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("often", [True, swept(False)])
def test_a_log_that_is_read_often_enough_is_complete(often: bool, tmp_path: Path) -> None:
    log = CompilationLog()
    model = torch.compile(many_breaks(4, tmp_path), backend="eager")
    model(torch.ones(2))
    if often:  # what a step compiles is fewer than PyTorch keeps, though all steps together are more
        torch.compiler.reset()
        log = CompilationLog()
        for number in range(4):
            torch.compile(eval(f"lambda x: x + {number}"), backend="eager")(torch.ones(2))
            log.read()
    made = log.result()
    assert made is not None and made.complete == often
    assert made.line(1).startswith("at least ") != often and (made.graphs == 4 or not often)
