"""The argument of the model's function that has several values: its width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hookcli.commands.model import parse_args
from hookcli.errors import UsageError

_FEWEST = 3
_BRACKETS = ("(", "[", "{", "'", '"')
"""What begins one value that has commas in it."""


def widths_of(texts: Sequence[str]) -> tuple[str, Mapping[float, list[str]]]:
    """The name of the width, and for each of its values, from the smallest, the texts of --arg with that value alone.

    Raises UsageError unless exactly one argument has several values, at least three of them, all positive numbers.
    """
    several = [text for text in texts if "," in text and not text.partition("=")[2].strip().startswith(_BRACKETS)]
    if not several:
        raise UsageError("give the width several values, as in --arg width=64,128,256,512", option="arg")
    given, *others = several
    if others:
        both = " and ".join(f"--arg {text}" for text in several[:2])
        raise UsageError(f"{both}: several values are for the width alone; give the others one value", option="arg")
    name, _, values = given.partition("=")
    numbers: dict[Any, list[str]] = {}
    for value in values.split(","):
        one = f"{name}={value.strip()}"
        number = parse_args([one])[name]
        if type(number) not in (int, float) or not 0 < float(number) < math.inf:  # type: ignore[arg-type]
            raise UsageError(f"--arg {given}: a width is a number above 0, not {value.strip()!r}", option="arg")
        numbers[number] = [one if text == given else text for text in texts]
    if len(numbers) < _FEWEST:
        raise UsageError(f"--arg {given}: a slope needs three widths or more, as in {name}=64,128,256", option="arg")
    return name, dict(sorted(numbers.items()))
