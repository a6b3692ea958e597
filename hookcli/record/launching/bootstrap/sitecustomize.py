"""Starts recording in a program that `hookcli run` has started: Python imports this module when it starts.

`hookcli run` puts this folder first on PYTHONPATH. The module takes the folder off `sys.path`, waits until the program
has imported torch, and hands on to the user's own `sitecustomize`. It imports nothing that Python has not imported by
then: a script's own `json.py` must stay the one that is found. It also runs in Pythons without hookcli.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FOLDER = os.path.dirname(__file__)  # noqa: PTH120
_VARIABLE = "HOOKCLI_RUN"
_IMPORTLIB = "<frozen importlib._bootstrap>"  # the file of frames that Python leaves out of tracebacks
_ends: "list[Callable[[], object]]" = []


def _wait() -> None:
    """Call `_start` once torch is imported.

    Python's finder of built-in modules, which comes before the finders of files, looks for torch on behalf of the
    others, so that `sys.meta_path` stays as it is.
    """
    if "torch" in sys.modules:
        _start()
        return
    built_in: Any = sys.__spec__.loader
    find, attribute = built_in.find_spec, built_in.__dict__["find_spec"]

    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != "torch":
            return find(name, path, target)
        others = [finder for finder in sys.meta_path if finder is not built_in and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader: Any = spec and spec.loader

        def exec_module(module: "Any") -> None:
            del loader.exec_module
            loader.exec_module(module)
            built_in.find_spec = attribute
            _start()

        if loader is not None:
            exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTLIB)
            loader.exec_module = exec_module
        return spec

    built_in.find_spec = staticmethod(find_spec)


def _start() -> None:
    """Start recording; a failure is one line on stderr, and the program continues."""
    text = os.environ.get(_VARIABLE)
    if text is None:
        return
    run: Any = None
    try:
        import json

        run = json.loads(text)
        _load(run)
        from hookcli.record.process_recording import start

        _ends.append(start(run))
    except Exception as error:
        without = isinstance(error, ModuleNotFoundError) and error.name == "hookcli"
        why = "has no hookcli" if without else f"can't record ({type(error).__name__}: {error})"
        _say(f"warning: {sys.executable} {why}: what it runs is not recorded")
        record = run["record"] if run and run.get("reserved") and _is_program(text) else ""
        if os.path.isfile(record) and os.path.getsize(record) == 0:  # noqa: PTH113, PTH202
            os.remove(record)  # noqa: PTH107


def _is_program(text: str) -> bool:
    """Tell whether this is the process that `hookcli run` started, without importing json."""
    return f'"process": {os.getpid()},' in text


def _load(run: "Any") -> None:
    """Load hookcli from where `hookcli run` has it, if this is the same Python: it may not be on `sys.path`."""
    if "hookcli" in sys.modules or run["python"] != [sys.prefix, *sys.version_info[:2]]:
        return
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("hookcli", run["package"])  # another word
    assert spec is not None and spec.loader is not None
    sys.modules["hookcli"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hookcli"])


def _end() -> None:
    """End the record when Python ends; say so if the program has never imported torch."""
    text = os.environ.get(_VARIABLE, "")
    if _ends:
        _ends[0]()
    elif _is_program(text) and "torch" not in sys.modules:
        try:
            import json

            run = json.loads(text)
            _load(run)
            from hookcli.record.process_recording import end_without_torch

            end_without_torch(run)
        except BaseException:  # all that is lost is a remark; a `json.py` of the program may raise SystemExit
            return


def _say(text: str) -> None:
    if sys.__stderr__ is not None:
        sys.__stderr__.write("hookcli: " + text + "\n")
        sys.__stderr__.flush()


if _FOLDER in sys.path:
    sys.path.remove(_FOLDER)
    sys.path_importer_cache.pop(_FOLDER, None)
    if _VARIABLE in os.environ:  # a launcher may hand on PYTHONPATH alone
        import atexit  # built into Python

        atexit.register(_end)  # before the program's own, so that it is called after them
        _wait()
    # The user's own, if there is one; else the error that Python expects, which takes this module off `sys.modules`.
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
