"""The probe, which recorded steps may have as well."""

from torch import nn

from hookcli.probes.base import Probe
from hookcli.table import Row, columns_named


class SignsProbe(Probe):
    """A row per layer."""

    name = "signs"
    in_steps = True
    columns = columns_named("fqn", "call", "positive", "largest")

    def attach(self, session):
        self.found = []
        session.forward(self.see)

    def see(self, event):
        if isinstance(event.module, nn.Linear):
            place = {"fqn": event.fqn, "call": event.call}
            self.found.append((place, (event.output > 0).sum(), event.output.detach().max()))

    def rows(self):
        return [Row(place | {"positive": int(n), "largest": float(most)}) for place, n, most in self.found]
