"""A request for a model's memory: its settings, the reports that it asks for, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from hookcli import registry
from hookcli.capabilities.memory.check_options import OPTIMIZER
from hookcli.capabilities.memory.kernels import OUTSIDE
from hookcli.capabilities.memory.layout import FITS
from hookcli.capabilities.memory.parallel import one_process
from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.profile import MemoryProfile
from hookcli.capabilities.memory.reports import REPORTS, by_column, peak_text, where, without_head
from hookcli.capabilities.memory.simulate import simulate
from hookcli.commands.room import Room
from hookcli.engine.batch_search import MOST, BatchSearch
from hookcli.engine.capture import capture_recipe
from hookcli.engine.examiner import Subject
from hookcli.engine.inputs import arguments
from hookcli.engine.run_info import finished
from hookcli.engine.setting import Feedback, Setting
from hookcli.engine.step import Step
from hookcli.engine.tensor_parallel import divided
from hookcli.errors import ModelError
from hookcli.sources.base import Recipe, copy_model
from hookcli.table import Report, Row
from hookcli.table.formatting import counted, listed, macs, size
from hookcli.table.meta import Meta

_DIVIDED = "tp: divided by the model's own plan, all else whole; buffers of the communication library are not counted"


@dataclass(frozen=True)
class MemoryRequest:
    """The step whose memory is wanted, of one of the setting's `parts` where these are processes in `parallel`.

    With `tensor_parallel`, the memory of one of so many processes that divide the model by its plan, and not the batch.
    `narrow` makes, from the modules' types by name, the test of the modules whose rows are wanted.
    """

    recipe: Recipe
    setting: Setting
    plan: MemoryPlan
    step: Step = Step()
    feedback: Feedback = Feedback()
    narrow: Callable[[Mapping[str, str]], Callable[[str], bool]] | None = None
    tensor_parallel: int = 1

    @property
    def parts(self) -> int:
        """The number of processes among which a batch is divided."""
        return self.setting.parts if self.recipe.batched else 1

    def reports(self, names: Sequence[str]) -> list[Report]:
        """The reports of these names: "memory" by module, and the "timeline"; the first one has the verdict."""
        if self.tensor_parallel > 1:
            self._profile(self.setting, self.plan)  # DTensor tries each operator once, which the first step would count
        profile = self._profile(self.setting, self.plan)
        saved = self._saved(profile) if profile.checkpointed else {}
        reports = [REPORTS[name](profile) for name in names]
        if self.narrow is not None:
            wanted = self.narrow(profile.types)
            reports = [replace(report, rows=[row for row in report.rows if wanted(row.fqn)]) for report in reports]
        added = [saved, *(saved | {"verdict": ""} for _ in names[1:])]
        return [replace(report, totals={**report.totals, **new}) for report, new in zip(reports, added, strict=True)]

    def fits(self, room: Room) -> Report:
        """The largest batch, of each process, whose peak is within the room, and an answer for the setting's batch.

        A batch of one in the shape of an input is not asked about: it stands for any.
        """
        setting, parts = self.setting, self.parts
        shape = setting.inputs[0].shape if self.recipe.batched and setting.inputs else ()
        asked = setting.batch or (shape[0] if shape and shape[0] > 1 else 0)
        if asked % parts:
            self._profile(replace(setting, batch=asked), self.plan)  # raises UsageError: it does not divide
        return fits_report(
            lambda n: self._profile(replace(setting, batch=n * parts), self.plan), room, parts, asked // parts
        )

    def _profile(self, setting: Setting, plan: MemoryPlan) -> MemoryProfile:
        run = partial(simulate, self.recipe, plan=plan, step=self.step, feedback=self.feedback)
        if self.tensor_parallel > 1:
            with divided(setting, self.tensor_parallel) as placed:
                profile = run(placed)
            profile.info.update({"processes": self.tensor_parallel, "parallel": "tp"})
            return replace(profile, notes=[*profile.notes, _DIVIDED])
        profile = run(setting)
        return one_process(profile, setting.parallel, setting.parts) if setting.parallel else profile

    def _saved(self, profile: MemoryProfile) -> dict[str, object]:
        """The effect of checkpointing: the peak without it, and the MACs that are computed again."""
        plain = self._profile(self.setting, replace(self.plan, checkpoint=())).steady.peak.highest
        peak = profile.steady.peak.highest
        alone = replace(self.setting, part=0, parts=1, batch=None) if self.setting.batch is None else self.setting
        shapes = capture_recipe(self.recipe, registry.load("probes", "shapes"), alone, feedback=self.feedback)[0]
        again = sum(row["macs"] or 0 for row in shapes.rows if row.fqn in profile.checkpointed)
        whole = 3 * shapes.totals["macs"]  # a backward pass takes two matrix products for each of the forward's
        modules = f"{counted(len(profile.checkpointed), 'module')} ({listed(list(profile.checkpointed), 3)})"
        gain = f"takes the peak from {size(plain)} to {size(peak)} ({peak / plain - 1:+.0%})"
        computes = "computes" if self.tensor_parallel == 1 else "all processes together compute"
        cost = f", and {computes} {macs(again)} again ({again / whole:+.0%} of a step)" if whole else ""
        sentence = f"Checkpointing {modules} {gain}{cost}"
        return {"plain_peak_bytes": plain, "recomputed_macs": again, "checkpointing": sentence}


def peak_of(subject: Subject) -> Report:
    """The memory by module, of the step of the optimizer that was chosen, or without backward of a forward.

    In a check from Python: of a copy of the run's model, on the run's inputs.
    """
    recipe, setting, step, run = subject.recipe, subject.setting, subject.step, subject.run
    if recipe is None or setting is None:
        args, kwargs = arguments(run.inputs)
        recipe = Recipe(run.name, partial(copy_model, run.model), example=lambda model: kwargs or tuple(args))
        device = next((p.device for p in run.model.parameters() if p.is_cuda), torch.device("cpu"))
        setting, step = Setting(train=None, device=device), run.step
    simulated = "cuda" if setting.device.type == "cuda" else "cpu"
    plan = MemoryPlan(subject.settings.get("optimizer", OPTIMIZER), inference=not subject.backward, device=simulated)
    return MemoryRequest(recipe, replace(setting, device=torch.device("cpu")), plan, step).reports(["memory"])[0]


_SEARCH = "rows: the batch sizes that were tried"
_CPU = "kernels and workspaces are a CPU's; --device cuda has a GPU's"


def fits_report(profile_of: Callable[[int], MemoryProfile], room: Room, processes: int = 1, asked: int = 0) -> Report:
    """The largest batch whose peak is within the room, with all that were simulated to find it, and the `asked`.

    `profile_of` simulates a batch, of each of so many `processes`. Where a batch of one can't be trained, as with batch
    normalization of one value, the smallest is two.
    """
    profiles: dict[int, MemoryProfile] = {}

    def peak_of(batch: int) -> int:
        profiles[batch] = profile_of(batch)
        return profiles[batch].steady.peak.highest

    search = BatchSearch(peak_of, room.usable)
    try:
        largest = search.largest()
    except ModelError:
        if profiles:
            raise
        largest = search.largest(lowest=2)
    best = profiles[largest or min(profiles)]
    if asked and asked not in profiles:
        peak_of(asked)
    general = [] if best.info.get("simulated") == "cuda" else [_CPU]
    notes = [note for note in best.notes if note != OUTSIDE]  # the room's note says so
    meta: Meta = {**finished(best.info), "notes": [_SEARCH, *notes, *general, room.note]}
    sizes = {"largest_batch": largest, "limit_bytes": room.limit, "reserve_bytes": room.reserve}
    totals = {**sizes, "verdict": _verdict(profiles, largest, room, processes, asked), **without_head(best.info)}
    rows = []
    for batch, profile in sorted(profiles.items()):
        moment = profile.steady.peak
        left = {"batch": batch, "highest": moment.highest, "left_bytes": room.usable - moment.highest}
        at = {"phase": moment.phase, "fqn": where(moment.place, moment.phase)}
        rows.append(Row(left | at | by_column(moment.held)))
    return Report("fits", best.model, FITS, rows, meta, totals, grouping="list")


def _verdict(profiles: dict[int, MemoryProfile], largest: int, room: Room, processes: int = 1, asked: int = 0) -> str:
    """The answer for the batch that was asked about, if any; the largest that fits; and what the next needs."""
    over = largest + 1 if 0 < largest < MOST else min(profiles)
    above, first = profiles[over].steady.peak, ""
    if asked:
        whole = f"{asked * processes:,}" + (f" ({asked:,} for each of {processes} processes)" if processes > 1 else "")
        first = room.answer(f"A batch of {whole}", profiles[asked].steady.peak.highest) + "; "
    if largest == MOST:
        most = f"batch that was tried, up to {MOST:,}, fits into {room.typed}"
        return f"{first}every {most}" if first else f"Every {most}"
    if not largest:
        nothing = "nothing does" if first else f"Nothing fits into {room.typed}"
        return f"{first}{nothing}, with {room.kept}; a batch of {over:,} takes {peak_text(above)}"
    each = f" for each of {processes} processes, {largest * processes:,} in all" if processes > 1 else ""
    if first:
        fits = f"{largest:,}{each} does" if asked > largest else f"the largest is {largest:,}{each}"
        return f"{first}{fits}, with {room.kept}"
    return room.largest("batch", largest, each, peak_text(above, above.highest - room.usable))
