"""Probes that checks and pages need besides the core's: one of another distribution that fails is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hookcli import registry
from hookcli.engine.probing import MakeProbe, make_probe
from hookcli.errors import PluginError, RefusedError
from hookcli.hooks.events import Callback
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.fallbacks import offers_another
from hookcli.registry.capability import capabilities
from hookcli.registry.pieces import Guard, leave_out
from hookcli.table import Report, Row, Skipped, columns_named
from hookcli.table.meta import Meta

LAYOUT = ("shapes", *(one.name for one in capabilities() if one.view and one.probe))
"""The probes that need no values, in a run of their own: on the meta device if the model can run there."""
_FAILURE = "failure"  # the attribute of a probe that says why it was left out


class LostProbe(Probe):
    """Stands for a probe that can't be made, for this reason."""

    columns = columns_named("fqn")
    values = False

    def __init__(self, name: str, reason: str) -> None:
        vars(self)["name"] = name
        self.failure = reason

    def attach(self, session: HookSession) -> None:
        """It sees nothing."""

    def rows(self) -> list[Row]:
        return []

    def skipped(self) -> list[Skipped]:
        return [Skipped("", self.failure)]


def why_left_out(probe: Probe) -> str:
    """The reason why a probe was left out; "" if it works."""
    return str(vars(probe).get(_FAILURE, ""))


def layout_probes() -> Sequence[MakeProbe]:
    """Make the probes of LAYOUT."""
    return [partial(spared, name) for name in LAYOUT]


def spared(name: str) -> Probe:
    """Make the probe of this name. An error in another distribution's leaves it out, rather than end the run.

    Its report then has no rows, and says why in `skipped`.
    """
    try:
        plugin = registry.find("probes", name)
        probe = make_probe(plugin.load())  # type: ignore[arg-type]
    except PluginError as error:
        return LostProbe(name, f"it failed: {leave_out(f'probe {name!r}', error)}")
    if not plugin.built_in:
        spare(probe, f"probe {name!r} (from {plugin.distribution})")
    return probe


def spare(probe: Probe, named: str) -> None:
    """Guard the methods of a probe, and the callbacks that it attaches: the first error turns them off.

    Hooks that PyTorch refuses do so only if the probe offers no other in its place.
    """
    passing = (RefusedError,) if offers_another(probe) else ()
    attach, batch_ended, report = probe.attach, probe.batch_ended, probe.report

    def guarded(call: Callable[..., Any], *arguments: Any) -> Any:
        """Call it, unless the probe has failed; None if it does so now."""
        if why_left_out(probe):
            return None
        with Guard(named, passing=passing) as guard:
            return call(*arguments)
        vars(probe)[_FAILURE] = f"the probe failed: {guard.why}"
        return None

    def wrapped(callback: Callback) -> Callback:
        return partial(guarded, callback)

    def guarded_attach(session: HookSession) -> None:
        usual, session.wrap_callback = session.wrap_callback, wrapped
        guarded(attach, session)
        session.wrap_callback = usual

    def guarded_report(model: str, meta: Meta) -> Report:
        made: Report | None = guarded(report, model, meta)
        skipped = [Skipped("", why_left_out(probe))]
        return made or Report(probe.name, model, columns_named("fqn"), [], meta, skipped=skipped)

    vars(probe).update(attach=guarded_attach, batch_ended=partial(guarded, batch_ended), report=guarded_report)
