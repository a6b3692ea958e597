"""`check --ops`: operators are judged as modules are, and named with the line that called them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from support import untouched
from torch import Tensor, nn
from torch.nn.functional import hardtanh, relu

from hookcli import check
from hookcli.cli import main
from hookcli.errors import UsageError
from hookcli.reporters.table import TableReporter
from hookcli.table import Report

SOURCE = f"{Path(__file__).name}:"


class Attention(nn.Module):
    """Masks scores with infinities, and with large negative numbers, as is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ x.transpose(1, 2)
        ahead = torch.ones(4, 4).triu(1).bool()
        hard = torch.softmax(scores.masked_fill(ahead, float("-inf")), -1)
        return (hard + torch.softmax(scores + ahead * torch.finfo(scores.dtype).min, -1)) @ x


class Net(nn.Module):
    """Two layers with functions between; `dead` channels of a ReLU, a saturated hardtanh, a logarithm of what it is."""

    def __init__(self, *, dead: int = 0, scale: float = 0.1, least: float = 1.0) -> None:
        super().__init__()
        self.attention, self.fc, self.out = Attention(), nn.Linear(8, 8), nn.Linear(8, 4)
        self.scale, self.least = scale, least
        with torch.no_grad():
            self.fc.bias[:dead] = -100.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        y = relu(self.fc(x)) + hardtanh(x * self.scale + 0.3, -1.0, 1.0)
        z = torch.log(x.square() + self.least)
        return self.out((y + z).flatten(1).view(x.shape))


def checked(net: Net, ops: str | None = "functions", **settings: object) -> Report:
    x = torch.randn(16, 4, 8, generator=torch.Generator().manual_seed(0))
    with untouched(net):
        return check(net, x, ops=ops, **{"backward": False, **settings})  # type: ignore[arg-type]


def test_a_healthy_model_has_no_findings_among_its_operators() -> None:
    assert not checked(Net()).findings


def test_dead_and_saturated_functions_have_their_names_and_lines() -> None:
    report = checked(Net(dead=7, scale=1e4), select=["HK010", "HK011"])
    found = {(f.check, f.fqn): f for f in report.findings}
    assert found.keys() == {("HK010", ":relu_1"), ("HK011", ":hardtanh_1")}
    sources = {row.fqn: row["source"].rpartition(":")[0] for row in report.rows}
    assert sources == dict.fromkeys((":relu_1", ":hardtanh_1"), f"tests/checks/{SOURCE[:-1]}")
    dead = found["HK010", ":relu_1"]
    assert dead.value == 7 / 8 and dead.message == "7 of 8 channels zero for every input"
    lines = TableReporter().render([report], TableReporter().asked(report, depth=None, columns="", sort=None)[1])
    assert f":relu_1 (tests/checks/{SOURCE}" in lines and dead.file == f"tests/checks/{SOURCE[:-1]}"
    assert not checked(Net(dead=7, scale=1e4), ops=None, select=["HK010", "HK011"]).findings
    again = checked(Net(dead=7, scale=1e4), select=["HK010", "HK011"], backward=True)  # autograd tells of the ReLU, too
    assert [f.fqn for f in again.findings] == [f.fqn for f in report.findings]


def test_the_operator_where_nan_begins() -> None:
    net = Net(least=-5.0)
    (finding,) = checked(net, select="HK003").findings
    assert finding.fqn == ":log_1" and finding.message.endswith("NaN, and in 1 module after it")
    (without,) = checked(net, ops=None, select="HK003").findings
    assert without.fqn == "" and "between fc and out" in without.message


class FailsAt(nn.Module):
    """Fails at an operator, in the mode that is given."""

    def __init__(self, in_training: bool) -> None:
        super().__init__()
        self.fc, self.in_training = nn.Linear(4, 4), in_training

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y if self.training != self.in_training else y.view(3, 5)


@pytest.mark.parametrize("in_training", [True, False])
def test_the_operator_that_fails_is_named_once_with_its_own_line(in_training: bool) -> None:
    report = check(FailsAt(in_training).train(in_training), torch.randn(2, 4), ops="functions")
    [finding] = [one for one in report.findings if one.check == "HK001"]
    lines, first = inspect.getsourcelines(FailsAt)
    number = first + next(n for n, line in enumerate(lines) if "view(3, 5)" in line)
    assert (finding.fqn, finding.file, finding.line) == (":view_1", "tests/checks/test_operators.py", number)
    assert finding.message.startswith("failed on input 2x4: RuntimeError: ")
    assert finding.message.count(f"test_operators.py:{number} ") == 1
    text = TableReporter().render([report], TableReporter().asked(report, depth=None, columns="", sort=None)[1])
    assert f":view_1 (tests/checks/test_operators.py:{number}): failed on input 2x4" in " ".join(text.split())


def test_large_values_of_operators_but_not_masks() -> None:
    (finding,) = checked(Net(scale=1e6), select="HK016").findings
    assert finding.fqn == ":mul_1"


def test_what_cannot_be_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="ops aten: checks judge PyTorch's functions; give functions"):
        checked(Net(), ops="aten")
    assert main(["check", "net.py:Net", "--ops", "aten"]) == 2
    assert "--ops aten: checks judge PyTorch's functions; give functions" in capsys.readouterr().err
