"""The expressions and operators that an exported program may name."""

from __future__ import annotations

import pytest

from hookcli.sources.plain_program import _is_expression, _is_operator


@pytest.mark.parametrize(
    "text",
    [
        "Add(Mul(Integer(2), Symbol('s77', positive=True, integer=True)), Integer(1))",
        "Max(1, s0 - 2)",
        "4*Max(1, (s0 // 2))**2",
        "Pow(Symbol('u0', integer=True), Integer(-1))",
        "Ne(Mod(s0, 8), 0) | (s1 >= 2)",
        "Float('0.5', precision=53)",
        "Rational(1, 2)",
        "-int_oo",
    ],
)
def test_expressions_of_sizes_are_plain(text: str) -> None:
    assert _is_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "eval('1')",
            "sympify('1')",
            "preview(1)",
            "Symbol('a b')",
            "Symbol(s0, integer=eval)",
            "Integer('1')",
            "s0.x",
        ),
        *(
            "s0[0]",
            "[1]",
            "lambda: 1",
            "(s0 := 1)",
            "f'{1}'",
            "1 if s0 else 2",
            "Max(*s0)",
            "Max(a=1)",
            "'s0'",
            "1j",
            "...",
        ),
        *(
            "9**9**9",
            "2**s0",
            "LShift(1, 10**9)",
            "PowByNatural(2, 999999999)",
            "((9**99)**99)**99",
            "1e999",
            "s99999999",
        ),
        *(
            "Float('1e999', precision=53)",
            "Float('1', precision=9999999)",
            "\uff45val(1)",
            "1\n",
            "(" * 5000,
            "",
            "1; 2",
        ),
    ],
)
def test_other_expressions_are_not(text: str) -> None:
    assert not _is_expression(text)


def test_operators_are_those_of_tensors() -> None:
    for name in ("aten.add.Tensor", "aten.__and__.Scalar", "higher_order.cond", "prims.convert_element_type.default"):
        assert _is_operator(f"torch.ops.{name}"), name
    assert all(map(_is_operator, ("_operator.getitem", "math.trunc", "torch.sym_float", "torch.sym_max")))
    refused = """torch.os.system torch.load
    torch.ops.load_library torch.ops.import_module torch.ops.aten.from_file.default
    torch.ops.aten.__class__.mro torch.ops.aten.add.op torch.ops.image.write_file.default torch.ops.aten.add
    torch.ops.higher_order.call_torchbind torch.ops.higher_order.inductor_compiled_code _operator.methodcaller
    _operator.attrgetter math.__loader__.load_module #extension:x builtins.eval torch.hub.load
    torch.sym_float.__globals__     torch.ops.aten.save.default torch.ops.profiler._record_function_enter.default"""
    assert not [name for name in refused.split() if _is_operator(name)]
