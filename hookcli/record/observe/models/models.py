"""The models that the program has called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar
from weakref import ref

from torch import nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from hookcli.errors import in_brief
from hookcli.hooks.torch_private.dynamo import frames_compiled
from hookcli.hooks.torch_private.modules import hold
from hookcli.record.file.record_lines import ModelRun
from hookcli.record.observe.models.evaluations import Evaluations
from hookcli.record.observe.models.model import (
    COMPILED_AROUND,
    COMPILED_IN_PLACE,
    ObservedModel,
    bypassing_owner,
    forward_called,
    why_never_ran,
)
from hookcli.record.observe.naming import PlainNames, held_by, model_name, outermost, plain_type
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps, parameter_ids
from hookcli.system.handlers import raised_by_signal_handler
from hookcli.table.formatting import listed
from hookcli.tensors.tree import type_text
from hookcli.tensors.weak import WeakIds

# Programs that build models in a loop would flood the summary: further models of a class share one name.
_NAMED = 16
T = TypeVar("T")


class ObservedModels:
    """Finds the model of each outermost call. `only`: which modules count."""

    def __init__(self, optimizer_steps: OptimizerSteps, only: Callable[[nn.Module], bool] | None = None) -> None:
        self.counts: dict[str, ModelRun] = {}
        self.others: Counter[str] = Counter()
        self.notes: dict[str, None] = {}
        self._optimizer_steps = optimizer_steps
        self.narrowed = only is not None
        self._only = only
        self._models: WeakIds[nn.Module, ObservedModel] = WeakIds()
        self._aliases: WeakIds[nn.Module, ObservedModel] = WeakIds()  # by other modules around the same parameters
        self._by_core: WeakIds[nn.Module, ObservedModel] = WeakIds()  # by the part that holds all parameters
        self._odd: WeakIds[nn.Module, None] = WeakIds()  # which PyTorch itself can't walk through
        self._wholes: WeakIds[nn.Module, None] = WeakIds()  # models that the program calls by parts
        self.evaluations = defaultdict[str, Evaluations](Evaluations)  # by model
        self._parts: dict[str, list[str]] = {}  # by model: its parts that the program also calls by themselves
        self._of: dict[int, list[ref[nn.Module]]] = {}  # by optimizer
        self._of_version = -1
        self._seen: Counter[str] = Counter()  # models of each class
        self._built: Counter[str] = Counter()  # models that want each name
        self._parameters_of: WeakIds[Optimizer, nn.Module] = WeakIds()
        self._compiled = frames_compiled()
        self.compiled_around = False
        """True if the function that calls a model is compiled, so that no hook sees the model."""

    def find(self, module: nn.Module) -> ObservedModel | None:
        """The model of a called module; None if the module does not count, or has no parameters (a loss)."""
        model = self._models.get(module) or self._aliases.get(module)
        if model is not None or module in self._odd:
            return model
        if self._only and not self._only(module):
            return None
        if not self._has_parameters(module):
            # torch.compile makes GraphModules of parts of models.
            if module not in self._odd and not isinstance(module, GraphModule):
                self.others[plain_type(module)] += 1
            return None
        owner = bypassing_owner(module)
        if owner is not None:
            self.notes[f"{forward_called(owner)}; its parts are shown as separate models"] = None
        if (core := held_by(module)) is not module or (model := self._sharing(module)) is not None:
            return self._alias(module, model or self.find(core))
        return self._first_call(module, bypassed=owner is not None)

    def _has_parameters(self, module: nn.Module) -> bool:
        """True if a module has parameters; a note where PyTorch can't list them, as without a hash."""
        try:
            return bool([*module.parameters()])  # to the end: a part without a hash may come last
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            self._odd[module] = None
            what = type_text(module)
            self.notes[f"{what} is left out: PyTorch can't list its parameters ({in_brief(error)})"] = None
            return False

    def _alias(self, module: nn.Module, model: ObservedModel | None) -> ObservedModel | None:
        if model is not None:
            self._aliases[module] = model
        return model

    def _first_call(self, module: nn.Module, *, bypassed: bool) -> ObservedModel | None:
        """The model that a module is, or that it is a part of unless the program has `bypassed` that one's hooks."""
        kind = plain_type(module)
        # Of a kind that is built in a loop, the models before would take long to look through.
        if self._seen[kind] <= _NAMED and (owner := self._of_part(module)) is not None:
            return self._alias(module, owner)
        self._seen[kind] += 1
        alive = sum(plain_type(part) == kind for model in self.alive() if (part := model.module) is not None)
        if self._seen[kind] > min(_NAMED, alive + 2):  # built in a loop: to look for each one's name would take long
            return self._add(module, kind)
        if not bypassed and (whole := self._whole(module)) is not module:
            self._seen[kind] -= 1
            self._wholes[whole] = None
            return self._alias(module, self.find(whole))
        return self._add(module, _walked(model_name, module, kind))

    def _of_part(self, module: nn.Module) -> ObservedModel | None:
        """The model, which the program has called before, that has this module as a part; None if there is none."""
        for model in self.alive():
            whole = model.module
            if whole is None or whole is module:
                continue
            for fqn, part in whole.named_modules():
                if part is not module:
                    continue
                if whole not in self._wholes:
                    self._parts.setdefault(model.name, []).append(PlainNames(whole)(fqn))
                return model
        return None

    def note_calls(self) -> None:
        """Note on each model which of its parts the program has also called by themselves, and how it was evaluated."""
        for name, parts in self._parts.items():
            verb = "were also called by themselves" if parts[1:] else "was also called by itself"
            self.counts[name].note(f"{listed(parts)} {verb}, which counts as a forward of the model")
        for name, evaluations in self.evaluations.items():
            if note := evaluations.note(self.counts[name].steps):
                self.counts[name].note(note)

    def _whole(self, module: nn.Module) -> nn.Module:
        """The model that is called by parts only, such as actor and critic: one optimizer has all; a GAN has two.

        Also a copy of a known model, such as an average of its weights, which no optimizer has.
        """
        mine = {id(p) for p in module.parameters() if p.requires_grad}
        held = next((ids for optimizer in self._optimizer_steps if mine < (ids := parameter_ids(optimizer))), None)
        if held is None:
            return self._copied(module)
        whole = _walked(outermost, module, module)
        if not self._has_parameters(whole):  # PyTorch can't list them
            return module
        if not held.issuperset(id(p) for p in whole.parameters() if p.requires_grad):
            return module
        parts = (part for part in whole.modules() if next(part.parameters(), None) is not None)
        return module if self._only and not all(map(self._only, parts)) else whole

    def _copied(self, module: nn.Module) -> nn.Module:
        """The copy of a known model, which no optimizer has, that a module is a part of; else the module itself."""
        known = {plain_type(whole) for model in self.alive() if (whole := model.module) is not None}
        whole = _walked(outermost, module, module) if known else module
        trained = any(self._optimizer_steps.of(whole)) if plain_type(whole) in known else True
        return module if trained else whole

    def _sharing(self, module: nn.Module) -> ObservedModel | None:
        """The earlier model around the same parts: programs wrap models anew. A freed one is replaced by the part."""
        model = self._by_core.get(core := held_by(module, anyones=True))
        if model is not None and model.module is None:
            model.rebind(core)
            self._models[core] = model
            self._of_version = -1
        return model

    def _add(self, module: nn.Module, wanted: str) -> ObservedModel:
        parameters = sum(p.numel() for p in module.parameters() if not is_lazy(p))
        parts = {id(part) for part in module.modules()}
        for part, model in self._models.items():
            if model.hidden == COMPILED_IN_PLACE and id(part) in parts:  # compiled before: part of a model, not one
                del self._models[part]
                self.counts.pop(model.name, None)
                self._built[model.name.partition(" #")[0]] -= 1
        self._built[wanted] += 1
        number = self._built[wanted]
        name = wanted if number == 1 else f"{wanted} #{number}" if number <= _NAMED else f"{wanted} (further ones)"
        counts = self.counts.setdefault(name, ModelRun(name, parameters=parameters))
        model = ObservedModel(module, counts, self._optimizer_steps, shared=number > _NAMED)
        self._models[module] = self._by_core[held_by(module, anyones=True)] = model
        self._of_version = -1
        return model

    def compiled(self, module: nn.Module) -> None:
        """Note a call of `module.compile()`: hooks no longer see that forward. Parts are listed with their models."""
        others = [other for model in self.alive() if (other := model.module) is not None and other is not module]
        is_part = any(module is part for other in others for part in other.modules())
        if not is_part and (model := self.find(module)) is not None:
            model.hide(COMPILED_IN_PLACE)

    def hidden(self, optimizer: Optimizer) -> list[ObservedModel]:
        """Models of an optimizer's parameters whose forward no hook sees; the parameters alone if no model is known."""
        models = self.of(optimizer)
        if not models and not self.narrowed:
            why = why_never_ran(optimizer, self._compiled, self._odd)
            self.compiled_around |= why == COMPILED_AROUND
            parameters = self._parameters_of[optimizer] = nn.ParameterList()
            # Not appended: that turns plain tensors into Parameters.
            hold(parameters, (p for group in optimizer.param_groups for p in group["params"]))
            models = [self._add(parameters, f"parameters of {type(optimizer).__name__}")]
            models[0].hide(why)
        return [model for model in models if model.hidden]

    def alive(self) -> Iterator[ObservedModel]:
        return (model for _, model in self._models.items())

    def of(self, optimizer: Optimizer) -> list[ObservedModel]:
        """The models that have parameters in an optimizer. Found anew where a model or an optimizer is new."""
        if self._of_version != self._optimizer_steps.version:
            self._of_version = self._optimizer_steps.version
            self._of.clear()
        references = self._of.get(id(optimizer))
        if references is None:
            alive = self._models.items()
            references = [ref(m) for m, model in alive if any(optimizer is other for other in model.optimizers())]
            self._of[id(optimizer)] = references
        modules = (module for reference in references if (module := reference()) is not None)
        return [model for module in modules if (model := self._models.get(module)) is not None]


def _walked(find: Callable[[nn.Module], T], module: nn.Module, default: T) -> T:
    """The result of walking the program's objects for a module; the default where odd objects make the walk fail."""
    try:
        return find(module)
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        return default
