"""SARIF 2.1.0, which code scanning reads: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from hookcli.reporters.base import Reporter
from hookcli.reporters.findings import COMMAND, NEEDS, rule, sentence
from hookcli.system.escaping import visible_json
from hookcli.table import INFO, Finding, Report, strict
from hookcli.table.grouping import View

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


class SarifReporter(Reporter):
    """One run with a result per finding, and a rule for each check that judged.

    A result names the module as a logical location, and the file and line of the module's class if that is in the
    working directory. GitHub refuses results without a file: other results name line 1 of the model's file, or of
    pyproject.toml.
    """

    suffixes = (".sarif",)
    needs = NEEDS
    command = COMMAND

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write one run with the findings of all reports."""
        ids = sorted({name for r in reports for name in (*r.meta.get("checks", ()), *(f.check for f in r.findings))})
        driver = {
            "name": "hookcli",
            "version": version("hookcli"),
            "rules": [_rule(name) for name in ids],  # another word
        }
        run = {
            "tool": {"driver": driver},
            "automationDetails": {"id": "hookcli/check/"},
            "invocations": [_invocation(report) for report in reports],
            "results": list(_results(reports, ids)),
        }
        document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
        return visible_json(json.dumps(strict(document), indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _rule(name: str) -> dict[str, Any]:
    check = rule(name)
    if check is None:
        return {"id": name}
    text = check.explanation()
    return {
        "id": name,
        "name": "".join(part.capitalize() for part in check.name.split("-")),
        "shortDescription": {"text": text.partition("\n")[0]},
        "fullDescription": {"text": text},
        "help": {"text": f"It usually means: {check.means}. Try: {check.advice}."},
        "defaultConfiguration": {"level": _level(check.severity)},
    }


def _invocation(report: Report) -> dict[str, Any]:
    if report.meta.get("complete") is not False:
        return {"executionSuccessful": True}
    why = f"{report.model}: {report.meta.get('error', 'stopped')}"
    return {"executionSuccessful": False, "exitCodeDescription": why}


def _results(reports: Sequence[Report], ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Make the results, each with a unique fingerprint that stays when messages and figures change."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for report in reports:
        for finding in report.findings:
            identity = (report.model, finding.check, finding.fqn)
            text = "\n".join((*identity, str(seen[identity])))
            seen[identity] += 1
            fingerprint = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
            yield _result(report, finding, ids) | {"partialFingerprints": {"hookcli/v1": fingerprint}}


def _result(report: Report, finding: Finding, ids: Sequence[str]) -> dict[str, Any]:
    name = finding.fqn.rpartition(".")[2] or report.model
    place = ".".join(filter(None, (report.model, finding.fqn)))
    at = {"uri": quote(PurePath(finding.file or _file(report.model)).as_posix(), errors="backslashreplace")}
    properties = {"model": report.model, "value": finding.value, "threshold": finding.threshold, "hint": finding.hint}
    return {
        "ruleId": finding.check,
        "ruleIndex": ids.index(finding.check),
        "level": _level(finding.severity),
        "message": {"text": sentence(report, finding)},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": at, "region": {"startLine": finding.line or 1}},
                "logicalLocations": [{"name": name, "fullyQualifiedName": place, "kind": "module"}],
            }
        ],
        "properties": {key: value for key, value in properties.items() if value is not None},
    }


def _level(severity: str) -> str:
    """Return the severity in SARIF's words."""
    return "note" if severity == INFO else severity


def _file(spec: str) -> str:
    """Return the model's file if it is in the working directory, else pyproject.toml."""
    paths = [PurePath(part) for part in spec.split(":") if part.endswith(".py")]
    here = [path for path in paths if not path.is_absolute() and ".." not in path.parts]
    return str(here[0]) if here else "pyproject.toml"
