"""A file per command; `common` holds what they share."""
