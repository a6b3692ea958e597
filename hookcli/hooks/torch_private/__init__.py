"""PyTorch's private names that hooks and the layers above use, each with a public name, a fallback, and its loss.

`hookcli.tensors.torch_private` says how a name is looked up, and has those that tensors need.
"""
