"""hookcli diff of models that differ in a setting: the cause comes first, and decides the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands.diffed import Cli, diffed
from commands.shown import on_terminal
from support import swept

NETS = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, tiny):
        super().__init__()
        self.tiny, self.layers = tiny, 2

    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.tiny).sqrt()

class Block(nn.Module):
    def __init__(self, eps, form, p):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(32, eps), nn.LayerNorm(32, eps)
        self.fc, self.act, self.proj = nn.Linear(32, 64), nn.GELU(form), nn.Linear(64, 32)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        x = x + self.ln_1(x)
        return x + self.drop(self.proj(self.act(self.fc(self.ln_2(x)))))

def gpt(eps=1e-5, form="none", p=0.1):
    return nn.Sequential(*(Block(eps, form, p) for _ in range(3)))

def convolutions(padding_mode="zeros", momentum=0.1, inplace=False):
    conv = nn.Conv2d(3, 8, 3, padding=1, padding_mode=padding_mode)
    return nn.Sequential(conv, nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(inplace))

def damped(eps=1e-5):
    torch.manual_seed(0)
    first, last = nn.Linear(32, 32), nn.Linear(32, 32)
    with torch.no_grad():
        first.weight.mul_(0.05), first.bias.zero_(), last.weight.mul_(1e-5)
    return nn.Sequential(first, nn.LayerNorm(32, eps=eps), last)

def mine(tiny=1e-5):
    return nn.Sequential(nn.Linear(32, 32), Mine(tiny))
"""
GPT, IMAGE = ("--input", "2x5x32"), ("--input", "2x3x8x8")
A = "nets.py:gpt"
GELUS = "3 GELUs: changed approximate (none → tanh)"
EPS, TANH = f"{A} --arg eps=1e-6", f"{A} --arg form=tanh"


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


@pytest.mark.parametrize("columns", [80, swept(120), swept(200)])
@pytest.mark.parametrize(("b", "cause"), [swept(EPS, "6 LayerNorms: changed eps (1e-05 → 1e-06)"), (TANH, GELUS)])
def test_a_terminal_shows_the_cause_first_and_once(nets: Path, columns: int, b: str, cause: str) -> None:
    text = on_terminal(columns, "diff", A, b, *GPT, NO_COLOR="1", LINES="24", both=True)
    first = " ".join(text.partition("settings differ")[0].split())
    assert first.startswith(f"{cause}; outputs within tolerance (worst: "), text
    assert first.endswith(" of it)") and float(first.split()[-3]) < 1
    assert " ".join(text.split()).count(cause) == 1 and "furthest apart" not in text
    assert "exit code 1: settings differ (--allow-settings" in " ".join(text.split())


def test_the_share_of_the_tolerance_is_that_of_the_worst_output(cli: Cli, nets: Path) -> None:
    code, (report,), _ = diffed(cli, A, TANH, *GPT)
    worst = max((row for row in report["rows"] if row["kind"] == "output"), key=lambda row: row["times"])
    assert code == 1 and f"(worst: {worst['fqn']}, {worst['times']:.2g} of it)" in report["totals"]["verdict"]
    (finding,) = report["findings"]
    assert (finding["severity"], finding["fqn"], finding["remedy"]) == (
        "error",
        "0.act",
        "--allow-settings approximate",
    )


def test_allowed_settings_are_told_and_no_finding(cli: Cli, nets: Path) -> None:
    for allowed in ("eps, approx*", "*"):
        code, (report,), err = diffed(cli, A, TANH, *GPT, "--allow-settings", allowed)
        assert code == 0 and [finding["severity"] for finding in report["findings"]] == ["note"]
        assert report["totals"]["verdict"].startswith(f"{GELUS}, as allowed; outputs ")
        assert "exit code" not in err
        assert "--allow-settings: " not in err
    ran = cli("diff", A, TANH, *GPT, "--allow-settings", "eps,aproximate")
    assert ran.code == 1 and "no setting matches 'aproximate'; did you mean 'approximate'?\n" in ran.err
    assert "'eps'" not in ran.err
    saved = cli("activations", A, *GPT, "-o", "a.json")
    assert saved.code == 0
    refused = cli("diff", "a.json", A, *GPT, "--allow-settings", "eps")
    assert refused.code == 2 and "--allow-settings: both sides must be models" in refused.err


TRAINING = "which acts only in train mode"
DROPOUTS, MOMENTUM = "3 Dropouts: changed p (0.1 → 0.2)", "layer 1 (BatchNorm2d): changed momentum (0.1 → 0.2)"
PADDING = "layer 0 (Conv2d): changed padding_mode (zeros → reflect); first difference: layer 0, "
CASES = {
    "dropout": (("gpt", "p=0.2"), 0, f"{DROPOUTS}, {TRAINING}"),
    "dropout in training": (("gpt", "p=0.2", "--train"), 1, f"{DROPOUTS}; "),
    "momentum": (("convolutions", "momentum=0.2"), 0, f"{MOMENTUM}, {TRAINING}"),
    "momentum in training": (("convolutions", "momentum=0.2", "--train"), 1, f"{MOMENTUM}; identical, bit for bit"),
    "inplace": (("convolutions", "inplace=true"), 0, "2 (ReLU): changed inplace (False → True), which changes no"),
    "padding": (("convolutions", "padding_mode=reflect"), 1, PADDING),
    "of a class of one's own": (
        ("mine", "tiny=1e-6"),
        1,
        "layer 1 (Mine): changed tiny (1e-05 → 1e-06); outputs within",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_setting_counts_if_it_can_change_figures_of_the_run(cli: Cli, nets: Path, case: str) -> None:
    (a, b, *rest), code, said = CASES[case]
    images = IMAGE if a == "convolutions" else GPT
    ran, (report,), _ = diffed(cli, f"nets.py:{a}", f"nets.py:{a} --arg {b}", *images, *rest)
    verdict = report["totals"]["verdict"]
    assert ran == code and said in verdict, verdict
    assert verdict.startswith(said) if code else verdict.startswith("Identical, bit for bit; "), verdict
    assert {finding["severity"] for finding in report["findings"]} <= ({"error"} if code else {"note"})


def test_an_inner_difference_that_the_output_does_not_show(cli: Cli, nets: Path) -> None:
    inner = "layer 1 (LayerNorm): changed eps (1e-05 → 1e-06); first difference: layer 1, relative error "
    code, (report,), _ = diffed(cli, "nets.py:damped", "nets.py:damped --arg eps=1e-6", *GPT)
    beyond = {row["fqn"]: row.get("beyond") for row in report["rows"]}
    assert code == 1 and beyond["1"] and not beyond[""]
    assert report["totals"]["verdict"].startswith(inner)
    assert report["totals"]["verdict"].endswith("; the model's output is within tolerance")
    code, (report,), _ = diffed(cli, A, "nets.py:gpt --arg eps=0.1", *GPT)
    assert code == 1 and "output is within" not in report["totals"]["verdict"]


def test_weights_that_differ_first_stay_the_cause(cli: Cli, nets: Path) -> None:
    """The settings of later modules are told last."""
    (nets / "more.py").write_text(
        "import nets\nfrom torch import nn\n\ndef bent():\n    model = nets.gpt(eps=1e-6)\n"
        "    nn.init.ones_(model[0].fc.bias)\n    return nn.Sequential(*model)\n"
    )
    code, (report,), _ = diffed(cli, A, "more.py:bent", *GPT)
    verdict = report["totals"]["verdict"]
    assert code == 1 and verdict.startswith("First difference: 0.fc (bias differs), relative error "), verdict
    assert verdict.endswith("; 6 LayerNorms: changed eps (1e-05 → 1e-06)")


@pytest.mark.parametrize("name", ["markdown", "html", "csv"])
def test_other_formats_begin_with_it(cli: Cli, nets: Path, name: str) -> None:
    cause = "6 LayerNorms: changed eps (1e-05 → 1e-06); outputs within tolerance"
    ran = cli("diff", A, EPS, *GPT, "-f", name, *(("-o", "page.html") if name == "html" else ()))
    assert ran.code == 1
    if name == "markdown":
        assert ran.out.splitlines()[2].startswith(f"**{cause}") and ran.out.count(cause) == 1
    elif name == "csv":
        assert ran.err.startswith(f"hookcli: {cause}")
    else:
        assert cause in Path("page.html").read_text()  # as it is without scripts
