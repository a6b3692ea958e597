"""What its option takes."""

from hookcli.errors import UsageError


def require_number(value, plan):
    """Raise UsageError for what is not a number."""
    try:
        float(value)
    except ValueError:
        raise UsageError(f"--signs-above {value}: give a number") from None
