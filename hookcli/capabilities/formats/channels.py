"""The channels that are far larger than the others in what layers receive, and in how many layers each one is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hookcli.capabilities.formats.figures import FAR, far_above, median_peak
from hookcli.capabilities.formats.layers import LayerProbe
from hookcli.capabilities.formats.layout import CHANNELS
from hookcli.hooks.session import HookSession
from hookcli.table import Row, Skipped
from hookcli.table.formatting import counted, number, percent
from hookcli.table.names import in_words
from hookcli.tensors.pieces import column_peaks, left_out, pieces

_NAMED = 4  # channels in the first line
SHARE = 0.06
"""An outlier is large in at least this share of the rows, as of the tokens in LLM.int8() (Dettmers et al. 2022, arXiv
2208.07339, section 4.1). A channel of one huge token is none: a scale for each token would cost the others nothing."""
_NOTE = (
    f"an outlier peaks above {FAR} times the median channel's peak in the same input (channels of zeros don't count),"
    f" and is above the median's peak in at least {SHARE:.0%} of the rows and 2 of them; if more than 1 in {FAR}"
    " channels are that large, none counts as an outlier"
)


class ChannelPeaks:
    """The largest magnitudes of the channels of all tensors that were added, on the device of the first one.

    `above`: the rows in which each is larger than the largest magnitude of the median channel, of `rows` in all.
    """

    def __init__(self, device: torch.device) -> None:
        self.calls, self.rows, self.peaks = 0, 0, torch.zeros(0, device=device)
        self.above = torch.zeros(0, dtype=torch.int64, device=device)
        self.left_out = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, x: Tensor, leading: int, width: int = 1) -> None:
        """Add a tensor; channels that earlier ones lacked begin with it."""
        columns = x.shape[leading:].numel()
        peaks = column_peaks(pieces(x, leading), columns, x.device).view(-1, width).amax(1)
        above = rows_above(pieces(x, leading), columns, median_peak(peaks)).view(-1, width).amax(1)
        missing = len(peaks) - len(self.peaks)
        held, counts = (functional.pad(one, (0, max(missing, 0))) for one in (self.peaks, self.above))
        self.peaks = torch.maximum(held, functional.pad(peaks, (0, max(-missing, 0))))
        self.above = counts + functional.pad(above, (0, max(-missing, 0)))
        self.rows += x.shape[:leading].numel()
        self.left_out += sum(left_out(x, leading))
        self.calls += 1

    def values(self) -> Mapping[str, Any]:
        """The figures of the tensor as a whole; this waits for the device."""
        shares = self.above.cpu() / max(self.rows, 1)
        least = min(max(2 / max(self.rows, 1), SHARE), 1.0)
        return {"left_out": int(self.left_out), "peaks": self.peaks.cpu(), "shares": shares, "least": least}


def rows_above(x: Iterable[tuple[Tensor, int, Tensor]], columns: int, limit: Tensor) -> Tensor:
    """In how many rows each column of a matrix, which comes in pieces, is larger than the limit."""
    counts = torch.zeros(columns, dtype=torch.int64, device=limit.device)
    for piece, first, _ in x:
        counts[first : first + piece.shape[1]] += (piece.abs() > limit).sum(0)
    return counts


@dataclass(frozen=True)
class Inputs:
    """Inputs of layers with the same number of channels: the place of each, and the `peaks` of its channels."""

    places: Sequence[Mapping[str, Any]]
    peaks: Tensor

    @cached_property
    def times(self) -> Tensor:
        """Peaks in units of the median channel's, [inputs, channels]; 0 where all channels are 0."""
        return torch.stack([one / median_peak(one) for one in self.peaks]).nan_to_num(nan=0.0)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each channel that is an outlier somewhere, and for the one furthest above the median."""
        often = [place["shares"] >= place["least"] for place in self.places]
        layers = torch.stack([far_above(one) & large for one, large in zip(self.peaks, often, strict=True)]).sum(0)
        times, where = self.times.max(0)
        chosen = (layers > 0).index_fill(0, times.argmax(), True).nonzero().flatten().tolist()
        rows = []
        for channel in chosen:
            place = self.places[int(where[channel])]
            here = int(layers[channel])
            rows.append(
                {
                    "channel": channel,
                    "channels": self.peaks.shape[1],
                    "outlier_inputs": here,
                    "inputs_seen": len(self.places),
                    "outlier_share": here / len(self.places),
                    "times_median": float(times[channel]),
                    "row_share": float(place["shares"][channel]),
                    "peak": float(self.peaks[:, channel].max()),
                    **{key: place[key] for key in ("fqn", "type", "path")},
                }
            )
        return rows


class ChannelsProbe(LayerProbe):
    """A row for each channel that is an outlier in what some layer receives, outliers of the most layers first.

    Channels are counted over all inputs that have as many of them: the features of tokens, the channels of images. For
    a width without outliers, the row shows the channel furthest above the median. Peaks are taken over all calls and
    batches.
    """

    name = "channels"
    grouping = "list"
    columns = CHANNELS
    _made: list[Row] | None = None

    def attach(self, session: HookSession) -> None:
        """Ask for what layers receive."""
        super().attach(session)
        self.places = {fqn: fqn for fqn in self.places}  # a list of channels has no rows of modules to hide
        session.forward_pre(self.enter)

    def new_figures(self, device: torch.device) -> ChannelPeaks:
        """Peaks of channels."""
        return ChannelPeaks(device)

    def rows(self) -> list[Row]:
        """Return the rows: channels of the most layers first, then those furthest above the median."""
        if self._made is None:
            by_width: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
            self._inputs = [{**values, **one.values()} for values, one in self.seen.values() if one.calls]
            for place in self._inputs:
                by_width[len(place["peaks"])].append(place)
            groups = (Inputs(places, torch.stack([place["peaks"] for place in places])) for places in by_width.values())
            rows = [row for group in groups for row in group.rows()]
            rows.sort(key=lambda row: (-row["outlier_inputs"], -row["times_median"]))
            self._made = [Row({**row, "index": place}) for place, row in enumerate(rows)]
        return self._made

    def totals(self) -> Mapping[str, object]:
        """Return the verdict."""
        rows = self.rows()
        if not rows:
            return {"verdict": "No layer with weights received a floating-point tensor"}
        broken = [place for place in self._inputs if place["left_out"]]
        lost = f"{in_words(broken[0]['fqn'])} (input) has values that are not finite, left out: " if broken else ""
        return {"verdict": lost + verdict(rows, len(self._inputs))}

    def skipped(self) -> list[Skipped]:
        """Return the layers that no hook saw run, and the inputs that have no channels."""
        return [*self.left_out, *self.unseen()]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        return [_NOTE] if rows else []


def verdict(rows: Sequence[Row], inputs: int) -> str:
    """The sentence on the channels of the width whose outliers are in the most layers."""
    first = rows[0]
    if not first["outlier_inputs"]:
        return f"No outlier channel in {counted(inputs, 'input')} of layers: {furthest_in_words(rows)}"
    alike = [row for row in rows if row["channels"] == first["channels"] and row["outlier_inputs"]]
    named = [f"{row['channel']} in {row['outlier_inputs']}" for row in alike[1:_NAMED]]
    more = f"{', ' if named else ''}{', '.join(named)}" + (f" and {len(alike) - _NAMED} more" if alike[_NAMED:] else "")
    width, seen = f"with {first['channels']} channels", first["inputs_seen"]
    share = f"{first['outlier_inputs']} of the {seen} inputs {width} ({first['outlier_share']:.0%})"
    share = share if seen > 1 else f"the only input {width}"
    furthest = max(alike, key=lambda row: row["times_median"])
    which = f" ({furthest['channel']})" if alike[1:] else ""
    up_to = "up to " if alike[1:] or first["outlier_inputs"] > 1 else ""
    most = f"{up_to}{number(furthest['times_median'])} times the median channel's peak"
    others = sum(row["channels"] != first["channels"] and row["outlier_inputs"] > 0 for row in rows)
    also = f"; also {counted(others, 'channel')} of other widths" if others else ""
    is_outlier = f"Channel {first['channel']} is an outlier in {share}{more}"
    return f"{is_outlier}: {most}, in {in_words(furthest.fqn)}{which}{also}"


def furthest_in_words(rows: Sequence[Row]) -> str:
    """The channel furthest above the median, where none is an outlier."""
    furthest = max(rows, key=lambda row: row["times_median"])
    largest = f"the largest, {furthest['channel']} of {in_words(furthest.fqn)}"
    times = f"has {number(furthest['times_median'])} times the median channel's peak"
    often = f", in {percent(furthest['row_share'])} of its rows" if furthest["times_median"] > FAR else ""
    return f"{largest}, {times}{often}" if furthest["peak"] else "every value is 0"
