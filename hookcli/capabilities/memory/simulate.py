"""Simulates the memory of a training step, or of a forward: the model runs on the meta device, and allocates nothing.

Every storage that an operator creates is followed until it is released (`hooks.storage_lifetimes`), as the operators,
autograd and the optimizer create and release them on a real device. Memory that kernels use internally is
computed (`kernels`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.capabilities.memory.kernels import CpuKernels, CudaKernels
from hookcli.capabilities.memory.plan import MemoryPlan, checkpoint_modules
from hookcli.capabilities.memory.profile import OUTSIDE, Kind, MemoryProfile, Place, Places, Timelines
from hookcli.engine import failure
from hookcli.engine.capture import on_meta
from hookcli.engine.castable import castable
from hookcli.engine.gradients import again_with_gradients, with_gradients
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun, prepare_run
from hookcli.engine.ranks.blocks import blocks
from hookcli.engine.run_info import unquantized
from hookcli.engine.setting import META, Feedback, Setting
from hookcli.engine.step import Step
from hookcli.errors import UserCode
from hookcli.hooks.parts import uncompiled
from hookcli.hooks.saved_tensors import UNFUSED
from hookcli.hooks.session import HookSession
from hookcli.hooks.storage_lifetimes import StorageLifetimes, carried
from hookcli.hooks.torch_private.dynamo import not_imported_by_operators
from hookcli.hooks.torch_private.overrides import fused_on_meta
from hookcli.sources.base import Recipe
from hookcli.table.meta import Meta
from hookcli.table.names import owner_of
from hookcli.tensors import tree
from hookcli.tensors.random_state import restored_random_states


def simulate(
    recipe: Recipe,
    setting: Setting = Setting(),
    plan: MemoryPlan = MemoryPlan(),
    *,
    step: Step = Step(),
    feedback: Feedback = Feedback(),
) -> MemoryProfile:
    """The memory of the recipe's model in the plan's step, on the plan's device.

    `step` has the loss. A model that can't run on the meta device is built again and runs for real; `info` of the
    profile says why. The random number generators are afterwards as they were. Raises as `capture_recipe` does.
    """

    asked = replace(step, backward=not plan.inference)

    def attempt(setting: Setting, not_on_meta: str = "") -> MemoryProfile:
        return again_with_gradients(partial(once, setting, not_on_meta), asked)

    def once(setting: Setting, not_on_meta: str, gradients: bool) -> MemoryProfile:
        run = prepare_run(recipe, setting, asked, feedback)
        if gradients:
            run = replace(run, step=with_gradients(run.step, run.info))
        if not_on_meta:
            run.info["not_on_meta"] = not_on_meta
        _describe(plan, run.info)
        feedback.stage(f"simulating {recipe.name} on {setting.device}")
        if any(map(is_lazy, (*run.model.parameters(), *run.model.buffers()))):
            # Every program runs a model with lazy modules once before it makes an optimizer.
            args, kwargs = arguments(run.inputs)
            with torch.no_grad(), uncompiled(run.model), UserCode(partial(failure.crashed, run.model, run.info)):
                run.model(*args, **kwargs)
        with castable(run, plan.amp, plan.device) as run:
            return _Simulation(run, plan).profile()

    with restored_random_states(), not_imported_by_operators():
        return on_meta(attempt, setting)


class _Simulation:
    """Two steps of a prepared run: the first one, in which the optimizer creates its state, and the next."""

    def __init__(self, run: PreparedRun, plan: MemoryPlan) -> None:
        self._run = run
        self._plan = plan
        self._model = run.model
        self._session = HookSession(run.model, ops=plan.ops)
        parameters = [(fqn, p) for fqn, p in run.model.named_parameters() if not is_lazy(p)]
        self._owners = {id(parameter): Place(owner_of(fqn)) for fqn, parameter in parameters}
        self._checkpointed = checkpoint_modules(run.model, plan.checkpoint)
        self._real = run.info.get("device") != META.type
        self._kernels: CpuKernels | CudaKernels = CpuKernels()
        if plan.device == "cuda":
            self._kernels = CudaKernels(self._real, fake=plan.amp is not None)

    def profile(self) -> MemoryProfile:
        """Run both steps."""
        run, model = self._run, self._model
        unfused: dict[str, None] = {}
        choices = self._kernels.choices(lambda: unfused.update({UNFUSED: None}))
        with run.step.mode(), uncompiled(model), choices, fused_on_meta(), self._session:
            self._session.modules.hook(everything=True)
            places = Places(self._session)
            self._lifetimes = StorageLifetimes(lambda args: places(), self._kernels)
            for kind, named in ((Kind.PARAMETERS, model.named_parameters()), (Kind.BUFFERS, model.named_buffers())):
                for fqn, tensor in named:
                    self._lifetimes.hold([tensor], kind, Place(owner_of(fqn)))
            self._lifetimes.hold(tree.tensors(self._run.inputs), Kind.INPUTS, OUTSIDE)
            optimizer = self._plan.make_optimizer([p for p in model.parameters() if p.requires_grad])
            self._note_state(optimizer)  # Adagrad has it from the beginning
            timelines = Timelines(self._lifetimes)
            with self._lifetimes, UserCode(partial(failure.crashed, model, run.info)):
                for _ in range(2):
                    self._step(optimizer)
                    timelines.step_ended()
        real = [f"ran for real, not on the meta device: {run.info['not_on_meta']}"] if self._real else []
        modules = {id(module): fqn for fqn, module in model.named_modules()}
        return MemoryProfile(
            run.name,
            run.info,
            steady=timelines.steps[1],
            first=timelines.steps[0],
            types=dict(_types(model, places.operators)),
            notes=[*real, *self._kernels.remarks(model), *unfused, *unquantized(run.info)],
            parameters={fqn: _nbytes(module.parameters(recurse=False)) for fqn, module in model.named_modules()},
            trained=_nbytes(p for p in model.parameters() if p.requires_grad),
            blocks=[modules[id(block)] for block in blocks(model)],
            checkpointed=self._checkpointed,
            sources={fqn: source for fqn, (_, source) in places.operators.items()},
        )

    def _step(self, optimizer: torch.optim.Optimizer | None) -> None:
        lifetimes = self._lifetimes
        trained = [p for p in self._model.parameters() if p.requires_grad]
        lifetimes.mark("forward")
        for parameter in trained:
            parameter.grad = None
        args, kwargs = arguments(self._run.inputs)
        with torch.autocast("cpu", self._plan.amp) if self._plan.amp is not None else nullcontext():
            output = self._model(*args, **kwargs)
            if self._plan.inference:
                return
            lifetimes.mark("loss")
            roots = self._run.step.start(self._session, output, self._run.info)
            del output
        for storage in lifetimes.alive():
            storage.kind = storage.kind or Kind.ACTIVATIONS
        lifetimes.mark("backward")
        torch.autograd.backward(*roots)
        del roots
        for parameter in trained:
            self._note([parameter.grad], Kind.GRADIENTS, parameter)
        lifetimes.mark("step")
        if optimizer is not None:
            with torch.no_grad():  # as PyTorch's wrapper of `step`, which also imports torch.compile (2 s)
                unwrap(type(optimizer).step)(optimizer)
            self._note_state(optimizer)

    def _note_state(self, optimizer: torch.optim.Optimizer | None) -> None:
        for parameter, state in optimizer.state.items() if optimizer is not None else ():
            self._note(state.values(), Kind.OPTIMIZER_STATE, parameter)

    def _note(self, tensors: Iterable[Any], kind: Kind, parameter: Tensor) -> None:
        place = self._owners.get(id(parameter), OUTSIDE)
        self._lifetimes.hold([x for x in tensors if isinstance(x, Tensor)], kind, place)


def _describe(plan: MemoryPlan, info: Meta) -> None:
    """Note what the plan asks for."""
    info["simulated"] = plan.device
    if plan.ops is not None:
        info["ops"] = plan.ops
    if plan.amp is not None:
        info["amp"] = str(plan.amp).removeprefix("torch.")
    if not plan.inference and plan.optimizer != "none":
        info["optimizer"] = f"{plan.optimizer} ({plan.implementation})" if plan.implementation else plan.optimizer


def _types(model: nn.Module, operators: Mapping[str, tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """The class of each module, and after it the names of the operators that ran in it."""
    of = defaultdict[str, list[str]](list)
    for operator in operators:
        of[owner_of(operator)].append(operator)
    for fqn, module in model.named_modules():
        yield fqn, tree.type_text(module)
        yield from ((operator, operators[operator][0]) for operator in of[fqn])


def _nbytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(x.nbytes for p in parameters if not is_lazy(p) for x in carried(p))
