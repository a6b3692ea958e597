"""A check reads only what it needs: mypy holds `judge` to its protocol, and this test holds the protocol to `needs`."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from hookcli import registry
from hookcli.checks.base import Check
from hookcli.checks.measurements import Measurements
from hookcli.checks.selection import known_checks
from hookcli.registry.capability import capabilities

FIELDS = get_type_hints(Measurements)
OPTIONAL = {name for name, kind in FIELDS.items() if type(None) in get_args(kind)}


@pytest.mark.parametrize("kind", known_checks(), ids=lambda kind: kind.id)
def test_what_a_check_reads_without_asking_is_what_it_needs(kind: type[Check]) -> None:
    read = get_type_hints(kind.judge)["measured"]
    if read is Measurements:  # mypy makes it ask
        return
    reports = {*registry.names("probes"), *(one.name for one in capabilities() if one.measures)}
    assert set(kind.needs) <= OPTIONAL | (reports if "probes" in get_type_hints(read) else set())
    for name, type_ in get_type_hints(read).items():
        assert FIELDS[name] in (type_, type_ | None), name
        assert name not in OPTIONAL or FIELDS[name] == type_ or name in kind.needs, name
