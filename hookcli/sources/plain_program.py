"""Copies an exported program without anything in its file that could run code.

`torch.export.load` unpickles objects, evaluates expressions (sympy), imports modules that tree specs name, calls any
function below `torch` that a node names, loads compiled libraries, and generates Python from the names in the file. It
has no safe mode, so it gets a new archive here, made of the known members alone, with every text in them checked
against what `torch.export.save` writes. Pickles are copied as they are: they have to be loaded
with `weights_only=True`.
"""

from __future__ import annotations

import ast
import json
import math
import re
import shutil
import zipfile
from collections.abc import Callable
from typing import IO, Any

import torch

from hookcli.errors import shortened
from hookcli.hooks.torch_private.overrides import OpOverload
from hookcli.sources.archive import root_of
from hookcli.system.files import member

PROGRAM = "models/model.json"
_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|models/model\.json"
    r"|data/sample_inputs/model\.pt|data/(weights|constants)/(model\.pt|model_\w+_config\.json|(weight|tensor)_\d+)"
)
_OPERATOR = re.compile(r"torch\.ops\.(aten|prims|quantized|_quantized|quantized_decomposed|torchvision)\.(\w+)\.(\w+)")
_REFUSED = {"from_file", "save", "_print", "warn"}  # of aten: these read and write files, and the report's stream
_FUNCTION = re.compile(
    r"math\.(ceil|floor|trunc)|torch\.(sym_(int|float|ite|max|min|not|sqrt|sum)|_C\._set_grad_enabled)"
    r"|_operator\.(getitem|add|mul|sub|truediv|ge|le|gt|lt|eq|ne|floordiv|mod|and_|or_|not_|pow|neg|pos|abs|lshift|rshift)"
    r"|torch\._functorch\.predispatch\._(add_batch_dim|remove_batch_dim|\w+crement_nesting|\w+_dual(_level)?)"
    r"|torch\._functorch\.predispatch\.lazy_load_decompositions"
    r"|torch\.ops\.higher_order\.(associative_scan|auto_functionalized(_v2)?|cond|flex_attention|hints_wrapper"
    r"|invoke_subgraph|map_impl|out_dtype|scan|strict_mode|switch|tag_activation_checkpoint|while_loop"
    r"|wrap|wrap_activation_checkpoint|wrap_with_autocast|wrap_with_set_grad_enabled)"
)
_SYMBOL = re.compile(r"[a-z][a-z_]*[0-9]{1,6}")
_CONSTANTS = {"true", "false", "oo", "int_oo"}
_NAMES = """
Symbol Integer Rational Float Add Mul Pow Max Min Mod floor ceiling Abs Eq Ne Lt Le Gt Ge Equality Unequality
StrictLessThan LessThan StrictGreaterThan GreaterThan And Or Not FloorDiv ModularIndexing Where PythonMod CleanDiv
CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow FloatTrueDiv IntTrueDiv TruncToFloat TruncToInt
RoundToInt RoundDecimal ToFloat Identity IsNonOverlappingAndDenseIndicator
"""
_FUNCTIONS = frozenset(_NAMES.split())
_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
_GROWING = {"Pow", "PowByNatural", "FloatPow", "LShift"}
_BITS = 100_000  # of a number that sympy may have to write out; sizes have 64
_LONGEST = 20_000  # characters of an expression


class NotPlainError(ValueError):
    """A program's file holds something that could run code."""


def write_plain(archive: zipfile.ZipFile, target: IO[bytes]) -> None:
    """Write the program in an archive, with its weights and example input, to another file.

    Raises NotPlainError, or whatever the json and zipfile modules raise for a damaged file.
    """
    root = root_of(archive)
    copied = set()
    with zipfile.ZipFile(target, "w") as plain:
        for item in archive.infolist():
            name = item.filename.removeprefix(root)
            if not item.filename.startswith(root) or not _MEMBERS.fullmatch(name):
                continue
            if name in copied or item.compress_type != zipfile.ZIP_STORED:
                raise NotPlainError(
                    f"{name} is {'there twice' if name in copied else 'compressed'}, unlike torch.export.save's"
                )
            copied.add(name)
            with archive.open(item) as source, plain.open(f"program/{name}", "w", force_zip64=True) as copy:
                if name.endswith(".json"):
                    copy.write(json.dumps(_checked(json.loads(member(archive, item.filename)))).encode())
                else:
                    shutil.copyfileobj(source, copy, 1 << 20)


def _checked(value: object, key: str = "") -> object:
    """A JSON value of which every text is as `torch.export.save` writes it under this key. Raises NotPlainError."""
    if isinstance(value, str):
        accepts = _RULES.get(key, _is_text)
        if not accepts(value):
            raise NotPlainError(f"{key or 'a name'} {shortened(value, 80)!r}")
    if isinstance(value, list):
        # The guards are Python code, which an unflattened program never runs.
        return [] if key == "guards_code" else [_checked(item, key) for item in value]
    if not isinstance(value, dict):
        return value
    if key == "metadata" and all(isinstance(item, str) for item in value.values()):  # else a tensor of that name
        value = {name: item for name, item in value.items() if name == "nn_module_stack"}
    for name in value:
        if not _is_text(name) or (key == "range_constraints" and not _SYMBOL.fullmatch(name)):
            raise NotPlainError(f"{key or 'a name'} {shortened(name, 80)!r}")
    return {name: _checked(item, name) for name, item in value.items()}


def _is_text(text: str) -> bool:
    """True for a text that stays within the quotes that PyTorch puts around it in generated code."""
    return text.isprintable() and not {'"', "\\"} & set(text)


def _is_operator(text: str) -> bool:
    """True for PyTorch's operators on tensors, and for the functions that torch.export puts into graphs."""
    if not (named := _OPERATOR.fullmatch(text)):
        return _FUNCTION.fullmatch(text) is not None
    namespace, operator, overload = named.groups()
    resolved = getattr(getattr(getattr(torch.ops, namespace), operator, None), overload, None)
    return operator not in _REFUSED and (resolved is None or isinstance(resolved, OpOverload))


def _is_plain_tree(node: Any) -> bool:
    """True for the structure of arguments without a type that PyTorch would import."""
    kind, context = node["type"], node["context"]
    if kind == "collections.defaultdict":
        factory = context["default_factory_name"]
        plain = context["default_factory_module"] == "builtins" and factory in ("list", "dict", "int", "float", "set")
    elif context is None or kind == "collections.namedtuple":
        plain = isinstance(context, str | None)
    else:
        plain = isinstance(context, str) and _has_no_object(json.loads(context))
    return plain and all(map(_is_plain_tree, node["children_spec"]))


def _has_no_object(value: object) -> bool:
    """True for JSON without `{}`, by which tree specs name enums."""
    return all(map(_has_no_object, value)) if isinstance(value, list) else not isinstance(value, dict)


def _is_expression(text: str) -> bool:
    """True for arithmetic with symbols, as sympy's `srepr` and `str` write it."""
    if len(text) > _LONGEST or not text.isascii() or not text.isprintable():
        return False
    try:
        return _bits(ast.parse(text, mode="eval").body) <= _BITS
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _bits(node: ast.expr) -> float:
    """An upper bound of the binary digits of an expression's value. Raises ValueError for what is not arithmetic."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return math.log2(abs(value) + 2)  # infinite for an infinite one
        case ast.Name(id=name) if name in _CONSTANTS or _SYMBOL.fullmatch(name):
            return 64
        case ast.Call(ast.Name(id="Symbol"), [ast.Constant(value=str() as name)], keywords) if _SYMBOL.fullmatch(name):
            return _settings(keywords, 64)
        case ast.Call(ast.Name(id="Float"), [ast.Constant(value=str() as value)], keywords):
            return _settings(keywords, math.log2(abs(float(value)) + 2))
        case ast.Call(ast.Name(id=name), args, []) if name in _FUNCTIONS:
            return _grown(*args) if name in _GROWING else sum(map(_bits, args))
        case ast.BinOp(left, ast.Pow() | ast.LShift(), right):
            return _grown(left, right)
        case ast.BinOp(left, operator, right) if isinstance(operator, _OPERATIONS):
            return _bits(left) + _bits(right)
        case ast.UnaryOp(operand=operand):
            return _bits(operand)
        case ast.Compare(left, comparators=others):
            return sum(map(_bits, (left, *others)))
    raise ValueError


def _grown(base: ast.expr, exponent: ast.expr) -> float:
    """The bound for a power or a shift, whose exponent has to be a number."""
    return _bits(base) * abs(_number(exponent))


def _number(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value=int() | float() as value)):
            return value
        case ast.Call(ast.Name(id="Integer" | "Float"), [number], []):
            return _number(number)
        case ast.Call(ast.Name(id="Rational"), [numerator, denominator], []):
            return _number(numerator) / max(1, _number(denominator))
    raise ValueError


def _settings(keywords: list[ast.keyword], bits: float) -> float:
    """`bits`, if all keywords are assumptions (`integer=True`) or a precision that numbers have."""
    for keyword in keywords:
        if not isinstance(keyword.value, ast.Constant) or keyword.value.value not in (True, False, 24, 53):
            raise ValueError
    return bits


_RULES: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(
        ("name", "as_name", "user_input_name", "forward_arg_names"), lambda text: not text or text.isidentifier()
    ),
    **dict.fromkeys(("target", "as_operator"), _is_operator),
    **dict.fromkeys(
        ("in_spec", "out_spec"), lambda text: len(spec := json.loads(text)) == 2 and _is_plain_tree(spec[1])
    ),
    **dict.fromkeys(("as_string", "as_strings"), lambda text: True),  # an argument's value, which is quoted
    "expr_str": _is_expression,
    "path_name": lambda text: re.fullmatch(r"(weight|tensor)_\d+", text) is not None,
    "class_fqn": lambda text: False,  # of an object of TorchScript, which runs its own code when it is unpickled
}
"""The texts that are allowed under a key; others are names, which get into generated code."""
