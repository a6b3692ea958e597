"""The largest batch, or the longest prompt, whose cache fits into a room beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hookcli.capabilities.kv_cache.generator import Generation, Generator
from hookcli.capabilities.kv_cache.layout import FITS
from hookcli.commands.room import Room
from hookcli.engine.batch_search import MOST, BatchSearch
from hookcli.table import Report, Row
from hookcli.table.formatting import size


@dataclass(frozen=True, slots=True)
class Needed:
    """The bytes that sequences need, at most, beside the weights: for a cache, and for activations beside it.

    In the pass over the prompt, or at the end, where `activations` is 0. It is None where activations are not known.
    """

    weights: int
    cache: int
    activations: int | None

    @property
    def highest(self) -> int:
        return self.weights + self.cache + (self.activations or 0)

    def in_words(self) -> str:
        """The parts, which add up to the highest."""
        parts = [f"{size(self.weights)} of weights", f"{size(self.cache)} of cache"]
        if self.activations:
            return f"{size(self.highest)}: {parts[0]}, {parts[1]} and {size(self.activations)} of activations"
        return f"{size(self.highest)}: {' and '.join(parts)}"


def fits_report(
    generator: Generator, asked: Generation, room: Room, name: str, *, searches_prompt: bool = False, dtype: str = ""
) -> Report:
    """The largest batch of these sequences that fits, or their longest prompt, with all that were tried to find it.

    A search for the prompt also tries, and answers for, the one that was asked for. `dtype`: that of the weights.
    """
    rows: dict[int, Row] = {}
    tried: dict[int, Needed] = {}

    def needed(number: int) -> int:
        one = replace(asked, prompt=number) if searches_prompt else replace(asked, batch=number)
        moments, activations = generator.moments(one), generator.activations(one)
        weights, of_pass = generator.weight_bytes, moments.prompt_bytes + (activations or 0)
        need = Needed(weights, moments.prompt_bytes, activations)
        if moments.highest > of_pass:
            need = Needed(weights, moments.highest, None if activations is None else 0)
        values: dict[str, int | None] = {"batch": one.batch, "prompt": one.prompt, "generated": one.generated}
        values |= {"cache_bytes": moments.highest, "prefill_bytes": activations, "weight_bytes": weights}
        values |= {"highest": need.highest, "room_bytes": room.usable - need.highest}
        rows[number], tried[number] = Row(values), need
        return need.highest

    largest = BatchSearch(needed, room.usable).largest()
    if searches_prompt and asked.prompt not in rows:
        needed(asked.prompt)
    totals = {"limit_bytes": room.limit, "reserve_bytes": room.reserve}
    totals |= {} if searches_prompt else {"largest_batch": largest}
    words = verdict(asked, room, largest, tried, searches_prompt=searches_prompt, dtype=dtype)
    ordered = [row for _, row in sorted(rows.items())]
    return Report("generation-fits", name, FITS, ordered, totals=totals | {"verdict": words}, grouping="list")


def verdict(
    asked: Generation, room: Room, largest: int, tried: Mapping[int, Needed], *, searches_prompt: bool, dtype: str = ""
) -> str:
    """The answer for the prompt that was asked for, if prompts are searched; and what fits, or why nothing does."""
    first = ""
    if searches_prompt:
        thing = f"A batch of {asked.batch:,} with {asked.prompt:,} + {asked.generated:,} tokens"
        first = room.answer(thing, tried[asked.prompt].highest) + "; "
    if largest == MOST:
        most = f"up to {MOST:,}, the largest that is tried"
        return f"{first}so does every prompt {most}" if first else f"Every batch {most}, fits into {room.typed}"
    if not largest:
        over, thing = tried[min(tried)], "prompt" if searches_prompt else "batch"
        batches = f"No batch of {asked.prompt:,} + {asked.generated:,} tokens fits into {room.typed}"
        nothing = f"{'no prompt does' if first else batches}, with {room.kept}"
        if over.weights <= room.usable:
            return f"{first}{nothing}: a {thing} of {min(tried):,} needs {over.in_words()}"
        half = "; --dtype bfloat16 halves them" if dtype == "float32" else ""
        return f"{first}{nothing}: the weights alone ({size(over.weights)}, {dtype}) are more{half}"
    alone = " before activations" if tried[largest].activations is None else ""
    if first:
        return f"{first}the longest prompt is {largest:,}{alone}, with {room.kept}"
    more = size(tried[largest + 1].highest - room.usable)
    return room.largest(f"batch of {asked.prompt:,} + {asked.generated:,} tokens", largest, alone, f"{more} more")
