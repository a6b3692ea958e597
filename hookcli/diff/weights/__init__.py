"""A comparison of tensors at rest: two files or folders, tensor by tensor."""
