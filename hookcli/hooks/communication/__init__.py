"""Communication hooks of DDP: PyTorch's by name, what they send, and the observer around one."""
