"""Changes each module of a model in turn, and ranks the modules by what that changes."""
