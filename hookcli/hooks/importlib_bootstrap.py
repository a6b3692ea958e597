"""The frames of hookcli that stand between a program and PyTorch. Warnings pass over them, and tracebacks lack them.

Python attributes a warning to the frame that `stacklevel` counts to, from the function that warns. It does not count
frames of files whose path contains "importlib" and "_bootstrap", as the frames of imports do (`_is_internal_frame` in
warnings.py). Hence the name of this file: the program's filters by module, and what it has warned of already, go by the
program's own line, as without hookcli. A frame takes itself out of the traceback of an error that passes through it.
Nothing else belongs here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ClassMethodDescriptorType
from typing import Any

Function = Callable[..., Any]


def latest(holder: object, name: str) -> Function:
    """A function that calls what `holder.name` is at that time."""

    def call(*args: object, **kwargs: object) -> object:
        try:
            return getattr(holder, name)(*args, **kwargs)
        except BaseException as error:
            leave(error)
            raise

    return call


def leave(error: BaseException) -> None:
    """Take the frame that has caught this error out of its traceback. To be called before a plain `raise`."""
    traceback = error.__traceback__
    error.__traceback__ = traceback.tb_next if traceback and traceback.tb_next else traceback


def call_of_class(method: ClassMethodDescriptorType, kind: type, *args: object, **kwargs: object) -> object:
    """Call a class method, as its class holds it, of the class that is given."""
    try:
        return method.__get__(None, kind)(*args, **kwargs)
    except BaseException as error:
        leave(error)
        raise


def between(begins: Function, over: Function) -> Callable[[Function], Function]:
    """Wrap a function: `begins` gets the arguments, and returns those to pass on, or None if the call does not matter.

    However a call ends that matters, `over` then gets its positional arguments.
    """

    def wrapper(original: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> object:
            passed_on = begins(*args, **kwargs)
            args, kwargs = passed_on or (args, kwargs)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave(error)
                raise
            finally:
                if passed_on is not None:
                    over(*args)

        return call

    return wrapper


def then(report: Function) -> Callable[[Function], Function]:
    """Wrap a function: once it has returned, call `report` with its result and its arguments."""

    def wrapper(original: Function) -> Function:
        def call(*args: object, **kwargs: object) -> object:
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                leave(error)
                raise
            report(result, *args, **kwargs)
            return result

        return call

    return wrapper
