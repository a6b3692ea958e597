"""Fully qualified names of modules and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def is_within(fqn: str, owner: str) -> bool:
    """True for a module or parameter that is a part, at any depth, of the module `owner` ("": the model)."""
    return fqn != owner and (not owner or fqn.startswith(f"{owner}."))


def is_within_any(fqn: str, owners: Iterable[str]) -> bool:
    """True for a part of any of these modules."""
    return any(is_within(fqn, owner) for owner in owners)


def around(fqn: str) -> Iterator[str]:
    """The names of the modules around a module or parameter, from the innermost to the model itself, ""."""
    while fqn:
        fqn = fqn.rpartition(".")[0]
        yield fqn
