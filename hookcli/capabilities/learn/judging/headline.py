"""The line on why a training does not learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hookcli.capabilities.learn.judging.causes import (
    BATCH_FIRST,
    WITH_GRAPH,
    fallen_early,
    not_held,
    not_reached,
    over_batch,
    overwritten,
    reads_padding,
    stays,
    without_activation,
    without_graph,
)
from hookcli.capabilities.learn.judging.checks import (
    FrozenBlock,
    FrozenStatistics,
    GradientsNotCleared,
    GraphsKept,
    OutputAlike,
    SameBatch,
    UnitsAlike,
    as_are_more,
    learned,
    untrained,
)
from hookcli.capabilities.learn.judging.diverging import grown
from hookcli.capabilities.learn.judging.loss_checks import (
    ONE_BATCH,
    LossRises,
    NoBetterThanGuessing,
    OneLabel,
)
from hookcli.capabilities.learn.judging.misused_loss import filled, of_losses
from hookcli.capabilities.learn.judging.small_steps import SCHEDULE, clipped_scaled
from hookcli.capabilities.learn.judging.unfallen import falls_much, tried, unfallen
from hookcli.capabilities.learn.lines import (
    BLIND,
    EVAL,
    IDLE,
    LINES,
    MISSED,
    ONE_NUMBER,
    PASSLESS,
    SHUT,
    UNCOPIED,
    UNFROZEN,
    UNHELD,
    UNREACHED,
    UNREGISTERED,
    UNSTEPPED,
    UNUSED,
    VALUES,
    Learning,
    Untrained,
)
from hookcli.checks.base import WARNING, Check
from hookcli.checks.judgement import judge
from hookcli.checks.measurements import Measurements
from hookcli.record.file.reading import Record
from hookcli.record.file.views.headlines import Fault, Remark
from hookcli.record.file.views.verdict import causes, script_of, whole_run
from hookcli.system.escaping import shell_path
from hookcli.system.files import relative
from hookcli.table.formatting import counted, setting
from hookcli.table.rates import FALLEN
from hookcli.table.training import SPAN

_CAUSES: Sequence[type[Check]] = (GradientsNotCleared, SameBatch, FrozenBlock, UnitsAlike, OutputAlike)
_SEEN: Sequence[type[Check]] = (OneLabel, LossRises, NoBetterThanGuessing, GraphsKept, FrozenStatistics)

_STILL, _END = 3, 0.1  # recorded steps, and the share of all: a schedule may end at a learning rate of 0
_NOTHING, _RESTS = 1e-3, 1e-5  # of the first loss; of the largest gradient
_INPUTS = "--trial --probe inputs,activations"  # which try the model, and show what each layer receives


class NoCause(str):
    """The text on a loss that is no better than guessing, for a reason that is not known."""

    __slots__ = ()


class MayBeMeant(str):
    """The text on parts that are not trained as others are, which some programs mean."""

    __slots__ = ()


def headline(record: Record) -> Sequence[str]:
    """Net: gradients are never cleared: the optimizer also took all earlier steps', ...

    Causes come before what is seen of the loss. If all is well, as far as that is known, remarks on losses that have
    not fallen.
    """
    models = dict.fromkeys(line.model for kind in LINES for line in record.of(kind))
    errors = causes(record)
    runs = {model: whole_run(record, model) for model in models}
    learn = {model for model, run in runs.items() if any(line.gradient for line in learned(run.lines))}
    for model, run in runs.items():
        if said := next(faults(run, errors.get(model, ""), alone=learn <= {model}), "") or grown(record, model):
            if isinstance(said, MayBeMeant):
                return [f"{model}: {said}"]
            if isinstance(said, NoCause):
                return [Fault(f"{model}: {said}", inputs_command(record)), *on_order(runs)]
            return [Fault(f"{model}: {said}", "")]
    return [*remarks(record, runs), *on_order(runs)]


def remarks(record: Record, runs: Mapping[str, Measurements]) -> Iterator[Remark]:
    """The remarks on losses that have not fallen; one for all models with the same."""
    for text, models in by_text((model, unfallen(run)) for model, run in runs.items()):
        yield Remark(f"{models}: {text}", inputs_command(record))
    flat = ((model, behind_flat(learned(run.lines), harmless=True)) for model, run in runs.items())
    settings = ((model, text) for model, run in runs.items() for text in of_settings(learned(run.lines)))
    padded = (
        (model, reads_padding(learned(run.lines))) for model, run in runs.items() if not falls_much(run.every_loss)
    )
    for text, models in by_text([*flat, *settings, *padded]):
        yield Remark(f"{models}: {text}", "")


def of_settings(lines: Sequence[Learning]) -> Iterator[str]:
    """Words on settings that are hardly meant: a momentum as of Keras, and no activation function at all."""
    if lines and lines[-1].momentum:
        mostly = "so that running statistics are next to those of the last batch alone"
        yield f"{lines[-1].momentum}, {mostly}; PyTorch's momentum is the share of the new batch (0.1 by default)"
    yield from filter(None, [without_activation(lines)])


def on_order(runs: Mapping[str, Measurements]) -> Iterator[Remark]:
    """The remarks on the order of batches."""
    for text, models in by_text((model, in_order(run)) for model, run in runs.items()):
        yield Remark(f"{models}: {text}", "")


def by_text(said: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each text that is said of models, but for "", with words on these: Net and 2 more models."""
    models: dict[str, list[str]] = {}
    for model, text in said:
        models.setdefault(text, []).append(model)
    for text, (first, *others) in models.items():
        if text:
            yield text, f"{first} and {counted(len(others), 'more model')}" if others else first


def in_order(measured: Measurements) -> str:
    """Words on epochs that all have their batches in one order, which may be meant; "" if they do not."""
    lines = learned(measured.lines)
    epochs = lines[-1].ordered if lines else 0
    how = "unless that is meant, shuffle them (DataLoader: shuffle=True), which mostly helps"
    return f"the batches come in one order in each of {epochs:,} epochs; {how}" if epochs else ""


def inputs_command(record: Record) -> str:
    """The command that shows what each layer receives, or that records it; "" where the script is not known."""
    if any("inputs" in step.probes for step in record.last(record.entries)):
        return f"hookcli show --probe inputs {shell_path(relative(record.path))}"
    return f"hookcli run {_INPUTS} {script_of(record)}" if script_of(record) else ""


def faults(measured: Measurements, error: str = "", *, alone: bool = True) -> Iterator[str]:
    """All faults of a training, causes first; `error` is the first that the core's checks of causes found.

    `alone`: no other model learns. Beside one, gradients may all be zero, as of a loss that has no weight yet.
    """
    lines = learned(measured.lines)
    if untrained(measured.lines, PASSLESS) and not lines:
        yield "the optimizer makes steps, but no backward pass ever begins: call loss.backward(), with parentheses"
    yield from outside(measured.lines)
    yield from unreached(measured.lines)
    if line := untrained(measured.lines, UNSTEPPED):
        yield f"{line.places[0]} made no step after any of {line.number:,} backward passes: nothing was trained"
    if line := untrained(measured.lines, IDLE):
        has = f"{', '.join(line.places)}{more_than(line)}"
        yield f"{line.detail}, which has {has}, makes no step while another optimizer does, though gradients arrive"
    yield from filter(None, [behind_flat(lines)])
    yield from cleared(lines)
    if not has_converged(measured.every_loss, lines) and not any(line.misused for line in lines):
        yield from (error or unmoved for unmoved in still(lines, alone=alone))
    if line := untrained(measured.lines, SHUT):
        frozen = f"{', '.join(line.places)}{more_than(line)}: frozen (requires_grad=False) at zero"
        yield f"{frozen}, so that they change nothing: if they are adapters, freeze the rest before adding them"
    if line := untrained(measured.lines, EVAL):
        yield in_eval_mode(line)
    if line := untrained(measured.lines, UNCOPIED):
        yield without_statistics(line)
    yield from certain(lines, measured.every_loss)
    yield from filter(None, [clipped_scaled(lines)])
    if stays(lines, measured.every_loss):
        yield from filter(None, [overwritten(lines, len(measured.every_loss))])
    yield from (text for text, _ in of_losses(measured.every_loss, lines))
    yield from found_by(_CAUSES, measured)
    yield from filter(None, [error])
    yield from found_by(_SEEN, measured)
    yield from filter(None, [fallen_early(lines, measured.every_loss), tried(measured)])


def certain(lines: Sequence[Learning], by_step: Mapping[int, float]) -> Iterator[str]:
    """The texts on what is a fault though the loss may fall; layers may run over the rows of a batch on purpose.

    Then the loss falls by more than three tenths, and no layer reads one place of all rows.
    """
    taken = over_batch(lines)
    if taken and (all(line.rows_lost for line in taken) or not falls_much(by_step)):
        yield f"{taken[0].over_batch}: {BATCH_FIRST}"
    yield from dict.fromkeys(text for line in lines for text in (line.unloaded, line.few_weights, line.doubled) if text)


def found_by(checks: Sequence[type[Check]], measured: Measurements) -> Iterator[str]:
    """The messages of these checks' findings, but for notes, with what to do about the cause that one begins with."""
    usual = {check.advice for check in checks}
    for finding in judge([check() for check in checks], measured).findings:
        if not finding.fails(WARNING):
            continue
        cause, then, seen = finding.message.partition("; ")
        if finding.remedy == ONE_BATCH:
            yield NoCause(finding.message)
        elif finding.check in (FrozenBlock.id, FrozenStatistics.id):
            yield MayBeMeant(finding.message)
        elif then and finding.remedy not in (*usual, "") and finding.remedy not in cause:
            yield f"{cause}: {finding.remedy}{then}{seen}"
        else:
            yield finding.message


def outside(lines: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """The texts on parameters that no optimizer has."""
    if line := untrained(lines, UNHELD):
        what = f"no optimizer has the parameters of {', '.join(line.places)}"
        yield f"{what}: gradients arrive, but nothing moves them; {line.detail}"
    if line := untrained(lines, UNREGISTERED):
        yield ": ".join(filter(None, (*line.places, line.detail)))
    for why, words in ((UNFROZEN, ", and they were unfrozen later"), (MISSED, "")):
        if line := untrained(lines, why):
            yield f"{not_held(line)}: gradients arrive, but nothing moves them{words}"


def unreached(lines: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """The texts on parameters of an optimizer that never get a gradient.

    Those that run without gradients on purpose, as the trunk below a linear probe, are not said, unless they are all.
    """
    for why in (UNREACHED, BLIND, VALUES, UNUSED):
        line = untrained(lines, why)
        if line and (why == VALUES or (why == BLIND and f"{line.number}" == line.detail)):
            cut = "the loss is computed from values alone (item(), numpy(), argmax, a comparison) or under no_grad"
            yield f"no gradient reaches any of the {line.number:,} parameters of the optimizer: {cut}"
        elif line and why != BLIND:
            yield not_reached(line)
    if (words := without_graph(lines)) and not untrained(lines, VALUES):
        yield f"{words}; {WITH_GRAPH}"


def more_than(line: Untrained) -> str:
    """Words on the places that a line does not name."""
    more = line.number - len(line.places)
    return f" and {more:,} more" if more > 0 else ""


def still(lines: Sequence[Learning], *, alone: bool = True) -> Iterator[str]:
    """The text on weights that the last recorded steps left as they were, though they had a gradient."""
    last = lines[-1] if lines else None
    if last is None or last.still < _STILL or (span := last.step - last.since + 1) < max(SPAN, _END * (last.step + 1)):
        return
    since = f"since step {last.since:,}" if span <= last.step else f"in {last.still:,} recorded steps"
    if last.gradient == 0 and not alone:
        return
    zero = ", and ".join(filter(None, ("every gradient is zero", filled(lines))))
    if why := zero if last.gradient == 0 else why_still(lines):
        yield f"the optimizer has changed no weight {since}: {why}"


def behind_flat(lines: Sequence[Learning], *, harmless: bool = False) -> str:
    """The text on weights behind a function that lets no gradient through, unless the loss has it, as HK066 says.

    A softmax over one number may be `harmless`, as of attention to one token.
    """
    flat = lines[-1].flat if lines and not lines[-1].misused else ""
    return flat if flat.startswith(ONE_NUMBER) is harmless else ""


def cleared(lines: Sequence[Learning]) -> Iterator[str]:
    """The text on gradients that never reach the optimizer."""
    if lines and lines[-1].cleared == len(lines) >= _STILL:
        steps = f"in each of {len(lines):,} recorded steps"
        last = lines[-1]  # an optimizer skips a parameter whose gradient is None, but decays one whose gradient is 0
        decayed = last.gradient == 0 and last.decay
        effect = "only weight decay moved the weights" if decayed else "nothing was trained"
        yield f"every gradient was cleared before the optimizer's step, {steps}: {effect}"


def has_converged(losses: Mapping[int, float], lines: Sequence[Learning]) -> bool:
    """True if next to nothing is left of the loss, or of its gradient, so that weights may rest."""
    first, last = (losses[end(losses)] for end in (min, max)) if losses else (0.0, 1.0)
    gradients = [line.gradient for line in lines if line.gradient is not None]
    rests = bool(gradients) and 0 < gradients[-1] < _RESTS * max(gradients) and last < first
    return rests or abs(last) <= _NOTHING * abs(first)


def why_still(lines: Sequence[Learning]) -> str:
    """Why weights keep their values, by the learning rates of the recorded steps; "" where that is not known."""
    last, highest = lines[-1].rate, max((line.rate or 0 for line in lines), default=0)
    if last is not None and (last < FALLEN * highest or not last):
        fallen = f"the learning rate has fallen to {setting(last)}, from {setting(highest)}: {SCHEDULE}"
        return fallen if highest else f"the learning rate is {setting(last)}"
    rate = f" (learning rate {setting(last)})" if last is not None else ""
    if not lines[-1].gradient:
        return ""
    if lines[-1].rounded or not lines[-1].optimizer:  # which earlier records lack
        return f"its updates are lost as weights are rounded{rate}"
    return f"{lines[-1].optimizer}.step() leaves them as they are{rate}; it must change parameters in place"


def in_eval_mode(line: Untrained) -> str:
    """The text on a model, which may be meant to be in eval mode, or on modules."""
    if not line.places[0]:
        modules = counted(line.number, "module")
        would = f"{modules} in it would act otherwise in training mode"
        return MayBeMeant(f"the model is in eval mode {line.detail}, and {would}")
    others = as_are_more(line.number)
    norm = f"{line.places[0]} ({line.detail}) is in eval mode{others}"
    return f"{norm}, with statistics that no batch has touched: call model.train() before training"


def without_statistics(line: Untrained) -> str:
    """The text on a copy of a trained model."""
    norm = f"{line.places[0]} ({line.detail}){more_than(line)}"
    what = (
        f"{norm} had trained weights, but the statistics that every BatchNorm begins with, as the model was evaluated"
    )
    return f"{what}: copy buffers() with parameters(), as torch.optim.swa_utils.AveragedModel does"
