"""Figures of tensors on accelerators: by Triton's kernels where it can compile them, else by PyTorch's operators."""
