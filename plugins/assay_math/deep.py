"""The worker's side of the math verifier: sympy through latex2sympy2_extended, run only in a killable process.

`equivalent` is a pure function of JSON. It builds expressions with a LaTeX grammar and never passes text to `eval`,
`sympify` or `parse_expr`. The process's budget bounds it; math-verify's own alarm-based timeouts are never used.
"""

# sympy and latex2sympy2_extended ship partial types only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from typing import Any, cast

import sympy
from latex2sympy2_extended import latex2sympy
from math_verify import parse, verify
from pydantic import JsonValue

# The grammar's tables are built at the first use, which belongs to the worker's start and not to an item's budget.
latex2sympy("\\frac{1}{2}+x^{2}")

_POINTS = ("7/10", "23/10", "-13/10", "41/10")


def equivalent(payload: JsonValue) -> JsonValue:
    """Whether `payload["answer"]` equals `payload["gold"]`: outcome `equal`, `different` or `unknown`, and the rule."""
    assert isinstance(payload, dict)
    gold, answer = str(payload["gold"]), str(payload["answer"])
    sides: list[Any] = []
    for name, text in (("gold", gold), ("answer", answer)):
        try:
            sides.append(latex2sympy(text))
        except Exception as error:  # a grammar of another project raises what it likes on bad input
            return {
                "outcome": "unknown",
                "rule": f"the {name} cannot be read by sympy's grammar: {type(error).__name__}",
            }
    return _compared(*sides)


def _compared(gold: Any, answer: Any) -> JsonValue:
    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        same = type(gold) is type(answer) and gold == answer
        return (
            {"outcome": "equal", "rule": "sympy: the same structure"}
            if same
            else _unknown("sympy: not two expressions")
        )
    gold, answer = gold.doit(), answer.doit()
    difference = gold - answer
    if difference == 0:
        return {"outcome": "equal", "rule": "sympy: zero difference"}
    symbols = sorted(difference.free_symbols, key=str)
    values: list[Any] = []
    for shift in range(len(_POINTS)):
        point = {
            s: sympy.Rational(_POINTS[(shift + k) % len(_POINTS)]) + sympy.Rational(k, 7) for k, s in enumerate(symbols)
        }
        value = difference.subs(point).evalf(30)
        if value.is_number and value.is_finite:
            scale = max(1, abs(gold.subs(point).evalf(15))) if gold.subs(point).evalf(15).is_finite else 1
            values.append(abs(value) / scale)
    if any(value > sympy.Rational(1, 10**12) for value in values):
        return {"outcome": "different", "rule": "sympy: different values at a point"}
    if sympy.simplify(difference) == 0:
        return {"outcome": "equal", "rule": "sympy: the difference simplifies to zero"}
    if len(values) >= 3:
        return {"outcome": "equal", "rule": f"sympy: equal to 12 digits at {len(values)} points"}
    return _unknown("sympy: no proof either way")


def _unknown(rule: str) -> JsonValue:
    return {"outcome": "unknown", "rule": rule}


def second_opinion(payload: JsonValue) -> JsonValue:
    """math-verify's own verdict on a response, the gold in a box: outcome `equal`, `different` or `unknown`."""
    assert isinstance(payload, dict)
    # The signature says int; None is how its documentation turns the alarm off.
    no_alarm = cast("int", None)
    gold = parse(f"\\boxed{{{payload['gold']}}}", parsing_timeout=no_alarm)
    if not gold:
        return {"outcome": "bad_gold", "rule": "math-verify cannot read the gold"}
    answer = parse(str(payload["answer"]), parsing_timeout=no_alarm)
    if not answer:
        return _unknown("math-verify finds no answer")
    right = verify(gold, answer, timeout_seconds=None)
    return {
        "outcome": "equal" if right else "different",
        "rule": "math-verify's verdict",
        "answer": str(answer[-1])[:500],
    }
