"""hookcli diff, with its reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]


def diffed(cli: Cli, *argv: str) -> tuple[int, list[dict[str, Any]], str]:
    ran = cli("diff", *argv, "-f", "json")
    return ran.code, json.loads(ran.out)["reports"] if ran.out else [], ran.err
