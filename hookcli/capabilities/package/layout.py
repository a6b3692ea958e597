"""The columns of a report on a package, apart from what makes it, which imports torch."""

from hookcli.table.columns import columns_named

COLUMNS = columns_named("module", "action", "rule", "size", "needed_by", "index")
