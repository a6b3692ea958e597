"""The flow of tensors forward through a model: a row per call, with the calls that its inputs come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hookcli.capabilities.flow.layout import COLUMNS
from hookcli.hooks.flow_calls import FlowCall, FlowCalls
from hookcli.hooks.operators.functions import function_names
from hookcli.hooks.parts import compiled_parts
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.table import Row, Skipped
from hookcli.tensors.tree import lone, type_text


class FlowProbe(Probe):
    """A row per call, in the order of execution: of the modules without parts, and of functions between modules.

    `kind` is "module", "function", or "input" and "output" for the tensors that the model receives and returns. `fqn`
    names the module that was called, or in which the function ran. `inputs` are the `id`s of the calls that made the
    tensors which this one received, one for each tensor, and `input_shape` lists their shapes. Parameters, buffers and
    numbers are not inputs. A call that writes into a tensor counts as the one that made it.

    Only the model's first forward is followed. No values are looked at, and none is changed.
    """

    name = "flow"
    values = False
    fastpath = False
    grouping = "list"
    columns = COLUMNS

    def attach(self, session: HookSession) -> None:
        self.session = session
        self._flow = FlowCalls(session)

    def rows(self) -> list[Row]:
        counts: Counter[tuple[str, int, str]] = Counter()
        return [_row(number, call, counts) for number, call in enumerate(self._flow.calls)]

    def totals(self) -> Mapping[str, object]:
        kinds = Counter(call.kind for call in self._flow.calls)
        return {"module calls": kinds["module"], "function calls": kinds["function"]}

    def skipped(self) -> list[Skipped]:
        flow, session = self._flow, self.session
        parts = [Skipped("", "only the selected modules are followed")] if session.select else []
        parts += [Skipped(fqn, f"{name} reads values, which are not followed further") for fqn, name in flow.read]
        parts += [Skipped(fqn, _UNKNOWN) for fqn in flow.unknown]
        if session.follow and compiled_parts(session.model):
            parts.append(Skipped("", "compiled parts: the flow inside is not seen"))
        return [*parts, *unmeasured(session)]


_UNKNOWN = (
    "receives a tensor of unknown origin: it was made before the run, or out of sight (compiled code, C++ extension)"
)


def _row(number: int, call: FlowCall, counts: Counter[tuple[str, int, str]]) -> Row:
    kind, function = function_names(call.what) if call.kind == "function" else (call.kind, None)
    if call.kind == "module":
        kind = type_text(call.what)
    key = call.fqn, call.call, kind
    counts[key] += call.kind == "function"
    return Row(
        {
            "id": number,
            "kind": call.kind,
            "fqn": call.fqn,
            "type": kind,
            "number": counts[key] if call.kind == "function" else None,
            "call": call.call,
            "inputs": call.inputs,
            "input_shape": call.input_shapes or None,
            "output_shape": lone([shape for _, shape, _ in call.outputs]),
            "dtype": call.outputs[0][2] if call.outputs else None,
            **({"function": function} if function else {}),
            **({"path": call.what} if call.kind in ("input", "output") and call.what else {}),
        }
    )
