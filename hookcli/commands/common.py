"""From a model's spec and options to reports, and out again: what every command that runs a model does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hookcli.commands.options import Options
from hookcli.commands.output import Output, remark
from hookcli.commands.processes import Processes, columns_shown, several
from hookcli.commands.progress import Progress, working
from hookcli.commands.recipe import find_recipe
from hookcli.errors import HookcliError, ModelError, ToldError, UsageError, message_of, unknown
from hookcli.report import Report
from hookcli.system.torchrun import world

if TYPE_CHECKING:
    from torch import nn

    from hookcli.engine.prepare import Setting
    from hookcli.hooks.session import Select
    from hookcli.probes.base import Probe
    from hookcli.sources.base import Recipe

# Batch normalization in training mode refuses a batch of one value per channel.
_TRAINING_BATCH = 2


Compare = Callable[[Report, Report], Report]


def inspect_model(
    spec: str,
    make_probe: Callable[[], Probe],
    options: Options,
    *,
    train: bool = False,
    compare: Compare | None = None,
    **run: Any,
) -> int:
    """Run a probe on a model and write its report.

    `train` is the command's default mode; `run` goes to `capture`. With `compare` the model is run again, with hooks
    registered module by module, and the two reports become one.
    """
    output = Output(options)  # finds a wrong format or folder before the work, not after
    try:
        with working(options) as progress:
            progress.stage("importing torch")
            use_threads(options)
            from hookcli.hooks.edits.base import parse_edit

            run |= {"edits": [parse_edit(text, options.seed + world().rank) for text in options.edit]}
            from hookcli.engine.capture import make_probe as made

            probe = made(make_probe)
            output.check_columns(columns_shown(probe.columns, options))
            train = train if options.train is None else options.train
            with several(options, values=probe.values) as processes:
                if processes is None:
                    return 0
                inspection = _Inspection(find_recipe(spec, options), options, progress, run, processes)
                reports = inspection.reports(make_probe, train)
                if compare:
                    locally = replace(inspection, run=run | {"globally": False}).reports(make_probe, train)
                    reports = [compare(*pair) for pair in zip(reports, locally, strict=True)]
    except (HookcliError, KeyboardInterrupt) as error:
        write_partial(error, output)
        raise
    output.write(reports)
    return 0


def use_threads(options: Options) -> None:
    """Import torch, with as many threads as were asked for."""
    import torch

    if options.threads:
        torch.set_num_threads(min(options.threads, 4 * (os.cpu_count() or 1)))  # far more crash OpenMP


def inspected(recipe: Recipe, make_probe: Callable[[], Probe], options: Options, progress: Progress) -> Report:
    """The report of a probe on a model of its own, in eval mode unless --train says otherwise; nothing is written."""
    return _Inspection(recipe, options, progress, {}, Processes(options)).reports(make_probe, bool(options.train))[0]


@dataclass(frozen=True)
class _Inspection:
    """A model, and how to run it."""

    recipe: Recipe
    options: Options
    progress: Progress
    run: dict[str, Any]
    processes: Processes

    def reports(self, make_probe: Callable[[], Probe], train: bool) -> list[Report]:
        """Prepare and run; on the meta device where the numbers don't matter and the model can run there."""
        from hookcli.engine.prepare import META, runs_only_for_real

        probe = make_probe()
        setting = self.processes.setting(setting_of(self.options, train, targets=probe.needs_backward))
        if probe.values and setting.device == META:
            raise UsageError("--device meta: there are no values to look at; `hookcli shapes` needs none")
        if probe.values or setting.device.type != "cpu":
            reports = self._on(probe, setting)
            return self.processes.together(reports, lambda: self._whole(make_probe(), setting))
        try:
            return self._on(probe, replace(setting, device=META))
        except ModelError as error:
            if not runs_only_for_real(error):
                raise
            return self._on(make_probe(), setting, not_on_meta=message_of(error.__cause__ or error).partition("\n")[0])

    def _on(self, probe: Probe, setting: Setting, **meta: Any) -> list[Report]:
        from hookcli.engine.capture import capture
        from hookcli.engine.prepare import prepare
        from hookcli.engine.step import Share

        self._stage(f"building {self.recipe.name} on {setting.device}")
        with probe.building():
            prepared = prepare(self.recipe, setting)
        if prepared.remark:
            remark(prepared.remark, self.options)
        meta |= {"input": prepared.described, "fill": setting.fill, "seed": setting.seed}
        loss = self.run.get("loss")
        if probe.needs_backward and self.recipe.loss and not (loss or self.run.get("backward_vector")):
            loss = self.recipe.loss
            meta["loss"] = self.recipe.loss_name
        if setting.parts > 1:
            self.processes.check(prepared.model, self.recipe.batched)
        self._stage(f"running {self.recipe.name} on {setting.device}")
        self.processes.check_edits(self.run.get("edits", ()), probe.needs_backward)
        reports = capture(
            prepared.model,
            prepared.inputs,
            [probe],
            **self.run | {"loss": loss},
            select=_select(probe, prepared.model, self.options),
            fastpath=self.options.fastpath,
            restore=False,
            share=self.processes.share(probe.needs_backward) if setting.parts > 1 else Share(),
            name=self.recipe.name,
            meta=meta | dict(self.recipe.meta) | versions() | self.processes.meta(probe.needs_backward),
        )
        self.processes.remark_on(reports[0].meta, named_loss=isinstance(loss, str) or loss is self.recipe.loss)
        return reports

    def _whole(self, probe: Probe, setting: Setting) -> Report | None:
        """The shapes that one process would see with the whole batch; None where the model runs for real only."""
        from hookcli.engine.prepare import META

        alone = replace(setting, device=META, part=0, parts=1, shard=None, weights=None)
        with suppress(HookcliError):
            return replace(self, processes=Processes(self.options))._on(probe, alone)[0]
        return None

    def _stage(self, text: str) -> None:
        self.progress.stage(text)
        self.processes.stage(text)


def setting_of(options: Options, train: bool, targets: bool = False) -> Setting:
    """The setting that the options describe. Raises UsageError for what can't be."""
    from hookcli.engine.prepare import Setting, parse_device
    from hookcli.sources.inputs import FILLS, parse_dtype, parse_input

    dtype = parse_dtype(options.dtype) if options.dtype else None
    if dtype and not (dtype.is_floating_point or dtype.is_complex):
        raise UsageError(f"--dtype {options.dtype}: a model's dtype is a floating-point one, such as bfloat16")
    if options.fill not in FILLS:
        raise UsageError(unknown("--fill", options.fill, FILLS))
    return Setting(
        inputs=tuple(parse_input(text) for text in options.input),
        batch=options.batch_size,
        natural_batch=_TRAINING_BATCH if train else 1,
        fill=options.fill,
        seed=options.seed,
        weights=options.weights,
        strict=options.strict,
        train=train,
        targets=targets and train,
        device=parse_device(options.device),
        dtype=dtype,
    )


def _select(probe: Probe, model: nn.Module, options: Options) -> Select | None:
    """What --match and --type leave. Raises UsageError where that is nothing."""
    from hookcli.hooks.parameters import selects_parameter

    select = selector(model, options)
    if select is None:
        return None
    if probe.watches_parameters:
        left = any(selects_parameter(select, model, fqn) for fqn, _ in model.named_parameters())
    else:
        left = any(select(fqn, module) for fqn, module in model.named_modules())
    if not left:
        asked = [f"--match {options.match!r}"] if options.match else []
        asked += [f"--type {options.type}"] if options.type else []
        kind = "parameter" if probe.watches_parameters else "module"
        raise UsageError(f"nothing to look at: no {kind} matches {' and '.join(asked)}")
    return select


def selector(model: nn.Module, options: Options) -> Select | None:
    """What --match and --type say of a module; None where neither is given. Raises UsageError for unknown names."""
    if options.match is None and options.type is None:
        return None
    _check_names(model, options)

    from hookcli.tensors import tree

    def select(fqn: str, module: nn.Module) -> bool:
        return (options.match is None or fnmatchcase(fqn, options.match)) and (
            options.type is None or tree.type_text(module) == options.type
        )

    return select


def _check_names(model: nn.Module, options: Options) -> None:
    """Tell a typing mistake: what no module or parameter is called."""
    from hookcli.tensors import tree

    names = [*(n for n, _ in model.named_modules()), *(n for n, _ in model.named_parameters())]
    if options.match is not None and not any(fnmatchcase(name, options.match) for name in names):
        raise UsageError(unknown("--match", options.match, names[1:], see="no module or parameter has such a name"))
    types = {tree.type_text(module) for module in model.modules()}
    if options.type is not None and options.type not in types:
        raise UsageError(unknown("--type", options.type, types))


def versions() -> dict[str, str]:
    """What a report's `meta` says of torchvision, where it was imported."""
    torchvision = sys.modules.get("torchvision")
    return {"torchvision": torchvision.__version__} if torchvision else {}


def write_partial(error: BaseException, output: Output) -> None:
    """What was seen before a failure; of several processes the one that tells of it has its own part."""
    reports: Sequence[Report] = getattr(error, "reports", ())
    if any(report.rows for report in reports) and not isinstance(error, ToldError):
        output.salvage(reports, own=getattr(error, "own", False))
