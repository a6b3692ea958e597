"""The report on a cache, layer by layer."""

from __future__ import annotations

from hookcli.capabilities.kv_cache.generator import Generation, Generator, Moments
from hookcli.capabilities.kv_cache.layout import CACHE
from hookcli.table import Report, Row
from hookcli.table.formatting import percent, size

_TIMES = 2  # times the weights: a percentage above it reads badly
_LEAST = 0.001


def layers_report(generator: Generator, asked: Generation, name: str) -> Report:
    """The cache of these sequences layer by layer."""
    moments = generator.moments(asked)
    rows = []
    layers = zip(moments.end, moments.prompt, moments.token, strict=True)
    for layer, early, token in sorted(layers, key=lambda each: each[0].number):
        values = {"fqn": generator.place(layer.number), "kind": layer.kind, "layers": 1, "window": layer.window}
        values |= {"kv_heads": layer.kv_heads, "key_dim": layer.key_dim, "value_dim": layer.value_dim}
        values |= {"cached_tokens": layer.tokens, "dtype": layer.dtype, "cache_bytes": layer.nbytes}
        rows.append(Row(values | {"prompt_bytes": early.nbytes, "token_bytes": token}))
    totals = {"verdict": verdict(generator, asked, moments), "phases": after_prompt(moments)}
    return Report("kv-cache", name, CACHE, rows, totals={key: text for key, text in totals.items() if text})


def in_words(asked: Generation) -> str:
    """The tokens of a sequence: 1,024 + 256 tokens."""
    return f"{asked.prompt:,} + {asked.generated:,} tokens"


def verdict(generator: Generator, asked: Generation, moments: Moments) -> str:
    """The cache, at both moments where it shrinks, beside the weights; and what one more token takes."""
    ratio = moments.nbytes / generator.weight_bytes if generator.weight_bytes else 0
    beside = f"{percent(ratio)} of the weights" if ratio < _TIMES else f"{ratio:.3g} times the weights"
    beside = beside if ratio >= _LEAST else f"less than {percent(_LEAST)} of the weights"
    token = sum(moments.token)
    more = f"{size(token)} for each further token of a sequence" if token else "further tokens take no more"
    early = f" ({size(moments.prompt_bytes)} after the prompt)" if moments.prompt_bytes > moments.nbytes else ""
    whole = f"{size(moments.nbytes)}{early}, {beside} ({size(generator.weight_bytes)})"
    return f"Cache of {in_words(asked)}, batch {asked.batch:,}: {whole}; {more}"


def after_prompt(moments: Moments) -> str:
    """The bytes after the prompt where they are more than at the end; "" where they are not."""
    if moments.prompt_bytes <= moments.nbytes:
        return ""
    why = "layers with a window hold the whole prompt until a token follows"
    return f"after the prompt: {size(moments.prompt_bytes)} ({why}); at the end: {size(moments.nbytes)}"
