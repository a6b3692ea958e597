"""Documents as an accident may leave them: a value of another kind, a key that is gone, a part in another's place."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2.5, -0.0, 1e308, 2**63, 10**400, "", "abc", "NaN", "Infinity", "\x1b[2J\n"),
    *([], {}, [[]], ["x"], [1, "x"], [None], [[2], 3], [1e308] * 3, {"": None}, {"a": {}}, "fqn", "error", -(10**30)),
)


def mutated(document: Any, rng: random.Random) -> Any:
    """The document with one to three of its parts changed, at any depth."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _mutate(document, rng)
    return document


def _mutate(document: Any, rng: random.Random) -> None:
    holder, key = _place(document, rng)
    if key is None:
        return
    what = rng.randrange(6)
    if what == 0:
        del holder[key]
    elif what == 1:  # a part of elsewhere
        other, from_key = _place(document, rng)
        holder[key] = copy.deepcopy(other[from_key]) if from_key is not None else None
    elif what == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(rng.choice(holder)))
    elif what == 3 and isinstance(holder, dict):
        holder[rng.choice(("", "fqn", "numel", "path", "zzz", "l2", "step"))] = rng.choice(JUNK)
    else:
        holder[key] = copy.deepcopy(rng.choice(JUNK))


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container within, and a key of it, shallow ones as likely as deep ones; None where there is none."""
    found: tuple[Any, Any] = (value, None)
    for _ in range(rng.randint(1, 7)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not keys:
            break
        found = (value, rng.choice(keys))
        value = value[found[1]]
    return found


def mutated_lines(text: str, rng: random.Random) -> bytes:
    """A file of JSON lines with a line mutated, or lines gone, doubled, in another order, or bytes cut or changed."""
    lines = text.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    what = rng.randrange(10)
    if what == 0:
        del lines[number]
    elif what == 1:
        lines.insert(rng.randrange(len(lines)), lines[number])
    elif what == 2:
        rng.shuffle(lines)
    elif what > 3:
        lines[number] = json.dumps(mutated(json.loads(lines[number]), rng)) + "\n"
    return _cut("".join(lines).encode(), rng) if what == 3 else "".join(lines).encode()


def mutated_document(text: str, rng: random.Random) -> bytes:
    """A JSON document, mutated, now and then no longer JSON."""
    if rng.randrange(12) == 0:
        return _cut(text.encode(), rng)
    return json.dumps(mutated(json.loads(text), rng), indent=1).encode()


def _cut(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text))
    return rng.choice((text[:at], text[at:], text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]))
