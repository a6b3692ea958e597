"""Columns of a cache of keys and values, and of a limit that generation is kept within."""

from typing import Any

from hookcli.table.column import Column, Kind, Merge, Shown

_COUNT: dict[str, Any] = {"kind": Kind.COUNT, "charted": False, "alike": True}
_BYTES: dict[str, Any] = {"unit": "bytes", "kind": Kind.BYTES}
_SUM: dict[str, Any] = {**_BYTES, "merge": Merge.SUM, "alike": True}

DECLARED = (
    Column("layers", "Layers", shown=Shown.SET, usual=1, merge=Merge.SUM, drop=9, **_COUNT),
    Column("window", "Window", shown=Shown.SET, merge=Merge.MOST, drop=12, **_COUNT),
    Column("kv_heads", "KV heads", merge=Merge.MOST, drop=13, **_COUNT),
    Column("key_dim", "Key dim", merge=Merge.MOST, pair="head dims", drop=11, **_COUNT),
    Column("value_dim", "Value dim", merge=Merge.MOST, pair="head dims", drop=11, **_COUNT),
    Column("cached_tokens", "Tokens", merge=Merge.MOST, **_COUNT),
    Column("cache_bytes", "Bytes", full="Bytes of the cache", **_SUM),
    Column("prompt_bytes", "After prompt", shown=Shown.ASKED, full="Bytes of the cache after the prompt", **_SUM),
    Column("token_bytes", "Per token", drop=14, full="Bytes of one more token of one sequence", **_SUM),
    Column("prompt", "Prompt", kind=Kind.COUNT, charted=False),
    Column("generated", "Generated", kind=Kind.COUNT, charted=False),
    Column("prefill_bytes", "Activations", drop=29, **_BYTES),
    Column("weight_bytes", "Weights", drop=30, **_BYTES),
    Column("room_bytes", "Left", "bytes", Kind.BYTES_CHANGE),
)
"""`cached_tokens` of each sequence, as far as a layer holds their keys and values."""
