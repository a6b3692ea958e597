"""Sources: each turns a spec into a recipe for a model and its inputs."""
