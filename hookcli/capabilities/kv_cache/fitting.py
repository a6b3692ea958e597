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
        cache, weights = generator.moments(one).highest, generator.weight_bytes
        values = {"batch": one.batch, "prompt": one.prompt, "generated": one.generated, "cache_bytes": cache}
        highest = cache + weights
        values |= {"weight_bytes": weights, "highest": highest, "room_bytes": room.usable - highest}
        rows[number] = Row(values)
        return highest

    largest = BatchSearch(needed, room.usable).largest()
    over = rows.get(largest + 1) or rows[min(rows)]
    tokens = f"of {asked.prompt:,} + {asked.generated:,} tokens"
    thing, found, following = "batch", f"Largest batch {tokens} in {room.typed}", f"a batch of {over['batch']:,}"
    if searches_prompt:
        thing, following = "prompt", f"a prompt of {over['prompt']:,}"
        found = f"Longest prompt at batch {asked.batch:,}, {asked.generated:,} tokens generated, in {room.typed}"
    kept, more = f"with {room.kept}", size(-over["room_bytes"])
    if largest == MOST:
        verdict = f"Every {thing} up to {MOST:,}, the largest that is tried, fits into {room.typed}"
    elif largest:
        verdict = f"{found}: {largest:,} before activations, {kept}; {following} needs {more} more"
    else:
        needs = f"{size(over['weight_bytes'])} of weights and {size(over['cache_bytes'])} of cache"
        verdict = f"Nothing fits into {room.typed}, {kept}; {following} needs {needs}"
    totals = {"limit_bytes": room.limit, "reserve_bytes": room.reserve, "verdict": verdict}
    totals |= {} if searches_prompt else {"largest_batch": largest}
    ordered = [row for _, row in sorted(rows.items())]
    return Report("generation-fits", name, FITS, ordered, totals=totals, grouping="list")
