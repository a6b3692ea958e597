"""The memory that a batch must fit into, as --fits names it, and the part of it that --reserve keeps free."""

from __future__ import annotations

from dataclasses import dataclass

from hookcli.checks.selection import parse_figure
from hookcli.errors import UsageError
from hookcli.table.formatting import size

RESERVE = "1GiB+5%"
"""The default of --reserve, of which half of the memory is the limit.

1 GiB: a CUDA context with its kernels takes 0.7 to 1.3 GiB (Transformers' "Model training anatomy" measured 1.3 GiB,
https://discuss.pytorch.org/t/81330 0.7 to 0.8), cuBLAS 8 to 32 MiB, and a card has a little less than its name says.
5%: by the rules of CUDA's caching allocator, training steps of ten models of torchvision run in 1.1% to 5.0% more than
their peaks (scripts/sweep fragments).
"""
_LEAST = 1024  # bytes: less is a unit that was forgotten
_LEFT_OUT = {
    "cuda": "the CUDA context, workspaces of libraries and fragmentation",
    "cpu": "the interpreter, memory of libraries and fragmentation",
}


@dataclass(frozen=True)
class Room:
    """So many bytes, `reserve` of which are kept free; `typed` and `kept` have both in words, `note` the reason."""

    limit: int
    reserve: int
    typed: str
    kept: str
    note: str

    @property
    def usable(self) -> int:
        return self.limit - self.reserve

    def answer(self, thing: str, highest: int) -> str:
        """The answer for a batch or a prompt, named by `thing`, whose peak has so many bytes."""
        fits = highest <= self.usable
        beside = f" ({size(self.usable - highest)} left)" if fits else ""
        verb = "fits" if fits else "does not fit"
        return f"{thing} {verb} into {self.typed}: {size(highest)} of {size(self.usable)} usable{beside}"

    def largest(self, batches: str, most: int, also: str, more: str) -> str:
        """The sentence on the largest batch that fits, of batches of one kind, and on what the next one needs."""
        fits = f"Largest {batches} in {self.typed}: {most:,}{also}, with {self.kept}"
        return f"{fits}; a batch of {most + 1:,} needs {more}"


def parse_room(fits: str, reserve: str | None, device: str | None) -> Room:
    """The room that --fits and --reserve describe. Raises UsageError for a wrong size, or if nothing is left."""
    limit = _bytes(fits)
    if not limit:
        raise UsageError(f"--fits {fits}: give a size, such as 24GiB", option="fits")
    asked = f"{RESERVE}{reserve}" if reserve and reserve.startswith("+") else reserve or RESERVE
    parts = [_bytes(text, limit) for text in asked.split("+")]
    if reserve == "" or None in parts:
        wrong = f"--reserve {reserve}: give a size or a share of --fits, such as 2GiB, 10% or {RESERVE}"
        raise UsageError(f"{wrong}; +300MiB adds to the default", option="reserve")
    kept, how = sum(filter(None, parts)), f"--reserve {asked}"
    if reserve is None and kept > limit / 2:
        kept, how = limit / 2, "half of it; see --reserve"
    if kept >= limit:
        raise UsageError(f"--reserve {reserve} leaves nothing of --fits {fits}: keep less free", option="reserve")
    amount = size(int(kept)) if kept else "nothing"
    note = f"kept free for what is not counted: {_LEFT_OUT[device or 'cpu']}"
    return Room(int(limit), int(kept), fits, f"{amount} kept free ({how})", note)


def _bytes(text: str, whole: float = 0) -> float | None:
    """The bytes of a size, or of a share of the `whole`; None for another text, and where a unit was forgotten."""
    share = text.strip().endswith("%")
    figure = parse_figure(text.strip().removesuffix("%"), "" if share else "bytes")
    if figure is None or figure < 0 or (not share and 0 < figure < _LEAST):
        return None
    return figure * whole / 100 if share else figure
