"""Columns of attention's heads. A row of several heads shows the worst of their figures."""

from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown

_LEAST: dict[str, Any] = {"merge": Merge.LEAST}
_MOST: dict[str, Any] = {"merge": Merge.MOST}
_COUNT: dict[str, Any] = {"kind": Kind.COUNT, "charted": False, "compared": False}

_SEVERAL = "each row shows the maximum over its heads (minimum for entropy and output)"
DECLARED = (
    Column("head", "Head", identity=True, alike=True, **_COUNT),
    Column("heads", "Heads", merge=Merge.SUM, shown=Shown.SET, usual=1, total="heads", explanation=_SEVERAL, **_COUNT),
    Column("queries", "Queries", merge=Merge.MOST, shown=Shown.ASKED, **_COUNT),
    Column("padding", "Padding", merge=Merge.MOST, shown=Shown.SET, drop=90, full="Queries that are padding", **_COUNT),
    Column("entropy", "Entropy", kind=Kind.FIGURE, drop=82, full="Entropy in nats", **_LEAST),
    Column(
        "entropy_share", "Entropy share", kind=Kind.SHARE, bar=Bar.SHARE, drop=88, full="Share of the most", **_LEAST
    ),
    Column("max_logit", "Max logit", kind=Kind.FIGURE, full="Largest logit", **_MOST),
    Column("max_weight", "Max weight", kind=Kind.SHARE, drop=80, full="Largest weight", **_MOST),
    Column("first_share", "First", kind=Kind.SHARE, bar=Bar.SHARE, drop=89, full="Weight on the first token", **_MOST),
    Column("top_key", "Top key", drop=85, pair="top key", full="Most-seen key, from 0", **_COUNT),
    Column("top_key_share", "Top share", kind=Kind.SHARE, drop=85, pair="top key", full="Weight on that key", **_MOST),
    Column("self_share", "Self", kind=Kind.SHARE, drop=83, full="Weight on the token itself", **_MOST),
    Column("offset", "Offset", drop=78, charted=False, compared=False, full="Where most queries look, from themselves"),
    Column("offset_share", "One offset", kind=Kind.SHARE, shown=Shown.ASKED, full="Queries at one offset", **_MOST),
    Column("distance", "Distance", "tokens", Kind.FIGURE, drop=84, full="Mean distance", **_MOST),
    Column("output_rms", "Output", kind=Kind.FIGURE, shown=Shown.ASKED, full="RMS of the head's output", **_LEAST),
    Column("output_share", "Output share", kind=Kind.SHARE, drop=86, full="Output of the layer's mean", **_LEAST),
    Column("nearest", "Like", drop=81, full="Most similar head", **_COUNT),
    Column("similarity", "Alike", kind=Kind.FIGURE, drop=87, full="Similarity to that head", **_MOST),
)
