"""Every place in hookcli where a library loads a file, or where code is run that was found by its name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from parsed import OF_SOURCES, nodes

import hookcli

pytestmark = OF_SOURCES
HERE = Path(hookcli.__file__).parent
NAMES = """
load load_file safe_open from_pretrained from_config create_model hf_hub_download load_state_dict_from_url
load_pickle PackageImporter load_library CDLL Unpickler loads import_module __import__ exec_module run_path
run_module eval exec sympify parse_expr Popen popen system check_output check_call execv execve execvp
posix_spawn
load_inline load_module unsafe_load full_load Environment
"""
LOADERS = frozenset(NAMES.split())
MODULES = ("subprocess", "webbrowser", "runpy", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml")
"""Modules of which any use counts."""
OURS = frozenset(
    (
        "json.loads",
        "tomllib.loads",
        "tl.load",
        "platform.system",
        "plugin.load",
        "own.load",
        "other.load",
        "reader.load",
    )
)
"""Parsers of plain data, Triton's loads from memory, installed plugins, an option, a dump's tensors."""

PLAIN = """
sources/data/tensor_files.py: np.load(array, allow_pickle=False)
sources/data/tensor_files.py: np.load(opened, allow_pickle=False)
sources/data/tensor_files.py: torch.load(files.regular(file), map_location='cpu', weights_only=True)
sources/data/tensor_files.py: load_file(files.regular(file))
sources/torchvision.py: torch.load(regular(file), map_location='cpu', weights_only=True)
sources/state_dicts.py: load_file(files.regular(file))
tensors/files/pytorch.py: torch.load(regular(file), map_location='cpu', weights_only=True, mmap=mapped)
tensors/files/dump_reader.py: safe_open(regular(path, self.folder), framework='pt')
tensors/files/torchscript.py: pickle.Unpickler
tensors/files/torchscript.py: _Reader(archive, f'{root}data/', bytes_, member(archive, f'{root}data.pkl')).load()
tensors/files/torchscript.py: _Reader(archive, f'{root}constants/', bytes_, member(archive, root + CONSTANTS)).load()
sources/libraries.py: hub.hf_hub_download(name, CONFIG, revision=revision or None)
sources/timm.py: timm.create_model(name, pretrained=bool(weights), pretrained_cfg_overlay=overlay, **args)
sources/libraries.py: transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
sources/huggingface.py: library.AutoImageProcessor.from_pretrained(folder, local_files_only=True, \
trust_remote_code=False)
sources/huggingface.py: model_class.from_pretrained(place.folder, config=config, local_files_only=True, \
output_loading_info=True, trust_remote_code=False, weights_only=True)
"""
"""Files of others, with the argument that keeps them from running code."""

TRUSTED = """
sources/exported.py: torch.export.load(source)
capabilities/package/source.py: PackageImporter(regular(archive.path)).load_pickle(package.replace('/', '.'), name, \
map_location='cpu')
capabilities/package/source.py: PackageImporter(regular(archive.path))
"""
"""These run code: they get a plain copy of the file, or one that `trust` was given for (see their tests)."""

NAMED = """
__init__.py: import_module(f'hookcli.{_HOMES[name]}')
commands/app.py: import_module(MODULES[name])
commands/schema.py: import_module(module)
registry/capability.py: import_module(name)
registry/capability.py: import_module(f'hookcli.capabilities.{name}')
registry/capability.py: entry.load()
registry/__init__.py: find(kind, name).load()
reporters/base.py: import_module(module)
sources/catalog/__init__.py: import_module(_SCANS[source])
sources/libraries.py: import_module(name)
hooks/torch_private/looked_programs.py: import_module(_EVAL_FRAME)
hooks/torch_private/looked_programs.py: import_module(_EVAL_FRAME)
hooks/torch_private/looked_programs.py: import_module(_EVAL_FRAME)
hooks/torch_private/dynamo.py: import_module(_UTILS)
hooks/torch_private/dynamo.py: import_module(_UTILS)
tensors/torch_private.py: import_module(so_far)
tensors/torch_private.py: import_module(so_far)
commands/plugins.py: load
capabilities/package/rules.py: import_module(name)
system/importing.py: spec.loader.exec_module
system/importing.py: import_module
system/importing.py: import_module
capabilities/rules/actions.py: subprocess.run([*line, *then.command], env=environment, stdin=subprocess.DEVNULL, \
start_new_session=True)
record/launching/bootstrap/sitecustomize.py: exec_module
record/launching/bootstrap/sitecustomize.py: exec_module
record/launching/bootstrap/sitecustomize.py: exec_module
record/launching/bootstrap/sitecustomize.py: loader.exec_module(module)
record/launching/bootstrap/sitecustomize.py: spec.loader.exec_module(sys.modules['hookcli'])
"""
"""Modules by name: hookcli's and PyTorch's, plugins that someone installed, what a command line names, the script's."""

OWN = """
cli.py: exec('')
record/process_recording.py: exec('raise KeyboardInterrupt')
capabilities/keep_bad/module_source.py: eval(expression, {'torch': torch})
tensors/random_state.py: pickle.loads(states.numpy)
hooks/native/build.py: torch.ops.load_library(_library(on_build))
hooks/native/build.py: cpp_extension.load(_NAME, [str(SOURCES[0])], extra_cflags=list(FLAGS), \
build_directory=str(folder), is_python_module=False)
hooks/native/build.py: subprocess.Popen(command, start_new_session=True, **settings)
system/stdout.py: sys.modules['ctypes'].CDLL(None)
tensors/library.py: ctypes.CDLL
tensors/library.py: ctypes.CDLL(str(file))
tensors/library.py: ctypes.CDLL(str(Path(torch.__file__).with_name('lib') / 'libtorch_cpu.so'))
tensors/library.py: ctypes.CDLL(None)
commands/report_file.py: webbrowser.open(address)
reporters/digraph.py: subprocess.run(['dot', f'-T{form}'], input=self.source.encode(), capture_output=True, check=False)
"""
"""What hookcli, or the program that it runs in, has made itself: no file of others is involved."""


def loads(source: str) -> Iterator[str]:
    """The calls of loaders in a source, and the places where one is handed on without being called."""
    called = {id(node.func): node for node in nodes(source) if isinstance(node, ast.Call)}
    ours = {alias.asname or alias.name for node in nodes(source) for alias in _imported_from_hookcli(node)}
    for node in nodes(source):
        call = called.get(id(node), node)
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MODULES and name.islower():
                yield ast.unparse(call)
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()) if name in LOADERS:
                if (
                    ast.unparse(node) not in OURS
                    and ast.unparse(node).partition(".")[0] not in ours
                    and not _fixed(call)
                ):
                    yield ast.unparse(call)


def _imported_from_hookcli(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hookcli") else []


def _fixed(node: ast.AST) -> bool:
    """True for the import of a module whose name stands in the source."""
    return ast.unparse(node).startswith("import_module('") and isinstance(node, ast.Call) and len(node.args) == 1


def test_nothing_loads_a_file_or_runs_code_that_is_not_listed_here() -> None:
    found = Counter(
        f"{file.relative_to(HERE).as_posix()}: {text}"
        for file in HERE.rglob("*.py")
        for text in loads(file.read_text("utf-8"))
        if not text.startswith("self.") and text != "load(file)" and text != "load()"  # of that file
    )
    listed = Counter("\n".join((PLAIN, TRUSTED, NAMED, OWN)).split("\n"))
    del listed[""]
    new, gone = found - listed, listed - found
    assert not new, f"say here why this is safe, or make it so: {list(new)}"
    assert not gone, f"no longer there, or without its safe argument: {list(gone)}"


def test_a_new_one_and_a_lost_argument_are_seen() -> None:
    for source in (
        "import torch\ntorch.load(f, map_location='cpu')",
        "from numpy import load\nload(f, allow_pickle=True)",
        "partial(library.AutoModel.from_pretrained, folder)",
        "import pickle\npickle.Unpickler(f)",
        "import_module(name)",
        "import subprocess\nsubprocess.run(['x'])",
        "getattr(x, 'y').exec_module(z)",
        "eval(text)",
    ):
        assert list(loads(source)), source
    for source in (
        "import json\njson.loads(x)",
        "import_module('torch')",
        "from hookcli.registry import load\nload('a')",
    ):
        assert not list(loads(source)), source
