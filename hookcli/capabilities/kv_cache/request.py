"""A request for the cache of a model that generates: its layers, or the largest batch or prompt that fits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from hookcli.capabilities.kv_cache.fitting import fits_report
from hookcli.capabilities.kv_cache.generator import Generation, Generator
from hookcli.capabilities.kv_cache.reports import in_words, layers_report
from hookcli.commands.room import Room
from hookcli.engine.capture import on_meta
from hookcli.engine.prepare import prepare_run
from hookcli.engine.run_info import finished
from hookcli.engine.setting import Feedback, Setting
from hookcli.errors import UsageError
from hookcli.sources.base import InputSpec, Recipe
from hookcli.table import Report, Skipped
from hookcli.table.formatting import listed
from hookcli.table.meta import Meta
from hookcli.tensors.random_state import restored_random_states

_UNCOUNTED = "not counted: activations, of which the prompt's pass has the most"
_COUNTED = (
    "activations: of the pass over the prompts, as on a GPU; the cache: after the prompt or at the end, the larger; "
    "not counted: a copy of one layer's keys while a token is added"
)
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")
_TASKS = ("speech-seq-2-seq", "seq-to-seq-causal-lm", "image-text-to-text", "causal-lm")


def generating_recipe(find: Callable[[str | None], Recipe], task: str | None) -> Recipe:
    """The recipe that `find` returns for the task; without one, for the first whose class generates, if its own does
    not.
    """
    recipe = find(task)
    for another in _TASKS if task is None and not _generates(recipe) else ():
        with suppress(UsageError):
            if _generates(other := find(another)):
                return other
    return recipe


def _generates(recipe: Recipe) -> bool:
    """True for a class of Transformers that generates, and for a model of another source."""
    name = recipe.meta.get("architecture")
    return name is None or bool(getattr(sys.modules["transformers"], name).can_generate())


@dataclass(frozen=True)
class CacheRequest:
    """The sequences whose cache is wanted; with `room`, the largest batch that fits, or the longest prompt.

    `dtype`: the dtype of keys and values, None for the model's. The prompt is searched if `searches_prompt`.
    """

    recipe: Recipe
    setting: Setting
    asked: Generation
    dtype: torch.dtype | None = None
    room: Room | None = None
    searches_prompt: bool = False
    feedback: Feedback = Feedback()

    def report(self) -> Report:
        """The report, from a run on the meta device, or for real where the model does not run there."""
        with restored_random_states():
            return on_meta(self._attempt, self.setting)

    def _attempt(self, setting: Setting, not_on_meta: str = "") -> Report:
        tokens = InputSpec((1, self.asked.prompt), torch.int64)
        inputs = setting.inputs or (() if self.recipe.inputs else (tokens,))
        run = prepare_run(self.recipe, replace(setting, inputs=inputs), feedback=self.feedback)
        self.feedback.stage(f"running {self.recipe.name} on {setting.device}")
        generator = Generator(run, self.dtype)
        if generator.takes_text and setting.inputs:
            wrong = f"--input {setting.inputs[0]}: has no effect; give --prompt and --batch-size"
            raise UsageError(wrong, option="input")
        if self.searches_prompt and not generator.takes_text:
            wrong = f"{run.name}: its prompt is not text, whose length could be searched; remove --batch-size"
            raise UsageError(wrong, option="batch_size")
        if self.room is None:
            made, longest = layers_report(generator, self.asked, run.name), self.asked.prompt
        else:
            how = {"searches_prompt": self.searches_prompt}
            made = fits_report(generator, self.asked, self.room, run.name, **how, dtype=str(run.info["dtype"]))
            longest = max((row["prompt"] for row in made.rows if row["room_bytes"] >= 0), default=0)
        meta: Meta = {**run.info, "batch": self.asked.batch, "input": self._input()}
        counted = any(row.get("prefill_bytes") is not None for row in made.rows)
        notes = self._notes(generator, longest + self.asked.generated, not_on_meta)
        notes |= {_COUNTED: counted, _UNCOUNTED: not counted}
        notes |= {self.room.note: True} if self.room else {}
        meta["notes"] = [note for note, is_needed in notes.items() if is_needed]
        meta.pop("fill", None)
        skipped = [Skipped(fqn, f"not counted: {reason}") for fqn, reason in generator.uncounted().items()]
        return replace(made, meta=finished(meta), skipped=skipped)

    def _input(self) -> str:
        words = in_words(self.asked)
        return f"any prompt {words[words.index('+') :]}" if self.searches_prompt else words

    def _notes(self, generator: Generator, held: int, not_on_meta: str) -> dict[str, bool]:
        """Remarks on the figures of sequences of `held` tokens, each with whether it is needed."""
        config = generator.config.get_text_config(decoder=True)
        most = min((n for name in _POSITIONS if isinstance(n := getattr(config, name, None), int)), default=held)
        others = listed(generator.others, 3)
        quantized = generator.unapplied
        is_one_text = not generator.has_encoder
        dtype = str(self.dtype).removeprefix("torch.")
        return {
            f"the cache is {generator.name}'s; not counted: {others}'s": bool(others),
            f"ran for real, not on the meta device: {not_on_meta}": bool(not_on_meta),
            f"weights count without the quantization of its configuration ({quantized})": bool(quantized),
            f"its configuration is for {most:,} positions; {held:,} are more": held > most and is_one_text,
            "the prompt is not text: --prompt has no effect": not generator.takes_text,
            f"keys and values as {dtype}, without scales of a quantized cache": self.dtype is not None,
            "not counted: the encoder's output, which generation keeps": generator.has_encoder,
        }
