"""Runs the main commands of the installed hookcli in an empty folder, as a new user would: `python .ci/commands.py`.

The workflow of wheels calls it with each wheel on each platform, and with an installation that had no compiler
(`--without-library`). Nothing but the dependencies need be installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FILES = {
    "net.py": """
from torch import nn


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
""",
    "train.py": """
import torch
from net import net

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "net.pt")
""",
}
NET = ("net.py:net", "--input", "16x8")
COMMANDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--help",), "hookcli"),
    (("models", "resnet*"), "resnet50"),
    (("plugins",), "activations"),
    (("explain", "HK010"), "dead-units"),
    (("shapes", "resnet18"), "11,689,512 parameters"),
    (("shapes", *NET), "178 parameters"),
    (("activations", *NET), "ReLU"),
    (("activations", *NET, "--output", "activations.json"), ""),
    (("show", "activations.json"), "ReLU"),
    (("grads", *NET), "0.weight"),
    (("check", *NET), "checks passed"),
    (("memory", *NET), "Peak"),
    (("flow", *NET), "ReLU"),
    (("report", *NET, "--output", "net.html"), ""),
    (("diff", "net.py:net", "net.py:net", "--input", "16x8"), "Identical"),
    (("run", "train.py"), ""),
    (("show", "train.run.jsonl"), "|dw|/|w|"),
    (("report", "train.run.jsonl"), ""),
    (("weights", "net.pt"), "0.weight"),
)


def main() -> int:
    """Run all commands and print those that failed. Returns the exit code."""
    from hookcli.tensors import library

    print(library.described())
    wrong = [] if library.loaded != ("--without-library" in sys.argv) else ["the library is not as it should be"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, text in FILES.items():
            Path(folder, name).write_text(text)
        subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
        for words, expected in COMMANDS:
            if sys.platform == "win32" and "train" in words[-1]:  # `run` replaces its process, as Windows can't
                continue
            command = [sys.executable, "-m", "hookcli", *words]
            ran = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace")
            if ran.returncode or expected not in ran.stdout:
                wrong.append(f"hookcli {' '.join(words)}: exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    print("\n".join(wrong) or f"{len(COMMANDS)} commands ran")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
