"""What the check reads."""

from hookcli.table import Report, columns_named


def count(subject):
    """The number of zeros among the parameters."""
    zeros = sum(int((p == 0).sum()) for p in subject.run.model.parameters())
    return Report("zeros", subject.run.name, columns_named("fqn"), [], totals={"zeros": zeros})
