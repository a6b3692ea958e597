"""Writes a table as a Parquet file."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="parquet",
    page="run.md",
    after="github",
    order=2,
    reporter="hookcli.capabilities.parquet.reporter:ParquetReporter",
    extra="parquet",
)
