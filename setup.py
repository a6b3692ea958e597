"""Builds the library of hookcli/tensors, which knows of neither Python nor PyTorch, and the wheel of a platform."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("hookcli/tensors")
FLAGS = {"msvc": ["/std:c++17", "/O2", "/EHsc"]}
OTHERS = ["-std=c++17", "-O3", "-g0", "-Wno-psabi", "-fvisibility=hidden", "-pthread"]


class BuildLibrary(build_ext):
    """Build a library that ctypes loads: one name for every Python, and no function for it to be imported by."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        ext.extra_compile_args = FLAGS.get(self.compiler.compiler_type, OTHERS)
        ext.extra_link_args = [] if self.compiler.compiler_type in FLAGS else ["-pthread"]
        super().build_extension(ext)


class PlatformWheel(bdist_wheel):
    """Name the wheel for any Python on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            "hookcli.tensors._sums",
            [str(FOLDER / "sums.cpp")],
            depends=[str(header) for header in FOLDER.glob("*.h")],
            language="c++",
            optional=True,  # without a compiler PyTorch's operators do the same, more slowly
        )
    ],
)
