"""The command `hookcli plugins`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hookcli import registry
from hookcli.commands.option_fields import option
from hookcli.commands.options import ShowingOptions
from hookcli.commands.output import Output
from hookcli.errors import HookcliError, PluginError, UserCode, in_brief
from hookcli.hooks.kinds import HOOKS
from hookcli.registry.capability import Capability, capabilities, load_text
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import HOOK_KINDS, PLUGINS

EXAMPLES = ("hookcli plugins", "hookcli plugins --load", "hookcli plugins --hooks", "hookcli plugins --format json")
COLUMNS = PLUGINS

SHADOWED = "not used: a built-in plugin has the same name"


@dataclass(frozen=True)
class PluginsOptions:
    """Options of `hookcli plugins` alone."""

    load: bool = option(False, "Import each plugin, and show which fail to load.")
    hooks: bool = option(False, "List kinds of hooks, and commands that show them.")


def plugins(*, own: PluginsOptions, options: ShowingOptions) -> int:
    """List all plugins, and all kinds of hooks.

    Lists sources, probes, reporters, checks, edits and capabilities, each with the distribution that provides it, and
    for a capability everything that it adds. Loads none of them without --load.
    """
    output = Output(options)
    output.check_columns(HOOK_KINDS if own.hooks else PLUGINS)
    if own.hooks:
        kinds = [Row(asdict(hook) | {"command": hook.command and f"hookcli {hook.command}"}) for hook in HOOKS]
        output.write([Report("hooks", "PyTorch", HOOK_KINDS, kinds, totals={"kinds of hooks": len(kinds)})])
        return 0
    rows = [
        Row(
            {"kind": plugin.kind.removesuffix("s"), "name": plugin.name, "distribution": plugin.distribution}
            | {"target": plugin.target, "state": _state(plugin, own.load)}
        )
        for kind in registry.KINDS
        for plugin in registry.plugins(kind)
    ]
    rows += [
        Row(
            {"kind": "capability", "name": one.name, "distribution": one.distribution}
            | {"target": ", ".join(adds(one)), "state": why_broken(one) or "loads" if own.load else None}
        )
        for one in capabilities()
    ]
    output.write([Report("plugins", "hookcli", PLUGINS, rows, totals={"plugins": len(rows)})])
    return 2 if any(row["state"] not in (None, "loads", SHADOWED) for row in rows) else 0


def adds(one: Capability) -> list[str]:
    """The fields of a manifest that add something to hookcli, options and names of checks written out."""
    words = [name for name in _PIECES if getattr(one, name)]
    words += [f"--{one.name}"] * bool(one.flag)
    words += [f"--{(option.typed or option.name).replace('_', '-')}" for option in one.options]
    return [*words, *one.checks]


def why_broken(one: Capability) -> str:
    """Import the pieces of a capability that are no plugins by themselves. Returns the first error; "" for none."""
    texts = [getattr(one, name) for name in _PIECES if name not in ("probe", "source", "reporter", "view")]
    texts += [text for option in one.options for text in (option.check, option.read)]
    try:
        with UserCode(lambda error: PluginError(in_brief(error))):
            for text in filter(None, texts):
                load_text(text)
    except PluginError as error:
        return f"{one}: {error}"
    return ""


_PIECES = (
    *("command", "probe", "source", "reporter", "columns", "layout", "measures", "check_options", "recorder", "lines"),
    *("charts", "headline", "fault", "remark_on_ranks", "side", "parting", "view", "drawing"),
)


def _state(plugin: registry.Plugin, load: bool) -> str | None:
    if plugin.shadowed:
        return SHADOWED
    try:
        registry.find(plugin.kind, plugin.name)
        if not load:
            return None
        plugin.load()
    except HookcliError as error:
        return str(error)
    return "loads"
