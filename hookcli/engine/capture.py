"""Runs a model under probes and returns their reports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, overload

from torch import nn

from hookcli.engine.gradients import again_with_gradients, with_gradients
from hookcli.engine.inputs import as_called
from hookcli.engine.looked import Witness, compared, plain_run, seen_inside
from hookcli.engine.prepare import PreparedRun, prepare_run, runs_only_for_real
from hookcli.engine.preserve import preserved
from hookcli.engine.probing import (
    Edits,
    MakeProbe,
    Probing,
    are_probes,
    is_one,
    make_probes,
    of_hooks,
    parse_edits,
    partial_reports,
    run_batches,
)
from hookcli.engine.setting import META, Feedback, Setting
from hookcli.engine.step import Step
from hookcli.engine.timing import TimedModel, with_measured_times
from hookcli.errors import HookcliError, ModelError, UsageError, message_of, unknown
from hookcli.hooks.edits.base import Edit, check_applied
from hookcli.hooks.option_values import OPS
from hookcli.hooks.parts import Select, has_compiled, uncompiled
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.compilations import silent_compiler
from hookcli.hooks.torch_private.dynamo import not_imported_by_operators
from hookcli.hooks.torch_private.programs import as_written, emulated_casts, own_programs
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.base import Probe
from hookcli.probes.fallbacks import offers_another, put_back, states, with_fallbacks
from hookcli.probes.shared.masked_scores import with_remarks
from hookcli.probes.shared.unregistered import UnregisteredParts
from hookcli.reporters.report_page import ReportList
from hookcli.sources.base import Loss, Recipe
from hookcli.table import Report
from hookcli.table.marks import is_lost
from hookcli.table.meta import Meta
from hookcli.tensors.random_state import restored_random_states

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hooking:
    """Options of the hooks: the modules that get them, and their kind.

    `ops`: operators are places as modules are: "functions" (PyTorch's, as the model calls them) or "aten".
    `edits` change tensors on their way, as `--edit` does. `fastpath`: attention may take PyTorch's fused path.
    `globally`: register through PyTorch's global functions. `time`: the rows have the times of their calls, from
    further passes without other hooks.
    """

    select: Select | None = None
    edits: Edits = ()
    fastpath: bool = True
    globally: bool = False
    ops: str | None = None
    time: bool = False
    emulate_casts: bool = False

    def __post_init__(self) -> None:
        if self.ops not in (None, *OPS):
            raise UsageError(unknown("ops", self.ops, OPS))

    def fastpath_under(self, probes: Sequence[Probe]) -> bool:
        """True if attention may take PyTorch's fused path under these probes."""
        # A probe that looks at no values has no say where another looks at them: the model runs as it really does.
        deciding = [p for p in probes if p.values] or probes
        return self.fastpath and all(p.fastpath for p in deciding)

    @property
    def fits_programs(self) -> bool:
        """True if compiled programs can show what the hooks look at; else the model runs uncompiled."""
        return not (self.ops or self.edits or self.globally or self.time)


@overload
def capture(model: nn.Module, *inputs: Any, probes: str | Probe | MakeProbe = ..., **settings: Any) -> Report: ...
@overload
def capture(
    model: nn.Module, *inputs: Any, probes: Sequence[str | Probe | MakeProbe], **settings: Any
) -> list[Report]: ...
def capture(
    model: nn.Module,
    *inputs: Any,
    probes: str | Probe | MakeProbe | Sequence[str | Probe | MakeProbe] | None = None,
    loss: str | Loss | None = None,
    step: Step | None = None,
    edits: Edits = (),
    select: Select | None = None,
    fastpath: bool = True,
    globally: bool = False,
    ops: str | None = None,
    time: bool = False,
    emulate_casts: bool = False,
    restore: bool = True,
    name: str | None = None,
    info: Meta | None = None,
    **keywords: Any,
) -> Report | list[Report]:
    """Run the model as `model(*inputs, **keywords)` and return the report of a probe, or a list of several probes'.

    One input alone may also be a tuple of all positional arguments, or a mapping of all keyword arguments: thus a
    model gets one that has the name of a setting. `probes` is "shapes" by default; without the keyword, probes may be
    the last of several arguments. The single report unpacks as a list of one.

    With a probe that needs gradients there is a backward pass too, from `loss` or as `step` says (see Step: several
    passes, an optimizer ...). `edits`, `select`, `fastpath`, `globally`, `ops` and `time` as in Hooking; `info`
    describes the run in the reports' `meta`.

    Afterwards the model (parameters, gradients, buffers, modes), the inputs and the random number generators are as
    they were, even where the model changes them itself; see `hookcli.engine.preserve.preserved`. That takes a copy of
    the parameters. `restore=False` saves it for a model that is not used again: its parameters then hold what the run
    made of them. Where PyTorch refuses to run the model under a probe's hooks and the probe can do with fewer, the
    model is run again with these.

    Raises ModelError where the model fails; its `reports` hold what was seen until then. A KeyboardInterrupt passes
    through, with the same in its attribute `reports`.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"capture needs an nn.Module, not {type(model).__name__}")
    if loss is not None and step is not None:
        raise UsageError("capture: give the loss in the step, as Step(loss=...)")
    if probes is None and inputs[1:] and are_probes(inputs[-1]):
        *inputs, probes = inputs  # type: ignore[assignment]
    probes = "shapes" if probes is None else probes
    call = as_called("capture", model, inputs, keywords, _SETTINGS)
    model, wrapped = as_written(model)
    with wrapped:
        run = PreparedRun.of(model, call, step or Step(loss=loss), name)
        run = replace(run, info={**run.info, **(info or {})})
        hooking = Hooking(select, edits, fastpath, globally, ops, time, emulate_casts)
        reports = capture_run(run, make_probes(probes), hooking, restore)
    return reports[0] if is_one(probes) else ReportList(reports)


_SETTINGS = inspect.signature(capture).parameters


def capture_recipe(
    recipe: Recipe,
    probes: str | MakeProbe | Sequence[str | MakeProbe] = ("shapes",),
    setting: Setting = Setting(),
    *,
    step: Step = Step(),
    hooking: Hooking = Hooking(),
    narrow: Callable[[nn.Module], Select | None] | None = None,
    feedback: Feedback = Feedback(),
) -> list[Report]:
    """Build a recipe's model, run it as the commands do, and return a list with a report per probe.

    If no probe needs values the model runs on the meta device; if it can't, it is built again and runs for real, and
    `meta` says why. `narrow` makes Hooking's `select` once the model is built. The random number generators are
    afterwards as they were. Raises as `capture` does, and UsageError for a probe that is made already: each run needs a
    new one.
    """
    if isinstance(probes, Probe) or (not callable(probes) and any(isinstance(p, Probe) for p in probes)):
        raise UsageError("capture_recipe: give probes by name or class; one that is made already serves one run only")

    def attempt(setting: Setting, not_on_meta: str = "") -> list[Report]:
        made = make_probes(probes)
        asked = replace(step, backward=any(p.needs_backward for p in made))
        recipe.require_gradients(asked.backward)
        with ExitStack() as building:
            for probe in made:
                building.enter_context(probe.building())
            run = prepare_run(recipe, setting, asked, feedback)
        if not_on_meta:
            run.info["not_on_meta"] = not_on_meta
        feedback.stage(f"running {recipe.name} on {setting.device}")
        narrowed = replace(hooking, select=narrow(run.model)) if narrow else hooking
        return capture_run(run, made, narrowed, restore=False)

    devices = [setting.device] if setting.device.type not in ("cpu", "meta") else []
    with restored_random_states(devices):
        if hooking.time or setting.device.type != "cpu" or any(probe.values for probe in make_probes(probes)):
            return attempt(setting)
        with not_imported_by_operators():
            return on_meta(attempt, setting)


def on_meta(attempt: Callable[..., T], setting: Setting) -> T:
    """The result of an attempt on the meta device; if that fails, of a real run, which gets the reason."""
    try:
        return attempt(replace(setting, device=META))
    except ModelError as error:
        if not runs_only_for_real(error):
            raise
        reason = message_of(error.__cause__ or error).partition("\n")[0]
    return attempt(setting, reason)


def capture_run(
    run: PreparedRun, probes: Sequence[Probe], hooking: Hooking = Hooking(), restore: bool = True
) -> list[Report]:
    """`capture` of a prepared run: again with fewer hooks where PyTorch refuses a probe's and it offers another, and
    again with gradients where the model fails without them.
    """
    final = runs_only_for_real if run.info.get("device") == META.type else None
    step = _step_for(probes, run.step)
    fresh = None if step.backward else states(probes)

    def attempt(gradients: bool) -> list[Report]:
        prepared = run
        if gradients:
            put_back(probes, fresh or ())
            info: Meta = {**run.info}
            prepared = replace(run, step=with_gradients(step, info), info=info)
        reports = with_fallbacks(probes, partial(_attempt, prepared, hooking, restore), final)
        return _with_masks(reports, prepared, hooking, restore)

    with silent_compiler(), emulated_casts(hooking.emulate_casts):
        return attempt(False) if fresh is None else again_with_gradients(attempt, step)


def _with_masks(reports: list[Report], run: PreparedRun, hooking: Hooking, restore: bool) -> list[Report]:
    """The reports, with a remark on infinities that go straight into a softmax, as masked scores of attention do.

    Only operators show that, so the model runs once more with them, if a module returned infinities and no NaN, unless
    its output is a mask as a whole, or masked.
    """
    rows = [row for report in reports if report.probe == ActivationsProbe.name for row in report.rows]
    lost = [row.stats for row in filter(is_lost, rows) if row.stats]
    if hooking.ops or hooking.edits or not any(not stats.nan and not stats.masks for stats in lost):
        return reports
    run.feedback.stage(f"running {run.name} with operators, for its infinities")
    with suppress(HookcliError):
        again = _attempt(run, replace(hooking, ops="functions", time=False), restore, [ActivationsProbe()])[0]
        remarks = {(row.fqn, row["call"], row["path"]): row["scores"] for row in again.rows if row.get("scores")}
        for number, report in enumerate(reports):
            if report.probe == ActivationsProbe.name:
                reports[number] = replace(report, rows=with_remarks(report.rows, remarks))
    return reports


def _attempt(run: PreparedRun, hooking: Hooking, restore: bool, probes: Sequence[Probe]) -> list[Report]:
    model = run.model
    step = _step_for(probes, run.step)
    edits = parse_edits(hooking.edits, model, step.backward)
    fastpath = hooking.fastpath_under(probes)
    info: Meta = {**run.info, **of_hooks(fastpath, edits, hooking.ops)}
    backends = seen_inside(run, probes, hooking.fits_programs, hooking.emulate_casts)
    if has_compiled(model):
        info["compiled"] = f"by {'; '.join(backends)}" if backends else "run without torch.compile"
    looked = Witness(model)
    if step.input_grad:
        info["input_requires_grad"] = True
    plain = plain_run(run, step, fastpath) if backends else None
    step = replace(step, ran=looked.see if backends else None)
    probing = Probing(probes, run.name, info)
    restore = restore or any(p.values and offers_another(p) for p in probes)
    parts = preserved(UnregisteredParts(model), (), parameters=restore)  # such as modules in a plain list
    way = own_programs(model) if backends else uncompiled(model)
    with step.mode(), way, preserved(model, run.inputs, parameters=restore), parts:
        session = HookSession(
            model,
            select=hooking.select,
            fastpath=fastpath,
            globally=hooking.globally,
            edits=edits,
            ops=hooking.ops,
            inside_compiled=bool(backends),
            discard_saved=not (step.backward or step.gradients),
            processes=step.processes,
        )
        reports = _observed(replace(run, step=step, info=info), probing, session, edits)
        if hooking.time:
            timed = TimedModel(model, run.inputs, step, hooking.fastpath, edits, hooking.ops)
            return with_measured_times(reports, timed, run.feedback)
    return compared(reports, session, plain, looked) if plain else reports


def _step_for(probes: Sequence[Probe], step: Step) -> Step:
    """The step with the gradients that the probes need."""
    # Gradients on is another way to run the model: not where values are looked at.
    graph = any(p.records_graph for p in probes) and not any(p.values for p in probes)
    input_grad = step.input_grad or any(p.needs_input_grad for p in probes)
    return replace(step, backward=any(p.needs_backward for p in probes), graph=graph, input_grad=input_grad)


def _observed(run: PreparedRun, probing: Probing, session: HookSession, edits: Sequence[Edit]) -> list[Report]:
    """Run the model in a session, and return what the probes saw."""
    with session:
        with partial_reports(probing):
            probing.attach(session)
            run.feedback.follow(session.position)
            session.note_created_modules()
            run_batches(run, session, probing)
        reports = probing.reports(complete=True)
        check_applied(edits, reports)
    return reports
