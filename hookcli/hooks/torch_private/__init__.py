"""PyTorch's private names for hooks and higher layers. Each gets a public name, a fallback, and a note of its loss.

See `hookcli.tensors.torch_private` for how names are looked up, and for the names that tensors need.
"""
