"""The lines of a record that say how a training learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine

LOADER, ROWS = "loader", "rows"
FROZEN, EVAL, UNREACHED, UNHELD, UNSTEPPED = "frozen", "eval", "unreached", "unheld", "unstepped"
VALUES = "values"
BLIND, UNUSED, IDLE, UNREGISTERED = "blind", "unused", "idle", "unregistered"
OUTSIDE, MISSED, UNFROZEN = "outside", "missed", "unfrozen"
GRAPHLESS, UNCOPIED, SHUT, PASSLESS = "graphless", "uncopied", "shut", "passless"
ONE_NUMBER = "a softmax over one number"


@dataclass(frozen=True, slots=True)
class Learning(PartLine):
    """A recorded step, and what the steps of its model have shown up to it.

    `left` is the number of recorded steps up to this one that began with the gradients of steps before them, of the
    `judged` ones. If the loss is the cross-entropy of a choice among classes, `classes` is their number, and
    `items` the number of choices in the step; both are 0 if it is not, or was told by an earlier line. Of several ones
    that are summed, each times a factor, `scaled` is the sum of these factors, each times the number of its choices if
    it is their sum; `passes` is the number of the backward passes in which they are. Both are left out for other
    losses. `guessed` is the mean cross-entropy, for the labels of the step, of always naming the shares that classes
    have had among the labels up to now: `common_share` that of the most `common` one.

    If the loss is a squared error, `spread` is the variance of its targets, and `center` their mean if a row has one;
    if it is an `absolute` one, or Huber's loss, `spread` is that of the targets' median; `rooted`: the loss is the
    square root of the mean error. `broadcast` is the shape to which both outputs and targets were broadcast, each along
    a dimension of the other: "64x64"; `returned` and `expected` are the means of all outputs and targets. `bounded`:
    the function that made the outputs of a squared error and its like, "Sigmoid (0 to 1)"; `beyond` is the share of the
    targets that it never returns. `noise`: the number of targets of an error, if they are as torch.randn returns them;
    `in_input` is their correlation with the input of their size. If the loss is a binary cross-entropy of `targets`
    that are 0 or 1, `ones` is the share of ones; it is left out where the model has several optimizers. `times` tells
    how often the mean of all these errors counts in the loss of the step: as many times as there are targets in a sum,
    or passes whose losses are not divided.

    `maximized`: the name of the loss whose negative it is; "" where the model has several optimizers. `doubled`: words
    on a softmax that goes into a loss which has one in it; `misused`: on a loss that gets something else than it
    expects.
    `over_batch`: words on a module that took the rows of the batch for a sequence, as batch_first is missing;
    `rows_lost`: a layer reads one place of its other dimension, or the mean, and so each row of the batch.
    `tried`: words on what a further run of the model has shown, such as rows of a batch that mix.
    `unloaded`: words on a state of which the model, or a part of it, has taken nothing; `few_weights`: words on a
    sampler that never draws most of the samples.
    `states`: words on a recurrent module whose state is lost between the time steps of a forward, or cut off from
    gradients; `padded`: on a layer that reads a last state which padding has made in most rows. `outweighed`: words on
    a loss that averages the error of a reconstruction of the input, and sums another term; then `unexplained` is the
    squared error of the reconstruction, as a share of the variance of the input.
    `alone`: all backward passes went through the same models.

    `one_label`: the recorded steps whose labels are known, if all of them were one label; else 0. In `one_each` of
    `labelled` recorded steps all labels were one, if steps with one class have followed each other, and then those with
    another; else it is 0. Labels are those that count: `counted` of `number` in the step, without those that
    cross_entropy ignores. `of_layers`: the scores for them are what trained layers return.
    `batches`: the recorded steps whose batch is known, if each saw the same one; 0 if any differed. `source` tells how
    it is known that the program has more: the DataLoader has `of` batches ("loader"), or a tensor `of` rows, of which
    the batch has `rows` ("rows"); "" if it is not known. `anew`: the program made the batch anew for each step.
    `ordered`: the epochs that have begun, if each gives its batches in one order; else 0.

    `graphs`: the recorded steps before the last but one whose graph is still in memory; `seen` of them were looked for.
    `in_use`: the bytes that the device had allocated at most in the step, or of the process on the CPU; 0 if not
    measured. `alike`: the last recorded steps in a row in which the model's output was the same for every row of the
    batch; of outputs that are `directions`, whose rows have a norm of 1, they differ by 1 % at most. `inputs`: the root
    mean square of the model's inputs, of which the largest; `entered`: that of what the first layer with weights
    receives, 0 if it is no linear, convolutional or recurrent one. `one_index`: the first embedding, if each of them
    got one index alone in the step; else "". `varied`: the standard deviation of inputs over the rows as a share of
    their size, of which the largest; None if it is not known. `dense`: the share of their values that are not zero,
    likewise. `fill`: the one number that all inputs held; "rows" if only their rows were the same; else "".
    `alike_too`: then the rows of the outputs were the same as well, or the model drops values.

    `reach`: by how much the loss could fall in this step, to first order: |gradient| |update|; None if not measured.
    `still`: the last recorded steps in a row, from the step `since` on, in which no optimizer changed a weight, and
    between which none moved; `rounded`: updates are less than the distance from the weights to the next numbers;
    `optimizer` is the name of the first one.
    `by_hand`: no optimizer has the model's weights; `unmoved`: the last recorded steps in a row before which no weight
    of such a model has moved. `maximizes`: an optimizer steps along the gradient, not against it (maximize=True).
    `rate`: the learning rate of the first parameter group; `initial`: that with which its scheduler began, if any.
    `gradient`: the norm of the gradient that the optimizers took, and `unclipped` that before it was
    clipped; None if not measured. `decay`: the largest share of the weights that weight decay took in this step, and
    `ratio` that by which the step moved the weight of a layer, in the median.
    `scale`: the GradScaler's, which scaled the loss; None without one.
    `overwritten`: how often the program itself was seen to move a weight by more than half of its size, and farther
    than the optimizer can; `weight` is the last one, `away` the share of its size by which it moved, and `moved` the
    largest one by which a step has moved it. `restored`: how often the weights were seen to equal step 0's again, or
    next to so (`nearly`: once at least).
    `written_at`: the last recorded step by which one or the other was seen.
    `cleared`: the last recorded steps in a row in which a backward pass left gradients, and the optimizer took none.
    `trained`: how many of the `numel` weights of the model are not frozen. `dropped`: words on the first dropout that
    drops nine tenths of the values or more. `held_up`: words on what holds gradients up: the first Tanh or Sigmoid at
    its bounds, or parameters whose gradient was zero in all recorded steps; `flat`: those behind a function that lets
    none through.
    `clones`: words on the first layer whose units have had the same weights in all `cloned` recorded steps, though
    these moved: "64 units of 1"; `layers` is the number of such layers.
    `linear`: the number of layers with weights, in the first recorded steps, if no activation function is among them.
    `momentum`: words on the first batch normalization whose momentum is 0.9 or more.
    `norms`: the normalizations that are frozen, with all that comes before them, but whose running statistics have
    moved since step 0, by up to `drift` standard deviations; `norm` is the first one.
    """

    kind: ClassVar[str] = "learning"

    left: int = 0
    judged: int = 0
    classes: int = 0
    items: int = 0
    scaled: float | None = None
    passes: int = 0
    guessed: float | None = None
    common: int = 0
    common_share: float = 0.0
    spread: float | None = None
    center: float | None = None
    absolute: bool = False
    rooted: bool = False
    times: float | None = None
    returned: float | None = None
    expected: float | None = None
    bounded: str = ""
    beyond: float = 0.0
    noise: int = 0
    in_input: float = 0.0
    broadcast: str = ""
    ones: float | None = None
    targets: int = 0
    maximized: str = ""
    misused: str = ""
    doubled: str = ""
    over_batch: str = ""
    rows_lost: bool = False
    tried: str = ""
    unloaded: str = ""
    few_weights: str = ""
    states: str = ""
    padded: str = ""
    outweighed: str = ""
    unexplained: float | None = None
    alone: bool = True
    one_label: int = 0
    one_each: int = 0
    labelled: int = 0
    of_layers: bool = False
    counted: int = 0
    number: int = 0
    batches: int = 0
    source: str = ""
    of: int = 0
    rows: int = 0
    anew: bool = False
    ordered: int = 0
    graphs: int = 0
    seen: int = 0
    in_use: int = 0
    alike: int = 0
    directions: bool = False
    inputs: float = 0.0
    entered: float = 0.0
    one_index: str = ""
    varied: float | None = None
    dense: float | None = None
    fill: str = ""
    alike_too: bool = False
    still: int = 0
    since: int = 0
    rounded: bool = False
    optimizer: str = ""
    by_hand: bool = False
    unmoved: int = 0
    maximizes: bool = False
    reach: float | None = None
    rate: float | None = None
    initial: float | None = None
    gradient: float | None = None
    unclipped: float | None = None
    decay: float | None = None
    ratio: float | None = None
    scale: float | None = None
    cleared: int = 0
    overwritten: int = 0
    written_at: int = 0
    weight: str = ""
    away: float = 0.0
    moved: float = 0.0
    restored: int = 0
    nearly: bool = False
    trained: int = 0
    numel: int = 0
    dropped: str = ""
    held_up: str = ""
    flat: str = ""
    clones: str = ""
    cloned: int = 0
    layers: int = 0
    linear: int = 0
    momentum: str = ""
    norms: int = 0
    norm: str = ""
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class Untrained(PartLine):
    """Parts of a model that the training leaves as they are; or, with no `places`, that they are trained after all.

    `why`: "frozen" between trained modules like them; in "eval" mode; "unreached" by gradients, as all that runs before
    them; "blind", as they run under no_grad; "unused" by the loss, as far as gradients tell; "values", as the loss has
    no graph; "unheld" by the optimizer that has the parameters of others in their place; "outside" of all optimizers,
    maybe on purpose; "missed" by them, hardly on purpose; "unfrozen" later, and in no optimizer either; "idle", as
    theirs makes no step while another does; "unstepped", as none makes a step; "unregistered", as PyTorch does not know
    of them; "graphless", as no loss has a graph from some step on; "uncopied", as statistics beside copied weights;
    "shut", as they are frozen at zero; "passless", as no backward pass begins.
    `places` are the first of them, of which there are `number`, and `detail` says more.
    """

    kind: ClassVar[str] = "untrained"

    why: str
    places: Sequence[str] = ()
    number: int = 0
    detail: str = ""


LINES = (Learning, Untrained)
