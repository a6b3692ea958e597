"""The payload of a record's page: matrices of modules by steps, figures over steps, and what the record lacks."""
