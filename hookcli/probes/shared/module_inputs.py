"""The inputs of modules, for checks: are they finite, do they require grad, do biases go into normalizations?"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import TensorOrigins, version_of
from hookcli.hooks.torch_private.modules import BatchNorm, InstanceNorm
from hookcli.probes.shared.inventory_part import InventoryPart
from hookcli.probes.shared.module_facts import acts_in_training
from hookcli.tensors import tree
from hookcli.tensors.chunks import fetched
from hookcli.tensors.non_finite import Kinds, kinds_of


class ModuleInputs(InventoryPart):
    """Rows of kind `called`, for each module's first call, and `received`, for each call with NaN or infinite inputs.

    `normalized`: a module with a bias whose output went to one that normalizes each channel by itself, named `by`.
    Values are read back only for the rows.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        self._called: dict[str, dict[str, object]] = {}
        self._kinds: list[tuple[dict[str, Any], list[Tensor]]] = []
        self._not_finite: dict[tuple[str, int], dict[str, object]] = {}
        self._last = ""
        self._outputs = TensorOrigins(())
        self._biased: list[tuple[str, int]] = []
        self._normalized: dict[str, dict[str, object]] = {}

    def enter(self, event: HookEvent) -> None:
        tensors = [x for _, x in tree.arguments(event.args, event.kwargs)]
        if event.call == 0 and event.fqn not in self._called:
            self._called[event.fqn] = _described(event, tensors)
        if _centers_channels(event.module):
            for x in tensors[:1]:
                fqn, version = self._biased[number] if (number := self._outputs.of(x)) is not None else ("", None)
                if version == version_of(x):
                    self._normalized[fqn] = {"kind": "normalized", "fqn": fqn, "by": event.fqn}
        kinds = [flags for x in tensors if (flags := kinds_of(x)) is not None]
        if kinds:
            caller = self.session.calls.caller()
            row = {"kind": "received", "fqn": event.fqn, "call": event.call, "after": self._last}
            row |= {"caller": caller.hooked.fqn, "caller_call": caller.number} if caller else {"caller": None}
            self._kinds.append((row, kinds))

    def leave(self, event: HookEvent) -> None:
        if event.module is None:
            return
        self._last = event.fqn
        if any(name == "bias" for name, _ in event.module.named_parameters(recurse=False)):
            for _, x in tree.leaves(event.output):
                self._outputs.made(x, len(self._biased))
                self._biased.append((event.fqn, version_of(x)))

    def batch_ended(self) -> None:
        """Read back what the batch has shown, and keep the first call of a place that had bad inputs."""
        flags = iter(fetched([each for _, kinds in self._kinds for each in kinds]))
        for values, kinds in self._kinds:
            of_call = [Kinds(*next(flags)[0]) for _ in kinds]
            if any(any(each.present()) and not each.is_mask for each in of_call):
                self._not_finite.setdefault((values["fqn"], values["call"]), values)
        self._kinds.clear()
        self._outputs = TensorOrigins(())
        self._biased.clear()

    def rows(self) -> list[dict[str, object]]:
        self.batch_ended()
        return [*self._called.values(), *self._not_finite.values(), *self._normalized.values()]


def _described(event: HookEvent, received: list[Tensor]) -> dict[str, object]:
    module = event.module
    assert module is not None
    own = [p for p in module.parameters(recurse=False) if not is_lazy(p)]
    return {
        "kind": "called",
        "fqn": event.fqn,
        "type": tree.type_text(module),
        "training": module.training,
        "acts": acts_in_training(module),
        "params": sum(p.numel() for p in own),
        "trainable": sum(p.numel() for p in own if p.requires_grad),
        "receives_grad": any(x.requires_grad for x in received),
    }


def _centers_channels(module: nn.Module | None) -> bool:
    """True for a normalization that subtracts each channel's own mean in this call, and with it what a bias added."""
    if isinstance(module, nn.GroupNorm):
        return module.num_groups == module.num_channels
    return isinstance(module, (BatchNorm, InstanceNorm)) and (module.training or module.running_mean is None)
