"""Compares the settings of the modules of two models."""

from __future__ import annotations

from torch import nn

from hookcli.diff.align import Alignment
from hookcli.diff.settings import changed_settings
from hookcli.hooks.select import Select
from hookcli.probes.settings import settings_of


def settings_diff(a: nn.Module, b: nn.Module, alignment: Alignment, select: Select | None = None) -> dict[str, str]:
    """The settings that differ, in words, by A's names; modules of another type have other settings.

    A module without any, as in an exported program, does not tell them. `select` narrows by A's modules.
    """
    found: dict[str, str] = {}
    for ours, theirs in alignment.pairs:
        module = a.get_submodule(ours.fqn)
        if ours.type == theirs.type and (select is None or select(ours.fqn, module)):
            old, new = settings_of(module), settings_of(b.get_submodule(theirs.fqn))
            said = changed_settings(old, new) if old and new else ""
            found |= {ours.fqn: said} if said else {}
    return found
