"""The memory of the training step of a model that is checked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.request import MemoryRequest
from hookcli.engine.examiner import Subject
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.setting import Setting
from hookcli.sources.base import Recipe, copy_model
from hookcli.table import Report


def peak_of(subject: Subject) -> Report:
    """The memory by module, of the step of the optimizer that was chosen, or without backward of a forward."""
    recipe, setting = subject.recipe, subject.setting
    if recipe is None or setting is None:
        return _of_run(subject.run, subject.backward)
    device = "cuda" if setting.device.type == "cuda" else "cpu"
    plan = MemoryPlan(subject.settings["optimizer"], inference=not subject.backward, device=device)
    return MemoryRequest(recipe, replace(setting, device=torch.device("cpu")), plan, subject.step).report()


def _of_run(run: PreparedRun, backward: bool) -> Report:
    """The memory of an AdamW step, or without backward of a forward, of a copy of a run's model on the run's inputs."""
    args, kwargs = arguments(run.inputs)
    recipe = Recipe(run.name, partial(copy_model, run.model), example=lambda model: kwargs or tuple(args))
    on_cuda = any(parameter.is_cuda for parameter in run.model.parameters())
    plan = MemoryPlan(inference=not backward, device="cuda" if on_cuda else "cpu")
    return MemoryRequest(recipe, Setting(train=None), plan, run.step).report()
