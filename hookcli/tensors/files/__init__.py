"""Tensors in files (safetensors, GGUF, PyTorch's checkpoints, folders), read in bounded memory."""
