"""The whole test suite on every PyTorch that hookcli promises, each in a fresh environment, one after the other.

    scripts/sweep versions                                  every release that pyproject.toml allows
    scripts/sweep versions 2.14.1 2.15.0 --python python3.13
    scripts/sweep versions --markdown                       and write a row for each into docs/accuracy.md

An environment has the torchvision that goes with this torch, and the newest of everything else that it allows. It is
made from a clone of the last commit by the README's test command (by uv where there is one, which downloads nothing
twice), and goes afterwards. What pytest printed stays in the folder of `--logs`. Exits 1 if a test failed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- scripts/sweep versions --markdown -->", "<!-- end of versions -->"
HEAD = (
    "| torch | Python | With | Passed | Failed | Skipped | Date |\n| :--- | :--- | :--- | ---: | ---: | :--- | :--- |\n"
)
BESIDE = ("torchvision", "triton", "numpy", "transformers", "timm")
Key = tuple[tuple[int, ...], ...]


def promised() -> list[str]:
    """The releases of torch that the package index has and pyproject.toml allows, the newest first."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [lowest] = (need.removeprefix("torch>=") for need in needs if need.startswith("torch>="))
    listed = subprocess.check_output([sys.executable, "-m", "pip", "index", "versions", "torch"], text=True)
    versions = re.findall(r"\d+\.\d+\.\d+(?=[,\s])", listed.partition("Available versions:")[2] + "\n")
    return [version for version in dict.fromkeys(versions) if _numbers(version) >= _numbers(lowest)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def tried(torch: str, python: str, logs: Path) -> str:
    """Run the suite with this torch, and return its row of the table."""
    name = f"torch-{torch}-{Path(python).name}"
    with tempfile.TemporaryDirectory() as folder, (logs / f"{name}.txt").open("w") as log:
        tree, bin_ = Path(folder, "tree"), Path(folder, "venv", "bin")
        environment = os.environ | {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PIP_CONSTRAINT": os.devnull}
        environment |= {"HOOKCLI_TEST_NATIVE": "required", "HOOKCLI_TEST_BROWSER": "required"}
        subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
        subprocess.run([python, "-m", "venv", bin_.parent], check=True)
        uv = shutil.which("uv")
        pip = [uv, "pip", "install", "--index-strategy", "unsafe-best-match"] if uv else ["pip", "install"]
        command = [*pip, "-q", "-e", ".[test]", f"torch=={torch}"]
        environment["VIRTUAL_ENV"] = str(bin_.parent)
        subprocess.run(command, cwd=tree, env=environment, stdout=log, stderr=log, check=True)
        results = logs / f"{name}.xml"
        command = [str(bin_ / "python"), "-m", "pytest", "-q", f"--junitxml={results}"]
        subprocess.run(command, cwd=tree, env=environment, stdout=log, stderr=log, check=False)
        asked = f"import platform as p, importlib.metadata as m; print(p.python_version(), *map(m.version, {BESIDE}))"
        told = subprocess.check_output([bin_ / "python", "-c", asked], text=True).split()
    return row(torch, told, results)


def row(torch: str, told: Sequence[str], results: Path) -> str:
    """A row of the table, from pytest's results."""
    cases = list(ET.parse(results).iter("testcase"))
    skipped = Counter(str(case.find("skipped").get("message")) for case in cases if case.find("skipped") is not None)
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    beside = ", ".join(f"{name} {version}" for name, version in zip(BESIDE, told[1:], strict=True))
    reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common())
    passed = len(cases) - failed - skipped.total()
    today = dt.date.today().isoformat()
    return f"| {torch} | {told[0]} | {beside} | {passed:,} | {failed:,} | {skipped.total()}: {reasons} | {today} |"


def write_page(rows: Sequence[str]) -> None:
    """Put these rows into the page, in place of the rows of the same torch and Python."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = {_key(line): line for line in (*old.splitlines(), *rows) if re.match(r"\| \d", line)}
    table = HEAD + "".join(f"{kept[key]}\n" for key in sorted(kept, reverse=True))
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}")


def _key(line: str) -> Key:
    return tuple(_numbers(cell) for cell in line.split("|")[1:3])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="of torch [all that pyproject.toml promises]")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters [this one]")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="folder of pytest's output")
    parser.add_argument("--markdown", action="store_true", help="write the rows into docs/accuracy.md")
    options = parser.parse_args(arguments)
    options.logs.mkdir(parents=True, exist_ok=True)
    rows = []
    for python in options.python:
        for version in options.versions or promised():
            rows.append(tried(version, python, options.logs))
            print(rows[-1], flush=True)
            if options.markdown:
                write_page(rows[-1:])
    return int(any(line.split("|")[5].strip() != "0" for line in rows))
