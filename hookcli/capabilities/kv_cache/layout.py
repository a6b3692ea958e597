"""The columns of the reports on a cache, apart from what measures them: help lists them without importing torch."""

from dataclasses import replace

from hookcli.table.column import Shown
from hookcli.table.columns import columns_named

CACHE = (
    *columns_named("fqn"),
    replace(columns_named("kind")[0], shown=Shown.ALWAYS),
    *columns_named("layers", "window", "kv_heads", "key_dim", "value_dim", "cached_tokens", "dtype"),
    *columns_named("cache_bytes", "prompt_bytes", "token_bytes"),
)
"""A row for each layer, two where it also keeps the keys and values of an encoder."""
FITS = columns_named(
    "batch", "prompt", "generated", "cache_bytes", "prefill_bytes", "weight_bytes", "highest", "room_bytes"
)
"""Batches, or prompts, with the memory that each needs, and how much of a limit is left."""
