"""Options of commands that run backward: what to differentiate, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from hookcli.commands.options import GRADIENTS, OnlyFields, check_choice, choice, option
from hookcli.errors import UsageError
from hookcli.hooks.option_values import VECTORS

if TYPE_CHECKING:
    from hookcli.engine.step import Step


def loss_option() -> Any:
    """The option --loss, of all commands that run backward."""
    text = (
        "sum, mean, cross-entropy; a key of the output, such as losses.total; or file.py:fn from output to scalar "
        "[the model's own, or by kind of model]."
    )
    return option(None, GRADIENTS, text, metavar="NAME")


@dataclass(frozen=True)
class StepOptions:
    """Parts of a command's run besides one forward, as typed; see the engine's Step."""

    loss: str | None = loss_option()
    backward_vector: str | None = choice(
        None, GRADIENTS, "Without a loss: vector for a vector-Jacobian product of the outputs.", VECTORS
    )
    passes: int = option(1, GRADIENTS, "Passes without zeroing: gradients accumulate.", metavar="N", min=1)
    call: str = "backward"
    optimizer: str | None = None
    state_dict: bool = False

    def make(self) -> Step:
        """The engine's Step. Raises UsageError for an unknown loss, and for a loss together with a vector."""
        from hookcli.engine.step import Step

        return Step(**vars(self) | {"loss": chosen_loss(self.loss, self.backward_vector)})


OnePassOptions = Annotated[StepOptions, OnlyFields(("loss", "backward_vector"))]
PassesOptions = Annotated[StepOptions, OnlyFields(("loss", "backward_vector", "passes"))]


def chosen_loss(loss: str | None, backward_vector: str | None) -> Any:
    """A name or key of the output, as typed, or the function that an import path names.

    Raises UsageError for an unknown function or vector, and where both are given. Keys are looked up in the run.
    """
    check_choice("--backward-vector", backward_vector, VECTORS)
    if loss and backward_vector:
        raise UsageError("--loss and --backward-vector: both choose what to differentiate; give one of them")
    if loss is None:
        return None
    if ":" in loss:
        from hookcli.system.importing import load_object

        found = load_object(loss)
        return found() if isinstance(found, type) else found  # a module such as torch.nn:CrossEntropyLoss
    return loss
