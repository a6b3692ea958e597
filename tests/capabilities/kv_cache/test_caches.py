"""Figures of `hookcli kv-cache` beside the bytes that `generate` of Transformers leaves in its cache on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from capabilities.kv_cache.small import SMALL, arguments, built, generated, kept
from support import swept

Cli = Callable[..., Any]
PLAIN = ("gemma3_text", "deepseek_v3", "t5", "jamba")


def report_on(cli: Cli, kind: str, *argv: str) -> dict[str, Any]:
    ran = cli("kv-cache", f"hf:{kind}", *arguments(kind), *argv, "--format", "json", "-q")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["reports"][0])


@pytest.mark.parametrize("kind", [kind if kind in PLAIN else swept(kind) for kind in SMALL])
def test_bytes_are_those_that_generate_leaves_in_its_cache(cli: Cli, kind: str) -> None:
    model: Any = None
    for batch, prompt, tokens in ((2, 11, 1), (2, 11, 6), (3, 4, 9)):
        asked = ("-b", str(batch), "--prompt", str(prompt), "--generate", str(tokens))
        report = report_on(cli, kind, *asked)
        model = built(kind, report["meta"]["architecture"]) if model is None else model
        cache = generated(model, batch, prompt, tokens)
        assert "not_on_meta" not in report["meta"] and not report["skipped"]
        assert sum(row["cache_bytes"] for row in report["rows"]) == kept(cache)
        after_prompt = kept(generated(model, batch, prompt, 1))
        assert sum(row["prompt_bytes"] for row in report["rows"]) == after_prompt
