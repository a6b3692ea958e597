"""Finds patterns that would let a blocked export succeed, by trying them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from hookcli.hooks.origin import INSTALLED
from hookcli.hooks.packaging import BlockedError, PackagedModule, Rule, idle_rules, rehearse

_ROUNDS = 20  # each reveals at most one level of imports


def suggestion(rules: Iterable[Rule], modules: Sequence[PackagedModule]) -> list[Rule]:
    """The rules, amended so that all modules pass: the user's own code as intern, installed packages as extern.

    New rules for undecided modules come last, those for modules that a rule decided wrongly come first. Rules without
    effect are left out.
    """
    roots = [m.name for m in modules if m.needed_by.startswith("<")]
    tried = list(rules)
    needed = modules
    for _ in range(_ROUNDS):
        if not (wrong := [module for module in needed if module.problem]):
            without_effect = [rule for rule, _ in idle_rules(tried, needed)]
            return [rule for rule in tried if rule not in without_effect]
        before = [_way_out(module) for module in wrong if module.action]
        behind = [_way_out(module) for module in wrong if not module.action]
        tried = list(dict.fromkeys([*before, *tried, *behind]))
        try:
            needed = rehearse(roots, tried)
        except BlockedError as error:
            needed = error.modules
    return [Rule("extern", "**")]


def _way_out(module: PackagedModule) -> Rule:
    failed = module.action == "intern"  # it has no source to intern
    kind = "intern" if not failed and _is_own(module.name) else "extern"
    top = sys.modules.get(module.top)
    is_package = top is None or hasattr(top, "__path__")
    return Rule(kind, f"{module.top}.**" if is_package else module.top)


def _is_own(name: str) -> bool:
    """True if a module's source is the user's own, outside of installed packages."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return False
    try:
        file = Path(getattr(import_module(name), "__file__", None) or "")
    except Exception:  # a module that can't be imported is not known to be the user's own
        return False
    return file.suffix == ".py" and not any(part in INSTALLED for part in file.parts)
