"""Where models come from: a source turns a spec into a recipe for a model and its inputs."""
