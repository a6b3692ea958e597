"""Memory that kernels use inside of themselves, and the layouts that they give their results."""
