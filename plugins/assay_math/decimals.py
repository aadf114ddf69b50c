"""When a written decimal stands for an exact value: it ends there, or it agrees to the digits that the policy asks.

Nothing is rounded absolutely: tiny and huge numbers are compared by their significant digits.
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

from assay_math.expression import Node
from assay_math.numeric import approximate

_NOISE_DIGITS = 14
"""Decimals with this many digits come from binary floating point, whose last digits are noise."""


class Decimal(NamedTuple):
    """A decimal as it was written."""

    value: Fraction
    places: int
    """Digits after the point (a scaled decimal, as in a percentage, has more)."""
    digits: int
    """Significant digits."""


def written_decimal(node: Node) -> Decimal | None:
    """The decimal that `node` is, through a sign or a percent sign; None for everything else."""
    if node.op == "number" and node.name:
        mantissa = node.name.lstrip("-+")
        digits = len(mantissa.replace(".", "").lstrip("0"))
        return Decimal(node.number, len(mantissa.partition(".")[2]), digits)
    if node.op == "negate":
        inner = written_decimal(node.args[0])
        return inner and Decimal(-inner.value, inner.places, inner.digits)
    if node.op == "percent":
        inner = written_decimal(node.args[0])
        return inner and Decimal(inner.value / 100, inner.places + 2, inner.digits)
    return None


def has_long_decimal(node: Node, digits: int) -> bool:
    """Whether some decimal inside `node` is written to at least that many significant digits."""
    return any((found := written_decimal(part)) is not None and found.digits >= digits for part in node.walk())


def rounds(exact: Node, rounded: Node) -> bool:
    """Whether `exact ~ rounded` writes one value twice: an expression and its rounding to the digits written.

    Two plain numbers are two answers, however near they are.
    """
    if exact.op == "number" or rounded.op not in ("number", "negate"):
        return False
    places = len(rounded.name.partition(".")[2]) if rounded.op == "number" else 0
    value, other = approximate(exact), approximate(rounded)
    if value is None or other is None or value.imag != 0:
        return False
    return bool(abs(value - other) <= 0.5000001 * 10.0**-places)


def terminates(value: Fraction) -> bool:
    """Whether the decimal expansion of `value` ends."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def agrees(decimal: Decimal, exact: Fraction | None, node: Node, *, digits: int) -> bool:
    """Whether `decimal` is a fair writing of the value of `node` (`exact` where that is rational), though not equal.

    With at least `digits` significant digits it must round or cut the value correctly at that digit. A value whose own
    expansion ends must be met exactly, but for the noise of binary floating point.
    """
    if decimal.digits < digits or not decimal.value:
        return False
    if exact is None:
        value = approximate(node)
        if value is None or value.imag != 0:
            return False
        exact = _fraction(value.real)
    elif terminates(exact):
        return decimal.digits >= _NOISE_DIGITS and abs(decimal.value - exact) <= abs(exact) / 10**12
    if exact * decimal.value <= 0:
        return False
    unit = Fraction(10) ** (_exponent(abs(exact)) - digits + 1)
    short = abs(exact) - abs(decimal.value)
    return -unit / 2 <= short < unit


def same_rounding(left: Decimal, right: Decimal, *, digits: int) -> bool:
    """Whether two different decimals are one value written to different lengths, the shorter long enough."""
    short, long = sorted((left, right), key=lambda decimal: decimal.places)
    if short.places == long.places or short.places < digits or short.digits < digits:
        return False
    return abs(short.value - long.value) < Fraction(1, 10**short.places)


def _exponent(value: Fraction) -> int:
    """floor(log10(value)) of a positive number."""
    guess = math.floor((value.numerator.bit_length() - value.denominator.bit_length()) * math.log10(2))
    while Fraction(10) ** guess > value:
        guess -= 1
    while Fraction(10) ** (guess + 1) <= value:
        guess += 1
    return guess


def _fraction(value: Any) -> Fraction:
    """An mpmath number as the exact fraction that it stands for."""
    sign, mantissa, exponent, _ = value._mpf_
    size = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -size if sign else size
