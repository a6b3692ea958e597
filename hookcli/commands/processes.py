"""Runs a command in several processes: starts them, or is one of them, and makes one report of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hookcli.commands.options import Options
from hookcli.commands.output import remark
from hookcli.errors import ProcessesWanted, UsageError, shortened
from hookcli.system.memory import available_memory
from hookcli.system.torchrun import leftover, world
from hookcli.table import Column, Report, Skipped, formatting, ranks
from hookcli.table.columns.layouts import with_operators

if TYPE_CHECKING:
    from hookcli.engine.ranks.group import Group
    from hookcli.engine.setting import Setting
    from hookcli.engine.step import BatchShare
    from hookcli.hooks.edits.base import Edit

_DIGITS = 10  # the most that a rank may have
_MEMORY = 300 * 2**20  # bytes that a process takes for PyTorch and hookcli, before any model


@dataclass(frozen=True)
class Processes:
    """This process among the run's processes. A lone process has no `group`, and its methods change nothing."""

    options: Options
    group: Group | None = None

    def stage(self, text: str) -> None:
        """Name the present stage for the watchdog."""
        if self.group:
            self.group.stage(text)

    def setting(self, setting: Setting, backward: bool) -> Setting:
        """The setting for this process: its part of the batch, its device, its shards."""
        if self.group is None:
            return setting
        here, parallel = self.group.world, self.options.parallel
        shares = parallel == "fsdp" or (backward and self.options.ranks == "merged")
        setting = replace(setting, part=here.rank, parts=here.size, backend=self.group.backend)
        setting = replace(setting, parallel=parallel if shares else None)
        if setting.device.type == "cuda":
            import torch

            setting = replace(setting, device=torch.device("cuda", here.local_rank))
            torch.cuda.set_device(setting.device)
        if parallel == "fsdp":
            from hookcli.engine.ranks.parallel import shard

            device = setting.device
            setting = replace(setting, shard=lambda model: shard(model, device, here.size))
        return setting

    def check_edits(self, edits: Sequence[Edit], backward: bool) -> None:
        """Raises UsageError for edits of gradients that will be averaged over the processes."""
        averaged = self.group and backward and (self.options.ranks == "merged" or self.options.parallel == "fsdp")
        for edit in edits if averaged else ():
            if edit.what == "grad":
                raise UsageError(
                    f"--edit {edit.text!r}: each process would change its own gradient before they are averaged, and "
                    "hooks don't see FSDP2's; one process shows the edited gradient of the whole batch"
                )

    def remark_on(self, meta: Mapping[str, Any], named_loss: bool) -> None:
        """Remark on differences from one process with the whole batch."""
        if meta.get("random"):
            remark(f"{meta['random']} (as dropout does): statistics differ from one process's", self.options)
        if meta.get("loss_reduction") and not named_loss:
            remark(f"the loss {meta['loss']} is treated as a mean over the batch, as DDP does", self.options)

    def share(self, backward: bool) -> BatchShare:
        """This process's share of a run. Gradients are not averaged if ranks are shown one by one."""
        from hookcli.engine.step import BatchShare

        if self.group is None:
            return BatchShare()
        here = self.group.world
        sharded = self.options.parallel == "fsdp"
        if sharded or not (backward and self.options.ranks == "merged"):
            return BatchShare(here.rank, here.size, averaged=sharded)
        from hookcli.engine.ranks.parallel import replicated

        return BatchShare(here.rank, here.size, averaged=True, wrap=replicated)

    def together(self, reports: Sequence[Report], whole: Callable[[], Report | None]) -> list[Report]:
        """On rank 0 the ranks' reports as one; `whole` makes the shapes that a single process would see, or None."""
        if self.group is None:
            return list(reports)
        return self.gathered(reports, lambda parts: self._merged(parts, whole))

    def gathered(self, reports: Iterable[Report], merged: Callable[[ranks.Parts], Report]) -> list[Report]:
        """On rank 0 each report of all ranks, `merged` or side by side as --ranks says; on the other ranks none."""
        assert self.group is not None
        from hookcli.engine.ranks.group import gather

        self.group.stage("gathering the reports of all processes")
        gathered = [dict(enumerate(gather(report, self.group))) for report in reports]
        asked = parse_ranks(self.options.ranks, self.group.world.size)
        make = merged if self.options.ranks == "merged" else ranks.beside
        return [make({rank: parts[rank] for rank in asked} if asked else parts) for parts in gathered if parts]

    def _merged(self, parts: ranks.Parts, whole: Callable[[], Report | None]) -> Report:
        from hookcli.table.merged_ranks import merged

        shapes = whole() if ranks.merges(parts) else None
        report = merged(parts, shapes)
        if shapes is None and ranks.merges(parts) and any(row.get("kind") != "parameter" for row in report.rows):
            assumed = Skipped("", "the shapes of the whole batch: dimension 0 is taken for the batch everywhere")
            report = replace(report, skipped=[*report.skipped, assumed])
        return report


@contextmanager
def several(options: Options, *, values: bool) -> Iterator[Processes | None]:
    """Be one of the run's processes while the block runs; yields None if this one has nothing to do.

    Without `values`, when the numbers in tensors don't matter, one process does it all. Raises ProcessesWanted if the
    processes have yet to be started, and UsageError for options that don't fit.
    """
    here = world()
    remark(leftover(), options)
    wanted = options.nproc or here.size
    if here.size > 1 and wanted != here.size:
        raise UsageError(f"--nproc {wanted}: torchrun has started {here.size} processes; remove --nproc")
    parse_ranks(options.ranks, wanted)
    if wanted == 1:
        refuse_alone(options)
    if not values or wanted == 1:
        yield Processes(options) if here.writes else None
    elif here.size == 1:
        available = available_memory()
        if available is not None and wanted * _MEMORY > available:
            enough = f"enough for {available // _MEMORY} of {formatting.size(_MEMORY)} each, without the model"
            raise UsageError(
                f"--nproc {wanted}: {formatting.size(available)} of memory is available, {enough}", option="nproc"
            )
        raise ProcessesWanted(wanted, options.debug)
    else:
        from hookcli.engine.ranks.group import joined
        from hookcli.engine.setting import parse_device

        with joined(here, options.timeout) as group:
            group.connect(options.backend, parse_device(options.device))
            yield Processes(options, group)


def refuse_alone(options: Options) -> None:
    """Raise UsageError for options that need several processes."""
    for name in ("parallel", "ranks", "backend"):
        if (value := getattr(options, name)) != getattr(Options(), name):
            raise UsageError(f"--{name} {value}: needs several processes; give --nproc N, or use torchrun")


def columns_shown(columns: Sequence[Column], options: Options) -> Sequence[Column]:
    """The columns of the report, depending on --ops and --ranks."""
    columns = with_operators(columns) if options.ops else columns
    return columns if options.ranks == "merged" else ranks.columns_beside(columns)


def parse_ranks(text: str, size: int) -> list[int] | None:
    """The ranks that `0,1` names; None for all of them. Raises UsageError for unknown ones."""
    if text in ("merged", "each"):
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < _DIGITS and int(part) < size for part in parts):
        there = f"0 to {size - 1}" if size > 1 else "0"
        raise UsageError(
            f"--ranks {shortened(text)!r}: give merged, each, or numbers such as 0,1; available ranks: {there}"
        )
    return sorted({int(part) for part in parts})
