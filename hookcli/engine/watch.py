"""Attaches probes to a model while the caller's own code runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from hookcli.engine.probing import Edits, Probing, make_probes, parse_edits
from hookcli.engine.run_info import UNSET, describe_run
from hookcli.hooks.select import Select
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.report import Report


class Watch:
    """The probes at work in a `watch` block; `reports()` gives what they have seen so far."""

    def __init__(self, session: HookSession, probing: Probing) -> None:
        self.session = session
        self._probing = probing

    def reports(self) -> list[Report]:
        """A report per probe. On an accelerator this waits for the statistics."""
        return self._probing.reports(complete=True)


@contextmanager
def watched(
    model: nn.Module,
    probes: str | Sequence[str | Probe],
    *,
    edits: Edits = (),
    select: Select | None = None,
    fastpath: bool = True,
    name: str | None = None,
) -> Iterator[Watch]:
    """Attach the probes around a step that the caller runs; see `hookcli.watch`."""
    chosen = [probe.in_callers_run() for probe in make_probes(probes)]
    fastpath = fastpath and all(p.fastpath for p in chosen if p.values)
    changes = parse_edits(edits, model, backward=True)
    with HookSession(model, select=select, fastpath=fastpath, edits=changes, follow=True) as session:
        info = describe_run(model, ())
        info = replace(info, fastpath=fastpath, edits=[edit.text for edit in changes] or UNSET)
        probing = Probing(chosen, name or type(model).__name__, info)
        probing.attach(session)
        yield Watch(session, probing)
