"""The faults of heads of attention, in words. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from hookcli.table.formatting import counted, listed, number
from hookcli.table.marks import SIGN
from hookcli.table.names import in_words
from hookcli.table.row import Row

COLLAPSED = 0.01  # mean entropy in nats: one weight is 99.8 %, and no gradient comes through the softmax
DEAD = 2.0**-10  # output, relative to the layer's mean: half precision loses less where it adds the heads up
ALIKE = 0.99
LARGE = 1000.0  # logits; what is beyond is about to diverge
STEADY = 0.5  # of the queries: a head that looks so many places back is one that training makes
ENOUGH = 8  # queries: what fewer have in common says little of a head
SINK, WHOLE_SINK = 0.9, 0.999  # shares of weight on the first token: of a head that rests, and one that only rests
RESTING = f"on the first token (over {SINK:.0%} of the weight)"
ELSEWHERE = f"on one token that is not the first (over {SINK:.0%} of the weight)"
NO_ATTENTION = "no attention was seen: no softmax with a product of its weights, no scaled_dot_product_attention"


def is_dead(row: Row, limit: float = DEAD) -> bool:
    """True for a head whose output is nothing beside the others' outputs."""
    return bool(row["output_share"] <= limit)


def is_collapsed(row: Row, limit: float = COLLAPSED) -> bool:
    """True for a head that looks at one key alone, unless that is the first token, or as far from most queries.

    A head rests on the first token. One that looks at the token before, or at each token itself, was trained to.
    """
    steady = (row.get("offset_share") or 0.0) > STEADY
    return has_enough(row) and row["entropy"] < limit and not steady and not rests(row)


def rests(row: Row) -> bool:
    """True for a head that puts nearly all weight on the first token."""
    return bool(row["first_share"] > SINK) and has_enough(row)


def rests_elsewhere(row: Row) -> bool:
    """True for a head that puts nearly all weight on one token other than the first, and has not collapsed to it."""
    return bool(row["top_key_share"] > SINK and row["top_key"]) and has_enough(row) and not is_collapsed(row)


def is_alike(row: Row) -> bool:
    """True for a head that has the weights of another."""
    return (row.get("similarity") or 0.0) > ALIKE and has_enough(row) and not rests(row)


def has_enough(row: Row) -> bool:
    """True for figures of enough queries to say what a head does."""
    return bool(row["queries"] >= ENOUGH)


def layers_of(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The heads of each call of attention, which stand together, with the module's name."""
    return [(fqn, [*heads]) for (fqn, _), heads in groupby(rows, key=lambda row: (row.fqn, row.get("call")))]


def numbered(some: Sequence[Row], heads: Sequence[Row]) -> str:
    """Some of a layer's heads as the subject of a sentence: 2 of 12 heads (3, 5) have."""
    names = listed([row["head"] for row in some], 8)
    return f"{len(some)} of {counted(len(heads), 'head')} ({names}) {'have' if some[1:] else 'has'}"


_FAULTS: Mapping[Callable[[Row], bool], tuple[str, str]] = {
    is_dead: ("dead (no output)", "dead"),
    is_collapsed: ("collapsed (one key has all weight)", "collapsed"),
    lambda row: row["max_logit"] > LARGE: (f"over {LARGE:,.0f} in the largest logit", "logit {max_logit:,.0f}"),
    is_alike: ("like another head", "like head {nearest}"),
}


_OF_A_KEY = (_FAULTS[is_collapsed][0], ELSEWHERE)
"""Texts on heads that look at one key: the key stands behind each head."""


def noted(rows: Sequence[Row]) -> list[Row]:
    """The rows, with a note on the faults of each head."""
    words = [[note.format_map(row.values) for test, (_, note) in _FAULTS.items() if test(row)] for row in rows]
    notes = [{"note": f"{SIGN} {', '.join(each)}"} if each else {} for each in words]
    return [row.having(note) for row, note in zip(rows, notes, strict=True)]


def verdict(rows: Sequence[Row], broken: Sequence[Row] = ()) -> str:
    """The faults, each with its heads; the heads that rest; and the largest logit if there is no fault."""
    everything = [*rows, *broken]
    parts = [heads_text(broken, everything, "not finite (NaN or Inf)")] * bool(broken)
    parts += [
        heads_text(matching, everything, what)
        for test, (what, _) in _FAULTS.items()
        if (matching := [*filter(test, rows)])
    ]
    most = max((row["queries"] for row in rows), default=0)
    looked = "dead, collapsed or like another" if most >= ENOUGH else "dead"
    healthy = f"none of {counted(len(rows), 'head')} is {looked}" * (not parts)
    for test, where in ((rests, RESTING), (rests_elsewhere, ELSEWHERE)):
        if resting := [*filter(test, rows)]:
            parts.append(heads_text(resting, everything, where, ("rests", "rest")))
    if healthy:
        peak = max(rows, key=lambda row: float(row["max_logit"]))
        parts.append(f"{healthy}; largest logit {number(peak['max_logit'])} ({in_words(peak.fqn)})")
    if rows and most < ENOUGH:
        parts.append(f"{counted(most, 'query', 'queries')} are too few to compare heads: {ENOUGH} are enough")
    return "; ".join(parts)


def heads_text(matching: Sequence[Row], rows: Sequence[Row], what: str, verbs: tuple[str, str] = ("is", "are")) -> str:
    """The number of such heads, and where they are: 3 of 144 heads are dead: h.0.attn heads 1, 2; h.3.attn head 4."""
    layers: dict[str, list[str]] = {}
    for row in matching:
        of_one = what in _OF_A_KEY and row["top_key"] is not None and row["top_key_share"] > SINK
        layers.setdefault(in_words(row.fqn), []).append(
            f"{row['head']} (key {row['top_key']})" if of_one else str(row["head"])
        )
    places = [f"{fqn} head{'s' * (len(heads) > 1)} {listed(heads, 4)}" for fqn, heads in layers.items()]
    more = f"; and in {counted(len(places) - 2, 'more layer')}" if places[2:] else ""
    count = f"{len(matching):,} of {counted(len(rows), 'head')} {verbs[bool(matching[1:])]}"
    return f"{count} {what}: {'; '.join(places[:2])}{more}"
