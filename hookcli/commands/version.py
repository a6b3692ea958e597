"""The text of `hookcli --version`, and of `hookcli --version --verbose`: what measures on this machine."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def version_text(*, verbose: bool) -> str:
    """The version; if `verbose`, also the versions of Python and torch, and the code that takes statistics."""
    lines = [f"hookcli {version('hookcli')}"]
    if verbose:
        import torch

        from hookcli.tensors import library

        lines += [
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
            f"torch {torch.__version__}, accelerator: {_accelerator()}",
            f"statistics on the CPU: {library.described()}",
            f"statistics on accelerators: {_on_accelerators()}",
        ]
    return "\n".join(lines) + "\n"


def _on_accelerators() -> str:
    for name in ("triton", "triton-windows", "pytorch-triton-rocm", "pytorch-triton-xpu"):
        try:
            return f"kernels of Triton {version(name)}"
        except PackageNotFoundError:
            continue
    return "PyTorch's operators (Triton is not installed)"


def _accelerator() -> str:
    import torch

    if not torch.accelerator.is_available():
        return "none"
    device = torch.accelerator.current_accelerator()
    return f"{torch.accelerator.device_count()} {device.type}" if device else "none"
