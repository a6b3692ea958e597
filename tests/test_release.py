"""The files around a release, and a machine that lacks what Linux and torchvision bring."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import forks
import pytest
import yaml

ROOT = Path(__file__).parent.parent
NET = "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))\n"
SCHEMAS = {
    "vendor.citation-file-format": ["CITATION.cff"],
    "vendor.github-workflows": [".github/workflows/release.yml", ".github/workflows/tests.yml"],
    "vendor.github-issue-forms": [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/question.yml"],
}


def read(name: str) -> dict[str, object]:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_and_the_package_name_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = read("CITATION.cff")
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])


def test_only_a_tag_publishes_after_all_wheels_ran_and_without_a_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    jobs = read(".github/workflows/release.yml")["jobs"]
    publish = jobs["publish"]
    assert (
        set(publish["needs"]) == jobs.keys() - {"publish"} and publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    )
    assert publish["permissions"] == {"id-token": "write", "attestations": "write"}
    assert publish["environment"] == "pypi"
    assert "secrets." not in text and [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert ".ci/commands.py" in tools["cibuildwheel"]["test-command"]


def test_actions_are_named_by_the_hash_of_a_commit() -> None:
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        used = re.findall(r"uses: (.*)", file.read_text())
        assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+(;.*)?", one) for one in used), used


def test_each_published_file_is_attested_with_what_it_was_tested_with() -> None:
    steps = read(".github/workflows/release.yml")["jobs"]["publish"]["steps"]
    attested = [step["with"] for step in steps if step["uses"].startswith("actions/attest@")]
    assert attested == [{"subject-path": "dist/*"}, {"subject-path": "dist/*", "sbom-path": "hookcli.cdx.json"}]
    assert steps[-1]["uses"].startswith("pypa/gh-action-pypi-publish@") and steps[-1]["with"] == {"attestations": True}


def test_the_recipe_for_conda_has_the_package_s_version_and_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = read("packaging/conda/recipe.yaml")
    assert recipe["context"]["version"] == project["version"] and recipe["about"]["license"] == project["license"]
    needs = [f"python{project['requires-python']}", *project["dependencies"]]
    names = {"torch": "pytorch"}
    ours = {names.get(name, name): floor for name, floor in (need.split(">=") for need in needs)}
    assert dict(need.split(" >=") for need in recipe["requirements"]["run"]) == ours


def run(code: str, folder: Path) -> list[object]:
    """The exit codes of commands after some code, in a process of its own; where there is none, in a new Python."""
    (folder / "net.py").write_text(NET)
    made = "'net.py:net', '--input', '16x8'"
    commands = (
        f"[['--help'], ['plugins'], ['shapes', {made}], ['activations', {made}], ['check', {made}], ['show', 'a.json']]"
    )
    script = (
        f"import json, sys\n{code}\nfrom hookcli.cli import main\n"
        f"main(['activations', {made}, '--output', 'a.json', '-q'])\n"
        f"print(json.dumps([main(words) for words in {commands}]), 'torchvision' in sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script]
    ran = forks.run(command, fresh=not code, cwd=folder, capture_output=True, text=True, check=True)
    codes, _, imported = ran.stderr.splitlines()[-1].rpartition(" ")
    return [json.loads(codes), imported]


@pytest.mark.sweep
def test_torchvision_is_imported_only_for_its_models(tmp_path: Path) -> None:
    assert run("", tmp_path) == [[0] * 6, "False"]
    assert run("sys.modules['torchvision'] = None", tmp_path) == [[0] * 6, "True"]  # the entry that forbids the import


def test_what_windows_lacks_is_not_needed(tmp_path: Path) -> None:
    lacking = """
import os, signal
import torch
for name in ("fcntl", "resource", "pty", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("O_NONBLOCK", "register_at_fork", "fork", "sysconf", "getuid", "setsid", "killpg", "sched_getaffinity"):
    delattr(os, name)
for name in ("SIGKILL", "SIGPIPE", "SIGHUP", "SIGXFSZ", "pthread_kill", "pthread_sigmask"):
    delattr(signal, name)
"""
    assert run(lacking, tmp_path)[0] == [0] * 6


@pytest.mark.parametrize("schema", SCHEMAS)
def test_their_files_follow_the_published_schemas(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *SCHEMAS[schema]]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
