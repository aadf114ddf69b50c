"""Polynomials and their quotients over the rationals, in named generators that are reduced exactly."""

import math
from fractions import Fraction
from typing import NamedTuple

Monomial = tuple[tuple[str, int], ...]
Polynomial = dict[Monomial, Fraction]

MAX_BITS = 20_000
"""Longest integer that is written out, in bits (about 6,000 digits)."""
MAX_TERMS = 500
MAX_PRODUCT = 2_500
MAX_POWER = 400
UNIT: Polynomial = {(): Fraction(1)}


class TooCostlyError(Exception):
    """The cost gate: writing this out would take more than the exact layers may spend."""


class UndefinedError(Exception):
    """The expression has no value (a division by zero)."""


class Ratio(NamedTuple):
    """A quotient of two polynomials; the denominator is never the zero polynomial."""

    top: Polynomial
    bottom: Polynomial

    @property
    def rational(self) -> Fraction | None:
        """The value, where it is a rational number."""
        if self.bottom == UNIT and (not self.top or (len(self.top) == 1 and () in self.top)):
            return self.top.get((), Fraction(0))
        return None


def add_polynomials(left: Polynomial, right: Polynomial) -> Polynomial:
    """The sum; raises `TooCostlyError` past `MAX_TERMS`."""
    result = dict(left)
    for monomial, coefficient in right.items():
        total = result.get(monomial, 0) + coefficient
        if total:
            result[monomial] = Fraction(total)
        else:
            del result[monomial]
    if len(result) > MAX_TERMS:
        raise TooCostlyError(f"more than {MAX_TERMS} terms")
    return result


def scale(polynomial: Polynomial, factor: Fraction) -> Polynomial:
    """`polynomial` times a rational number."""
    return {monomial: coefficient * factor for monomial, coefficient in polynomial.items()} if factor else {}


def times(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product, reduced; raises `TooCostlyError` past `MAX_PRODUCT` or `MAX_TERMS`."""
    if left == UNIT:
        return right
    if right == UNIT:
        return left
    if len(left) * len(right) > MAX_PRODUCT:
        raise TooCostlyError(f"a product of {len(left)} by {len(right)} terms")
    result: Polynomial = {}
    for one, a in left.items():
        for two, b in right.items():
            coefficient = a * b
            monomial = one or two
            if one and two:
                coefficient, monomial = _merge(one, two, coefficient)
            total = result.get(monomial, 0) + coefficient
            if total:
                result[monomial] = total
            else:
                result.pop(monomial, None)
    if len(result) > MAX_TERMS:
        raise TooCostlyError(f"more than {MAX_TERMS} terms")
    return result


def _merge(one: Monomial, two: Monomial, coefficient: Fraction) -> tuple[Fraction, Monomial]:
    powers = dict(one)
    for name, exponent in two:
        powers[name] = powers.get(name, 0) + exponent
    for name, exponent in list(powers.items()):
        if name == "i" and exponent > 1:
            if exponent % 4 in (2, 3):
                coefficient = -coefficient
            powers[name] = exponent % 2
        elif name[0] == "√" and exponent > 1 and name[1:].isdigit():
            coefficient *= int(name[1:]) ** (exponent // 2)
            powers[name] = exponent % 2
    return coefficient, tuple(sorted((name, exponent) for name, exponent in powers.items() if exponent))


def bits(value: Fraction) -> int:
    """Length of the longer of numerator and denominator."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def normal(top: Polynomial, bottom: Polynomial) -> Ratio:
    """A quotient with constant and monomial denominators taken out; raises `UndefinedError` for a zero one."""
    if not bottom:
        raise UndefinedError("a division by zero")
    if len(bottom) == 1:
        ((monomial, coefficient),) = bottom.items()
        if not monomial:
            return Ratio(top if coefficient == 1 else scale(top, 1 / coefficient), UNIT)
        if len(top) == 1 and monomial in top:
            return Ratio({(): top[monomial] / coefficient}, UNIT)
        if coefficient != 1:
            return Ratio(scale(top, 1 / coefficient), {monomial: Fraction(1)})
    return Ratio(top, bottom)


def add(left: Ratio, right: Ratio) -> Ratio:
    """The sum; raises `TooCostlyError`."""
    if left.bottom == right.bottom:
        return normal(add_polynomials(left.top, right.top), left.bottom)
    top = add_polynomials(times(left.top, right.bottom), times(right.top, left.bottom))
    return normal(top, times(left.bottom, right.bottom))


def multiply(left: Ratio, right: Ratio) -> Ratio:
    """The product; raises `TooCostlyError`."""
    return normal(times(left.top, right.top), times(left.bottom, right.bottom))


def divide(left: Ratio, right: Ratio) -> Ratio:
    """The quotient; raises `UndefinedError` when `right` is the zero polynomial."""
    return normal(times(left.top, right.bottom), times(left.bottom, right.top))


def constant(value: Fraction | int) -> Ratio:
    """A rational number."""
    return Ratio({(): Fraction(value)} if value else {}, UNIT)


def check_size(ratio: Ratio) -> None:
    """Raise `TooCostlyError` when a coefficient has grown past what may be written out."""
    if any(bits(coefficient) > 4 * MAX_BITS for coefficient in ratio.top.values()):
        raise TooCostlyError(f"a number of more than {4 * MAX_BITS} bits")


def subtract(left: Ratio, right: Ratio) -> Ratio:
    """The difference; raises `TooCostlyError`."""
    return add(left, Ratio(scale(right.top, Fraction(-1)), right.bottom))


def canonical(ratio: Ratio) -> str:
    """A name that equal polynomials share, in any process and any order of terms."""
    return "/".join(_written(part) for part in (ratio.top, ratio.bottom) if part != UNIT) or "1"


def _written(polynomial: Polynomial) -> str:
    terms = sorted((m, c) for m, c in polynomial.items())
    # Hexadecimal, because writing long integers in decimal takes quadratic time and is limited.
    return "+".join(
        f"{c.numerator:x}/{c.denominator:x}" + "".join(f"*{name}^{e:x}" for name, e in monomial)
        for monomial, c in terms
    )


def raised(base: Ratio, count: int) -> Ratio:
    """An integer power by repeated squaring; raises `TooCostlyError`."""
    if count < 0:
        base, count = divide(Ratio(UNIT, UNIT), base), -count
    width = max(len(base.top), len(base.bottom))
    if width > 1 and math.comb(count + width - 1, width - 1) > MAX_TERMS:
        raise TooCostlyError(f"a power of {count} with {width} terms")
    result = Ratio(UNIT, UNIT)
    while count:
        if count & 1:
            result = multiply(result, base)
        count >>= 1
        if count:
            base = multiply(base, base)
            check_size(base)
    return result


def monomial_power(base: Ratio, count: int) -> Ratio:
    """A large power of a single term, without expanding anything; raises `TooCostlyError` where that cannot be."""
    ((top, a),), ((bottom, b),) = base.top.items(), base.bottom.items()
    if abs(a) != 1 or b != 1 or any(name == "i" or name[0] == "√" for name, _ in (*top, *bottom)):
        raise TooCostlyError(f"a power of {count}")
    if count < 0:
        top, bottom, count = bottom, top, -count
    sign = Fraction(1 if a > 0 or count % 2 == 0 else -1)
    raised = {tuple((name, e * count) for name, e in top): sign}
    return normal(raised, {tuple((name, e * count) for name, e in bottom): Fraction(1)})
