"""The largest batch, or the longest prompt, whose cache fits into a room beside the weights."""

from __future__ import annotations

from dataclasses import replace

from hookcli.capabilities.kv_cache.generator import Generation, Generator
from hookcli.capabilities.kv_cache.layout import FITS
from hookcli.commands.room import Room
from hookcli.engine.batch_search import MOST, BatchSearch
from hookcli.table import Report, Row
from hookcli.table.formatting import size


def fits_report(
    generator: Generator, asked: Generation, room: Room, name: str, *, searches_prompt: bool = False
) -> Report:
    """The largest batch of these sequences that fits, or their longest prompt, with all that were tried to find it."""
    rows: dict[int, Row] = {}

    def needed(number: int) -> int:
        one = replace(asked, prompt=number) if searches_prompt else replace(asked, batch=number)
        moments, activations = generator.moments(one), generator.activations(one)
        cache, weights = moments.highest, generator.weight_bytes
        values: dict[str, int | None] = {"batch": one.batch, "prompt": one.prompt, "generated": one.generated}
        highest = weights + max(cache, moments.prompt_bytes + (activations or 0))
        values |= {
            "cache_bytes": cache,
            "prefill_bytes": activations,
            "weight_bytes": weights,
            "highest": highest,
            "room_bytes": room.usable - highest,
        }
        rows[number] = Row(values)
        return highest

    largest = BatchSearch(needed, room.usable).largest()
    totals = {"limit_bytes": room.limit, "reserve_bytes": room.reserve}
    totals |= {} if searches_prompt else {"largest_batch": largest}
    over = rows.get(largest + 1) or rows[min(rows)]
    words = verdict(asked, room, largest, over, searches_prompt=searches_prompt)
    ordered = [row for _, row in sorted(rows.items())]
    return Report("generation-fits", name, FITS, ordered, totals=totals | {"verdict": words}, grouping="list")


def verdict(asked: Generation, room: Room, largest: int, over: Row, *, searches_prompt: bool) -> str:
    """The largest batch or prompt, and what the next one, `over` the room, needs."""
    tokens = f"of {asked.prompt:,} + {asked.generated:,} tokens"
    thing, found, following = "batch", f"Largest batch {tokens} in {room.typed}", f"a batch of {over['batch']:,}"
    if searches_prompt:
        thing, following = "prompt", f"a prompt of {over['prompt']:,}"
        found = f"Longest prompt at batch {asked.batch:,}, {asked.generated:,} tokens generated, in {room.typed}"
    if largest == MOST:
        return f"Every {thing} up to {MOST:,}, the largest that is tried, fits into {room.typed}"
    if largest:
        alone = " before activations" if over["prefill_bytes"] is None else ""
        return f"{found}: {largest:,}{alone}, with {room.kept}; {following} needs {size(-over['room_bytes'])} more"
    needs = f"{size(over['weight_bytes'])} of weights and {size(over['cache_bytes'])} of cache"
    beside = f", and {size(over['prefill_bytes'])} of activations" if over["prefill_bytes"] else ""
    return f"Nothing fits into {room.typed}, with {room.kept}; {following} needs {needs}{beside}"
