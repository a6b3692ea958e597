"""The part of rules in a recorded run: checks them at each training step of each model."""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.rules.actions import act, parse_then
from hookcli.capabilities.rules.language import GRAD_NORM, MEMORY, Figure, Term, parse_rules
from hookcli.capabilities.rules.lines import RuleFired
from hookcli.hooks.torch_private.overrides import stored_values
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.over_time import figures
from hookcli.record.file.views.overview import overview
from hookcli.record.observe.measurements.step_times import memory
from hookcli.record.observe.models.model import ObservedModel, why_unobservable
from hookcli.record.observe.parts import RecordedRun, RecorderPart
from hookcli.tensors import tree

_WRITTEN = _KEPT = 64  # firings of a rule that are lines of the record each; steps whose figures stay
_WIDE = 4  # bytes
Values = dict[Figure, Any]


class Recorder(RecorderPart):
    """Rules over the figures of each step: figures of every step as its loss is read, others as a step is recorded.

    Nothing is changed: the norm of gradients is a pass over them as backward leaves them, and stays on its device until
    the loss is read.
    """

    def __init__(self, rules: Sequence[str], then: str | None) -> None:
        self.rules, self.then = parse_rules(rules), parse_then(then or "")
        terms = [term for rule in self.rules for term in rule.nodes.values()]
        self._longest = {one.figure: max(t.steps for t in terms if t.figure == one.figure) for one in terms}
        self._wants_norms = Figure(GRAD_NORM) in self._longest
        self._past: dict[tuple[str, Figure], deque[tuple[int, float]]] = {}
        self._steps: dict[str, dict[int, Values]] = defaultdict(dict)
        self._models: dict[str, ObservedModel] = {}
        self._norms: dict[str, Tensor] = {}
        self._scales: dict[int, Tensor | None] = {}  # by thread
        self._last: dict[tuple[str, str], RuleFired] = {}
        self._seen: set[Term] = set()

    def begin_run(self, run: RecordedRun) -> None:
        self._run = run

    def backward_begins(self, scale: Callable[[], Tensor | None]) -> None:
        """Note the scale of a pass that begins in this thread, if a GradScaler has scaled its loss."""
        if self._wants_norms:
            self._scales[threading.get_ident()] = scale()

    @torch.no_grad()
    def backward_over(self, models: Iterable[ObservedModel]) -> None:
        """Measure the gradients of each model that an optimizer trains, before the program clips them."""
        scale = self._scales.pop(threading.get_ident(), None)
        for model in models if self._wants_norms and not why_unobservable() else ():
            module = model.module if model.has_optimizer else None
            if module is not None and (grads := tree.gradients(module.parameters())):
                norm = _norm(grads)
                self._norms[model.name] = norm if scale is None else norm / scale.to(norm.device)

    def optimizer_stepped(self, models: Mapping[ObservedModel, int], optimizer: Optimizer) -> None:
        """Take the figures of a step that an optimizer has made, but for its loss, which is read later."""
        for model, number in models.items():
            lr = optimizer.param_groups[0].get("lr")
            values: dict[str, object] = {"step": number, GRAD_NORM: self._norms.pop(model.name, None)}
            values["lr"] = lr.detach().clone() if isinstance(lr, Tensor) else lr
            values["seconds"] = self._run.clock.now() - model.ended.program if model.ended else None
            if any(figure.name in MEMORY for figure in self._longest):
                values |= memory(next(p.device for group in optimizer.param_groups for p in group["params"]))
            own = self._steps[model.name]
            own.setdefault(number, {Figure(name): value for name, value in values.items()})
            for old in [*own][:-_KEPT]:
                del own[old]
            self._models[model.name] = model

    def loss_read(self, model: str, step: int, loss: float | None) -> None:
        """Judge a step whose loss, and all else that every step has, is known by now."""
        values = self._steps[model].setdefault(step, {Figure("step"): step})
        if Figure("loss") not in values:
            values[Figure("loss")] = loss
            self._judge(model, step, values, waits=False)

    def step_recorded(self, step: RecordedStep) -> None:
        """Judge the rules that ask for more than every step has."""
        if step.phase != "train" or not step.complete or not any(rule.waits for rule in self.rules):
            return
        report = overview(step)
        values = {**self._steps[step.model].get(step.step, {})}
        if values.get(Figure("loss")) is None:
            values[Figure("loss")] = step.loss
        rows = {fqn: figures(step, report, fqn) for fqn in {figure.fqn for figure in self._longest}}
        for figure in self._longest.keys() - values.keys():
            row = rows[figure.fqn]
            ends = (abs(row.stats.min), abs(row.stats.max)) if row.stats and row.stats.finite else ()
            values[figure] = max(ends, default=None) if figure.name == "max_abs" else row.get(figure.name)
        self._judge(step.model, step.step, values, waits=True)

    def _judge(self, model: str, step: int, values: Values, *, waits: bool) -> None:
        plain = {figure: _plain(values.get(figure)) for figure in self._longest}
        for rule in self.rules:
            if rule.waits != waits:
                continue
            every = {term: self._value(term, model, step, plain[term.figure]) for term in rule.nodes.values()}
            known = {term: value for term, value in every.items() if value is not None}
            self._seen.update(known)
            if rule.holds(every):
                self._fire(rule.name, model, step, {term.label: value for term, value in known.items()})
        for figure, value in plain.items():
            if (longest := self._longest[figure]) and figure.waits == waits and math.isfinite(value or 0.0):
                past = self._past.setdefault((model, figure), deque(maxlen=longest + 1))
                past.extend([] if value is None else [(step, value)])

    def _value(self, term: Term, model: str, step: int, value: float | None) -> float | None:
        past = self._past.get((model, term.figure), ())
        return term.over([before for at, before in past if at < step]) if term.window else value

    def _fire(self, rule: str, model: str, step: int, seen: Mapping[str, float]) -> None:
        before = self._last.get((rule, model))
        fired = RuleFired(model, step, rule, [*seen], [*seen.values()], before.times + 1 if before else 1)
        if not before:
            known = self._models.get(model)
            fired = replace(fired, did=act(self.then, fired, known.module if known else None, self._run.record()))
        self._last[rule, model] = fired
        if _is_line(fired):
            self._run.write(fired)

    def run_ends(self) -> None:
        """Hand on how often each rule has fired, where no line says so yet."""
        for fired in self._last.values():
            if not _is_line(fired):
                self._run.write(fired)

    def notes(self) -> list[str]:
        """Say which figures were never known, so that their rules were not judged."""
        notes = []
        for rule in self.rules:
            if never := dict.fromkeys(term for term in rule.nodes.values() if term not in self._seen):
                whys = (t.label + f" (needs {t.steps:,} steps before)" * bool(t.steps) for t in never)
                notes.append(f"--rule {rule.name}: never known: {', '.join(whys)}")
        return notes


def _is_line(fired: RuleFired) -> bool:
    return fired.times <= _WRITTEN or fired.times & (fired.times - 1) == 0


def _plain(value: object) -> float | None:
    """The number; waits for an accelerator that holds it."""
    return float(value) if isinstance(value, (int, float, Tensor)) else None


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """The L2 norm of gradients, of sharded ones over this process's parts; not in 16 bits, which it may leave."""
    held = [stored_values(tree.local(grad)) for grad in grads]
    narrow = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in held if grad.element_size() < _WIDE]
    return torch.nn.utils.get_total_norm([*(grad for grad in held if grad.element_size() >= _WIDE), *narrow])
