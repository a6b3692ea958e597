"""The figures of a model's output with layers rounded, and the first line: the formats in which the output agrees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookcli.capabilities.formats.roundings import Layer
from hookcli.engine.output_changes import LITTLE, Outputs
from hookcli.table.formatting import number
from hookcli.table.names import in_words

Figures = dict[str, Any]
"""`change`: the relative l2 distance of the output that changes most; `top`: the share of places with the same top
class, if there are classes; `fails`, if the model does."""


@dataclass
class Effects:
    """The figures with all layers rounded, by format, and of each layer `alone`, by its name and the format.

    `noise`: the change of the output in a second run of the unchanged model.
    """

    noise: float = 0.0
    whole: dict[str, Figures] = field(default_factory=dict)
    alone: dict[str, dict[str, Figures]] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """The number of runs under a change."""
        return len(self.whole) + sum(map(len, self.alone.values()))

    def differing(self) -> list[str]:
        """The formats in which the output changes by a twentieth or more, and by more than without a change."""
        return [form for form, figures in self.whole.items() if figures["change"] >= max(LITTLE, 2 * self.noise)]

    def worst(self) -> str:
        """The format that changes the output most."""
        return max(self.whole, key=lambda form: self.whole[form]["change"])

    def worst_alone(self) -> str:
        """The format that changes the output most, of those in which a layer was rounded alone; "" without one."""
        tried = {form for figures in self.alone.values() for form in figures}
        return max(tried, key=lambda form: (self.whole[form]["change"], form), default="")

    def apart(self) -> list[str]:
        """The formats in which layers are rounded one by one: those in which the output differs, else the worst."""
        return self.differing() or ([self.worst()] if self.whole else [])

    def ranked(self) -> list[str]:
        """The layers that were rounded alone, those that change the output most in the worst format first."""
        worst = self.worst_alone()
        done = [fqn for fqn, figures in self.alone.items() if figures]
        return sorted(done, key=lambda fqn: -self.alone[fqn].get(worst, {"change": -1.0})["change"])


def verdict(effects: Effects, outputs: Outputs, layers: Sequence[Layer]) -> str:
    """The formats in which the output agrees and those in which it does not, and the layer that changes it most."""
    if not math.isfinite(effects.noise) or outputs.with_nan() is not None:
        return "The comparison is meaningless: the output is not finite even in the unchanged model"
    if not any(x.count_nonzero() for x in outputs.first.values()):
        return "The comparison is meaningless: the output of the unchanged model is empty or 0 everywhere"
    if not effects.whole:
        return "No format was tried"
    alone = in_words(layers[0].fqn) if layers[0].fqn else "the model"
    text = agreement(effects, f"all {len(layers)} layers" if layers[1:] else alone)
    return unsteady(effects) + text + most_sensitive(effects) + each_format(effects) + top_class(effects)


def unsteady(effects: Effects) -> str:
    """A sentence on a model whose output differs from run to run by so much that more than LITTLE is agreement."""
    if 2 * effects.noise <= LITTLE:
        return ""
    without, below = number(effects.noise), number(2 * effects.noise)
    return (
        f"A second run of the unchanged model changes the output by {without}, so below {below} counts as agreement. "
    )


def top_class(effects: Effects) -> str:
    """In how many places the top class stays in the formats in which the output does not agree."""
    whole = effects.whole
    tops = [whole[form]["top"] for form in effects.differing() if whole[form]["top"] is not None]
    if not tops:
        return ""
    least = f"{min(*tops, 0.999):.1%}"  # less than all is not 100.0%
    kept = f"in {least}{' or more' if tops[1:] else ''} of places" if min(tops) < 1 else "everywhere"
    return f"; the top class stays {kept}"


def agreement(effects: Effects, together: str) -> str:
    """In how many formats the output agrees with these layers rounded, and the change that counts as agreement."""
    differ, whole = len(effects.differing()), [*effects.whole]
    limit = f"relative l2 below {max(LITTLE, 2 * effects.noise):.3g}, {together} rounded"
    if len(whole) == 1:
        verb = "does not agree" if differ else "agrees"
        return f"The output {verb} in {whole[0]} ({how_far(effects.whole[whole[0]])}; {limit})"
    many = "no" if differ == len(whole) else f"{len(whole) - differ} of" if differ else "all"
    return f"The output agrees in {many} {'format' if many == 'no' else f'{len(whole)} formats'} ({limit})"


def each_format(effects: Effects) -> str:
    """The formats in which the output agrees, with the largest change, and those in which it does not."""
    differ, whole = effects.differing(), effects.whole
    if len(whole) == 1:
        return ""
    differing = named([f"{form} ({how_far(whole[form])})" for form in differ])
    agree = [form for form in whole if form not in differ]
    if not agree:
        return f"; it differs in {differing}"
    most = number(max(whole[form]["change"] for form in agree))
    text = f"; it agrees in {named(agree)} ({most}{' at most' if agree[1:] else ''})"
    return f"{text}, not in {differing}" if differ else text


def how_far(figures: Figures) -> str:
    """The change of the output in words."""
    if math.isinf(figures["change"]):
        return "the model fails" if figures.get("fails") else "NaN or Inf"
    return number(figures["change"])


def most_sensitive(effects: Effects) -> str:
    """The two layers that change the output most when one alone is rounded."""
    worst = effects.worst_alone()
    first = [fqn for fqn in effects.ranked() if worst in effects.alone[fqn]][:2]
    if len(effects.alone) < 2:
        return ""
    own = "the model's own weights"
    changes = [f"{in_words(fqn) if fqn else own} ({how_far(effects.alone[fqn][worst])})" for fqn in first]
    return f"; {worst} costs most in {', then '.join(changes)}" if changes else ""


def cells(figures: Mapping[str, Figures]) -> dict[str, Any]:
    """The figures by the names of their columns."""
    changes = {f"change_{form}": one["change"] for form, one in figures.items()}
    return changes | {f"top_{form}": one["top"] for form, one in figures.items()}


def named(words: Sequence[str]) -> str:
    """These words, the last after "and"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
