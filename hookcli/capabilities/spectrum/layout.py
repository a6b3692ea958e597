"""The columns of the spectrum's report, apart from the probe, so that help can list them without importing torch."""

from hookcli.table.columns import columns_named

COLUMNS = columns_named(
    *("fqn", "kind", "type", "calls", "index", "path", "shape", "dimensions", "effective_rank", "input_rank"),
    *("token_spread", "input_spread", "stable_rank", "spectral_norm", "top_share"),
    shape="Matrix",
)
"""Ranks of outputs, as matrices of tokens by features, of weights and of their updates."""

OF = OUTPUTS, WEIGHTS = "outputs", "weights"  # another word
"""The words of --of."""
