"""The Python in the pages runs: the blocks of a page are one program, in order. CI's mypy reads them, too.

The callbacks of docs/run.md, whose libraries take long to import, run in tests/record/integrations.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from documentation.pages import PAGES, blocks, executed

from hookcli.cli import main
from hookcli.system.importing import load_object
from hookcli.table import Report


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def test_every_page_with_python_is_run_here() -> None:
    found = {name for name, page in PAGES.items() if blocks.python(page)}
    assert found == {
        f"docs/{name}.md" for name in ("checks", "commands", "dumps", "plugins", "python", "report", "run")
    }


def test_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    program = executed("docs/python.md")
    out = capsys.readouterr().out
    activations, report = program["activations"], program["report"]
    assert str(activations) in out and repr(activations) in out and "<Report activations of Sequential: 4 rows>" in out
    assert " zeros in ReLU\n" in out and "\n6144 multiply-adds\n" in out  # 32 * (8 * 16 + 16 * 4)
    assert program["frame"]["zeros"].sum() == sum(row["zeros"] for row in activations.rows)
    assert program["parameters"].probe == "parameters" and Path("model.html").is_file()
    assert len(program["grads"].rows) == 4 and program["large"].totals["params"] == 11_689_512
    assert isinstance(report, Report) and not report.findings and program["seen"].reports()[0].rows


def test_a_page() -> None:
    page = executed("docs/report.md")["page"]
    assert Path("model.html").is_file() and [report.probe for report in page.reports][:2] == ["check", "shapes"]


def test_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    recording = executed("docs/run.md", lambda code: "HookcliCallback" not in code)["recording"]
    assert recording.path == Path("run.jsonl").resolve() and recording.path.stat().st_size
    assert capsys.readouterr().out.startswith(f"{recording.path} largest magnitude ")


def test_a_healthy_model(request: pytest.FixtureRequest) -> None:
    executed("docs/checks.md")["test_model"](request.getfixturevalue("hookcli"))


def test_a_loss() -> None:
    image = torch.rand(2, 3)
    assert executed("docs/commands.md")["brightness"]({"image": image}) == image.mean()


def test_a_dump_of_another_engine(capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file

    code = "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    Path("net.py").write_text(
        f"{code}        self.fc = nn.Linear(8, 4)\n    def forward(self, x):\n        return self.fc(x)\n"
    )
    assert main(["activations", "net.py:Net", "-i", "2x8", "--dump", "acts"]) == 0
    save_file(load_object("net.py:Net")().state_dict(), "net.safetensors")
    assert main(["activations", "net.py:Net", "-i", "2x8", "--weights", "net.safetensors", "--dump", "acts"]) == 0
    executed("docs/dumps.md")
    assert main(["diff", "acts", "numpy"]) == 0 and "1 compared" in capsys.readouterr().out


def test_a_probe() -> None:
    import hookcli

    program = executed("docs/plugins.md")
    probe = program["DeadProbe"]
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    with torch.no_grad():
        net[0].weight.fill_(1), net[0].bias.copy_(torch.tensor([-9.0, 9.0, -9.0]))
    (report,) = hookcli.capture(net, torch.rand(4, 2), probe())
    assert [dict(row.values) for row in report.rows] == [{"fqn": "1", "units": 3, "dead": 2}]

    class Router(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).topk(2).values

    (report,) = hookcli.capture(torch.nn.Sequential(Router(2, 5)), torch.rand(4, 2), program["RoutersProbe"]())
    [row] = report.rows
    assert (row.fqn, row["call"], row["k"]) == ("0", 0, 2) and "test_python.py:" in row["line"]
