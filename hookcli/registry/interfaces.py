"""The interfaces of plugins, checked as one is loaded: the error names the plugin and what is wrong with it."""

from __future__ import annotations

from types import MemberDescriptorType

from hookcli.errors import class_name

# The methods that a plugin's class must have (or one of two), and the types of the attributes that it may have.
_METHODS = {
    "sources": ("recipe",),
    "probes": ("attach", "rows"),
    "reporters": ("render or export",),
    "checks": ("judge",),
}
_ATTRIBUTES: dict[str, dict[str, str | type]] = {
    "sources": {"has_tasks": bool},
    "probes": {
        "name": str,
        "columns": "Column",
        **dict.fromkeys(("needs_backward", "needs_input_grad", "watches_parameters"), bool),
        **dict.fromkeys(("merges_batches", "values", "fastpath", "in_steps"), bool),
        "grouping": str,
    },
    "reporters": {
        **dict.fromkeys(("suffixes", "needs", "commands"), "str"),
        "needs_one": "tuple",
        **dict.fromkeys(("command", "target", "then"), str),
        **dict.fromkeys(("for_people", "with_figures", "live"), bool),
    },
    "checks": {
        **dict.fromkeys(("id", "name", "severity", "means", "advice"), str),
        **dict.fromkeys(("needs", "takes", "or_else", "reads", "follows"), "str"),
        **dict.fromkeys(("whole", "values"), bool),
    },
}


def misfit(kind: str, loaded: object) -> str | None:
    """Return the reason why an object can't be a plugin of this kind; None if it can."""
    if kind == "edits":
        return None if callable(loaded) else f"an edit is a function, not {class_name(loaded)}"
    if not isinstance(loaded, type):
        return f"its entry point names {class_name(loaded)}, not a class"
    for name in _METHODS[kind]:
        if not any(callable(getattr(loaded, one, None)) for one in name.split(" or ")):
            return f"the class {loaded.__qualname__} has no method {name}"
    return misfitting_attribute(kind, loaded)


def misfitting_attribute(kind: str, made: object) -> str | None:
    """Describe the first attribute of a plugin, or of an object that it made, that has the wrong type."""
    for name, wanted in _ATTRIBUTES[kind].items():
        if not hasattr(made, name):
            continue
        value = getattr(made, name)
        if isinstance(value, (property, MemberDescriptorType)):  # of each instance
            continue
        if isinstance(wanted, type):
            if not isinstance(value, wanted):
                return f"{name} must be {wanted.__name__}, not {class_name(value)}"
        elif not (isinstance(value, (tuple, list)) and all(class_name(item) == wanted for item in value)):
            return f"{name} must be a tuple of {wanted}, not {class_name(value)}"
    return None
