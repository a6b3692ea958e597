"""Small scripts, each for one thing that scripts see, do, or end by."""

from __future__ import annotations

SCRIPTS = {
    "names": """
        '''A doc.'''
        import sys, __main__
        import builtins
        x: int = 3
        print(__name__, __doc__, __file__, __spec__, __package__, type(__loader__), __cached__, __annotations__)
        print(list(globals()), __builtins__ is builtins, __main__, __main__.x)
        print(sys.argv, sys.orig_argv, sys.path, sys.excepthook, sys.displayhook, sys.exc_info())
        """,
    "stdin": "import sys; print(input(), sys.stdin.read(), sys.stdin.isatty())",
    "future annotations are not ours": "def f(x: 1 + 1): pass\nprint(f.__annotations__)",
    "types": """
        from __future__ import annotations
        import inspect, pickle, typing
        from dataclasses import dataclass
        @dataclass
        class Config:
            size: Size = 3
        Size = int
        print(pickle.loads(pickle.dumps(Config(4))), typing.get_type_hints(Config), inspect.getsource(Config))
        print(inspect.getmodule(Config), Config.__module__)
        """,
    "recursion": "def f(n):\n    return f(n + 1)\nf(0)",
    "deep recursion": """
        import sys
        def depth(n):
            try:
                return depth(n + 1)
            except RecursionError:
                return n
        print(depth(0))
        """,
    "chained": """
        def f():
            raise ValueError("a")
        try:
            try:
                f()
            except ValueError as error:
                raise KeyError("b") from error
        except KeyError:
            f()
        """,
    "group": """
        def f(n):
            raise ValueError(n)
        errors = []
        for n in range(2):
            try:
                f(n)
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup("two", errors)
        """,
    "notes": "error = OSError(2, 'no', 'f')\nerror.add_note('a note')\nraise error",
    "str fails": "class E(Exception):\n    def __str__(self):\n        1 / 0\nraise E",
    "base exception": "class E(BaseException): pass\nraise E('x')",
    "imports a broken module": "import broken",
    "imports nothing": "import nothing_of_that_name",
    "syntax": "print(1)\nfoo bar",
    "indentation": "if 1:\n  x\n\ty",
    "warnings": "import warnings; warnings.warn('old', DeprecationWarning); warnings.warn('hm')",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print(a[:2], a[2].tb_frame.f_code.co_filename)\n1 / 0",
    "excepthook fails": "import sys\ndef hook(*a):\n    {}['x']\nsys.excepthook = hook\n1 / 0",
    "excepthook exits": "import sys\nsys.excepthook = lambda *a: sys.exit(7)\n1 / 0",
    "no excepthook": "import sys\ndel sys.excepthook\n1 / 0",
    "last value": "import atexit, sys\natexit.register(lambda: print(repr(sys.last_value)))\n1 / 0",
    "no stderr": "import sys\nsys.stderr = None\n1 / 0",
    "closed stdout": "import sys\nprint('x')\nsys.stdout.close()",
    "exit 3": "import sys; sys.exit(3)",
    "exit none": "import sys; sys.exit()",
    "exit text": "import sys; print('out'); sys.exit('text')",
    "exit true": "import sys; sys.exit(True)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit 256": "import sys; sys.exit(256)",
    "exit huge": "import sys; sys.exit(2 ** 70)",
    "exit float": "import sys; sys.exit(1.5)",
    "exit tuple": "import sys; sys.exit((1, 2))",
    "exit subclass": "class E(SystemExit): pass\nraise E(4)",
    "exit builtin": "exit(5)",
    "os._exit": "import os; print('lost'); os._exit(5)",
    "interrupt": "raise KeyboardInterrupt",
    "interrupt subclass": "class K(KeyboardInterrupt): pass\nraise K",
    "SIGINT": "import os, signal, atexit; atexit.register(print, 'bye'); os.kill(os.getpid(), signal.SIGINT)",
    "SIGTERM": "import os, signal; print(signal.getsignal(2)); os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os; os.abort()",
    "the end": """
        import atexit, threading, time
        class Last:
            def __del__(self):
                print("del", time is not None)
        last = Last()
        def later():
            time.sleep(0.1)
            print("thread")
        threading.Thread(target=later).start()
        atexit.register(print, "atexit")
        print("main")
        """,
    "executor left open": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        pool.submit(print, "worked")
        """,
    "threads": """
        import sys, threading
        for target in (lambda: sys.exit(3), lambda: 1 / 0):
            thread = threading.Thread(target=target, name="t")
            thread.start()
            thread.join()
        print(threading.current_thread() is threading.main_thread())
        """,
    "unraisable": "class A:\n    def __repr__(self): return 'A'\n    def __del__(self): 1 / 0\nA()\nprint('on')",
    "fork": """
        import atexit, os, sys
        atexit.register(print, "bye")
        child = os.fork()
        if child == 0:
            print("child")
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    "fork to the end": """
        import os
        child = os.fork()
        print("child" if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    "fork fails": """
        import os
        child = os.fork()
        if child == 0:
            1 / 0
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    "chdir, then a traceback": "import os\nos.chdir('/')\n1 / 0",
    "deletes its folder": "import os\nos.mkdir('x')\nos.chdir('x')\nos.rmdir('../x')\n1 / 0",
    "empty": "",
}
