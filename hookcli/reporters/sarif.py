"""SARIF 2.1.0, which code scanning reads: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, ClassVar

from hookcli.fold import View
from hookcli.report import Finding, Report, strict
from hookcli.reporters.rules import NEEDS, rule, sentence

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


class SarifReporter:
    """One run with a result per finding, and a rule for each check that judged.

    A result names the module as a logical location, and the file and line of the module's class where that lies in the
    working directory.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".sarif",)
    needs: ClassVar[tuple[str, ...]] = NEEDS

    def render(self, reports: Sequence[Report], view: View) -> str:
        ids = sorted({name for r in reports for name in (*r.meta.get("checks", ()), *(f.check for f in r.findings))})
        run = {
            "tool": {
                "driver": {"name": "hookcli", "version": version("hookcli"), "rules": [_rule(name) for name in ids]}
            },
            "automationDetails": {"id": "hookcli/check/"},
            "invocations": [_invocation(report) for report in reports],
            "results": [_result(report, finding, ids) for report in reports for finding in report.findings],
        }
        document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
        return json.dumps(strict(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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
        "defaultConfiguration": {"level": check.severity},
    }


def _invocation(report: Report) -> dict[str, Any]:
    done = report.meta.get("complete") is not False
    words = {} if done else {"exitCodeDescription": f"{report.model}: {report.meta.get('error', 'stopped')}"}
    return {"executionSuccessful": done, **words}


def _result(report: Report, finding: Finding, ids: Sequence[str]) -> dict[str, Any]:
    identity = "\n".join((report.model, finding.check, finding.fqn))
    properties = {"model": report.model, "value": finding.value, "threshold": finding.threshold, "hint": finding.hint}
    return {
        "ruleId": finding.check,
        "ruleIndex": ids.index(finding.check),
        "level": finding.severity,
        "message": {"text": sentence(report, finding)},
        "locations": [_location(report, finding)],
        "partialFingerprints": {"hookcli/v1": hashlib.sha256(identity.encode()).hexdigest()},
        "properties": {key: value for key, value in properties.items() if value is not None},
    }


def _location(report: Report, finding: Finding) -> dict[str, Any]:
    name = finding.fqn.rpartition(".")[2] or report.model
    place = ".".join(filter(None, (report.model, finding.fqn)))
    logical = {"logicalLocations": [{"name": name, "fullyQualifiedName": place, "kind": "module"}]}
    if finding.file is None:
        return logical
    at = {"artifactLocation": {"uri": finding.file}, "region": {"startLine": finding.line or 1}}
    return {"physicalLocation": at, **logical}
