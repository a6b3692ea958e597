"""What is wrong with heads of attention, in words. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hookcli.table.formatting import counted, listed, number
from hookcli.table.marks import SIGN
from hookcli.table.names import in_words
from hookcli.table.row import Row

COLLAPSED = 0.01
"""Mean entropy in nats. At this one weight is 99.8 %, and no gradient comes through the softmax."""
DEAD = 2.0**-10
"""Output relative to the mean of the layer's heads: what is smaller is lost where half precision adds them up."""
ALIKE = 0.99
SINK, WHOLE_SINK = 0.9, 0.999
"""Shares of the weight on the first token: of a head that rests, and of one that never does anything else."""


def is_dead(row: Row, limit: float = DEAD) -> bool:
    """True for a head whose output is nothing beside that of the others."""
    share = row.get("output_share")
    return share is not None and not share > limit  # NaN: none of the heads returned anything


def is_collapsed(row: Row, limit: float = COLLAPSED) -> bool:
    """True for a head that looks at one key alone, and not at the first token, where a head rests."""
    return bool(row["entropy"] < limit and row["first_share"] < SINK)


def is_copy(row: Row) -> bool:
    """True for a head with the weights of another, unless both rest on the first token."""
    return (row.get("similarity") or 0.0) > ALIKE and row["first_share"] < SINK


def rests(row: Row) -> bool:
    """True for a head that puts nearly all weight on the first token."""
    return bool(row["first_share"] > SINK)


NO_ATTENTION = "no attention was seen: no softmax with a product of its weights, no scaled_dot_product_attention"


def layers_of(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The heads of each call of attention, with the module's name."""
    layers: dict[tuple[str, object], list[Row]] = {}
    for row in rows:
        layers.setdefault((row.fqn, row.get("call")), []).append(row)
    return [(fqn, heads) for (fqn, _), heads in layers.items()]


def numbered(found: Sequence[Row], heads: Sequence[Row]) -> str:
    """Some of a layer's heads as the subject of a sentence: 2 of 12 heads (3, 5) have."""
    names = listed([row["head"] for row in found], 8)
    return f"{len(found)} of {counted(len(heads), 'head')} ({names}) {'have' if found[1:] else 'has'}"


_FAULTS: Mapping[Callable[[Row], bool], tuple[str, str]] = {
    is_dead: ("dead (no output)", "dead"),
    is_collapsed: ("collapsed (one key has all weight)", "collapsed"),
    is_copy: ("like another head", "like head {nearest}"),
}
RESTING = f"on the first token (over {SINK:.0%} of the weight)"
_HEALTHY = "none of {whole} is dead, collapsed or like another; largest logit {largest} ({layer})"


def noted(rows: Sequence[Row]) -> list[Row]:
    """The rows, with a note on what is wrong with a head."""
    found = []
    for row in rows:
        words = [note.format_map(row.values) for test, (_, note) in _FAULTS.items() if test(row)]
        found.append(replace(row, values={**row.values, "note": f"{SIGN} {', '.join(words)}"}) if words else row)
    return found


def verdict(rows: Sequence[Row]) -> str:
    """What is wrong with how many heads, and with which; or that nothing is, and the largest logit."""
    parts = [told(found, rows, what) for test, (what, _) in _FAULTS.items() if (found := [*filter(test, rows)])]
    if not parts:
        peak = max(rows, key=lambda row: float(row["max_logit"]))
        whole, largest = counted(len(rows), "head"), number(peak["max_logit"])
        parts = [_HEALTHY.format(whole=whole, largest=largest, layer=in_words(peak.fqn))]
    resting = [*filter(rests, rows)]
    return "; ".join([*parts, *([told(resting, rows, RESTING, ("rests", "rest"))] if resting else [])])


def told(found: Sequence[Row], rows: Sequence[Row], what: str, verbs: tuple[str, str] = ("is", "are")) -> str:
    """How many heads are so, and which, by layer: 3 of 144 heads are dead: h.0.attn heads 1, 2; h.3.attn head 4."""
    layers: dict[str, list[str]] = {}
    for row in found:
        layers.setdefault(in_words(row.fqn), []).append(str(row["head"]))
    places = [f"{fqn} head{'s' * (len(heads) > 1)} {listed(heads, 4)}" for fqn, heads in layers.items()]
    more = f"; and in {len(places) - 2} layers more" if places[2:] else ""
    count = f"{len(found):,} of {counted(len(rows), 'head')} {verbs[bool(found[1:])]}"
    return f"{count} {what}: {'; '.join(places[:2])}{more}"
