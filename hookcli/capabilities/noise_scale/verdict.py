"""The noise scale in a sentence. Free of torch."""

from __future__ import annotations

from hookcli.capabilities.noise_scale.estimate import NoiseScale
from hookcli.table.formatting import counted

WIDE = 10.0
"""An interval whose ends are further apart, as a factor, says little more than its ends."""
NEAR = 2.0
"""A batch within this factor of the interval is about as large as the noise scale, which is a matter of magnitudes."""


def verdict(scale: NoiseScale, samples: int, batch: int) -> str:
    """How large a batch should be, for the `batch` of the data; `samples` were looked at."""
    if scale.grad_sq == scale.variance == 0:
        return f"The noise scale can't be told: all gradients of {counted(samples, 'sample')} are 0"
    low = scale.low or 0.0
    if scale.value is None or scale.high is None:
        more = "give more data (--batches, --batch-size)"
        if low <= 0:
            return f"The noise scale can't be told from {counted(samples, 'sample')}: {more}"
        above = f"The noise scale is above {_whole(low)} samples"
        saves = f", so a larger batch than {batch} saves steps" if NEAR * batch < low else ""
        return f"{above}{saves}; {counted(samples, 'sample')} don't tell how far above: {more}"
    if scale.variance == 0:
        return "The noise scale is 0: all micro-batches have the same gradient, so a larger batch gains nothing"
    ends = f"{_whole(low)} to {_whole(scale.high)} at 95%"
    if scale.high > WIDE * max(low, 1e-12):
        return f"The noise scale is {ends}, too wide to choose by: more data (--batches, --batch-size) narrows that"
    error = "" if scale.error is None else f" ± {_whole(scale.error) if scale.error >= 100 else f'{scale.error:.2g}'}"
    return f"The noise scale is {_whole(scale.value)}{error} samples ({ends}): {advice(scale, batch)}"


def interrupted(scale: NoiseScale, samples: int) -> str:
    """The estimate from the samples that were looked at before an interrupt, whose error was not measured."""
    of = f"of {counted(samples, 'sample')}, without its error: interrupted"
    if scale.value is None:
        return f"The noise scale can't be told from the gradients {of}"
    return f"The noise scale is about {_whole(scale.value)} samples, by the gradients {of}"


def advice(scale: NoiseScale, batch: int) -> str:
    """The cost of a batch of this size, as multiples of the fewest steps and of the fewest samples.

    By section 2 of McCandlish et al. 2018.
    """
    value, high = scale.value or 0.0, scale.high or 0.0
    if NEAR * batch < (scale.low or 0.0):
        many = f"{1 + value / batch:.3g} times as many steps as with very large batches"
        return f"a larger batch than {batch} saves steps; at {batch}, training takes about {many}"
    if batch > NEAR * high:
        many = f"{1 + batch / value:.3g} times as many samples as with very small batches"
        return f"a smaller batch than {batch} saves samples; at {batch}, training takes about {many}"
    return f"a batch of {batch} is close to that, a good compromise between steps and samples"


def _whole(samples: float) -> str:
    """A number of samples: whole from 100 on, since nothing smaller matters."""
    return f"{samples:,.0f}" if samples >= 100 else f"{samples:.3g}"
