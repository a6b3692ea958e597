"""The columns of the checksums of replicas' parameters."""

from __future__ import annotations

from hookcli.table import columns_named

CHECKSUMS = columns_named("fqn", "shape", "dtype", "checksum", fqn="Parameter")
"""The parameters that a rank holds whole, after a step; of several ranks that differ there is no checksum."""
