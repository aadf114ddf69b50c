"""Equations and inequalities as relations: two are the same when one is a constant multiple of the other."""

from fractions import Fraction

from assay_math import algebra, numeric
from assay_math.decisions import Decision, different, equal
from assay_math.expression import Node, negate
from assay_math.polynomials import Monomial, Polynomial, Ratio, TooCostlyError, UndefinedError, multiply, subtract

MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""Comparison signs seen from the other side."""


def proportion(gold: Node, answer: Node) -> Fraction | Decision:
    """The constant that the two differences (left minus right) are multiples by, or the decision without one."""
    try:
        one, two = (algebra.form(Node("add", (side.args[0], negate(side.args[1])))) for side in (gold, answer))
    except (TooCostlyError, UndefinedError) as error:
        return Decision("costly", f"cost gate: {error}")
    if not one.ratio.top or not two.ratio.top:
        return equal("both hold always") if one.ratio.top == two.ratio.top else different("one holds always")
    left, right = one.ratio.top, two.ratio.top
    if "opaque" in one.kinds | two.kinds and set(left) != set(right):
        return _by_numbers(gold, answer)
    key = min(left)
    if set(left) == set(right):
        factor = left[key] / right[key]
        if all(left[monomial] == factor * right[monomial] for monomial in left):
            return factor
    return _constant_multiple(one, two)


def _by_numbers(gold: Node, answer: Node) -> Fraction | Decision:
    """Equations with functions in them: one constant factor at every point, or nothing is decided."""
    one, two = (Node("add", (side.args[0], negate(side.args[1]))) for side in (gold, answer))
    if gold.name == answer.name == "=" and numeric.proportional(one, two):
        return equal("equations that are multiples of each other at every point")
    if numeric.agree(one, two).outcome == "equal":
        return Fraction(1)
    return Decision("costly", "equations beyond exact algebra")


def _constant_multiple(one: algebra.Form, two: algebra.Form) -> Fraction | Decision:
    """A factor with square roots in it: tested by the ratio of two coefficients of the same variables."""
    sides: list[dict[Monomial, Polynomial]] = []
    for side in (one, two):
        table: dict[Monomial, Polynomial] = {}
        for monomial, coefficient in side.ratio.top.items():
            outer = tuple(item for item in monomial if item[0].startswith("n:"))
            inner = tuple(item for item in monomial if not item[0].startswith("n:"))
            table.setdefault(outer, {})[inner] = coefficient
        sides.append(table)
    left, right = sides
    if set(left) != set(right) or (len(left) == 1 and () in left):
        return different("equations with different solutions")
    key = min(left)
    unit: Polynomial = {(): Fraction(1)}
    for monomial in left:
        cross = subtract(
            multiply(Ratio(left[monomial], unit), Ratio(right[key], unit)),
            multiply(Ratio(right[monomial], unit), Ratio(left[key], unit)),
        )
        if cross.top:
            return different("equations with different solutions")
    return Fraction(1)
