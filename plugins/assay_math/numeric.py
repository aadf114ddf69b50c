"""Numbers for expressions: values to 60 digits at fixed points, to disprove equality and to recognise identities.

Points are derived from the names of the variables alone, so the same pair gives the same answer in every process. Two
expressions that differ anywhere they are both defined are different; two that agree to 45 digits at every point (at
least three) are taken for equal. Real expressions are compared where they are real: a root or logarithm of a negative
number is undefined, unless the imaginary unit occurs.
"""

# mpmath ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import re
import threading
import zlib
from typing import Any, Literal, NamedTuple

from assay_math.expression import Node

DIGITS = 60
_AGREE = 45
_MAX_LOG = 200_000.0
"""Largest binary logarithm of a power that is evaluated."""
_MAX_GAMMA = 10_000
_MAX_EQUAL = 10**12

Mode = Literal["positive", "negative", "integer"]
_TRIALS: tuple[tuple[Mode, int], ...] = (
    ("positive", 1), ("positive", 2), ("negative", 3), ("integer", 4), ("positive", 5), ("negative", 6), ("integer", 7),
    ("integer", 8),
)  # fmt: skip

_local = threading.local()


class NoValueError(Exception):
    """The expression has no value at this point, or one that is too costly to compute."""


class Agreement(NamedTuple):
    """What the points say: `outcome`, and how many points both sides were defined at."""

    outcome: Literal["equal", "different", "unknown"]
    points: int


def _context() -> Any:
    """This thread's arithmetic: mpmath's contexts change their precision while they work, so none is shared."""
    found = getattr(_local, "context", None)
    if found is None:
        from mpmath.ctx_mp import MPContext

        found = MPContext()
        found.dps = DIGITS
        _local.context = found
    return found


def agree(left: Node, right: Node) -> Agreement:
    """Whether two expressions have equal values at the fixed points."""
    evaluator = _Evaluator(_context(), real=not _has_imaginary(left, right))
    constant = _is_constant(left, right)
    defined = 0
    for mode, trial in _TRIALS[:1] if constant else _TRIALS:
        try:
            a = evaluator.value(left, mode, trial)
            b = evaluator.value(right, mode, trial)
        except NoValueError:
            continue
        if not evaluator.same(a, b):
            return Agreement("different", defined + 1)
        # 60 digits cannot tell very large numbers apart that differ by a little.
        defined += bool(max(abs(a), abs(b)) < _MAX_EQUAL)
    if constant and defined:
        return Agreement("equal", 1)
    return Agreement("equal" if defined >= 3 else "unknown", defined)


def proportional(left: Node, right: Node) -> bool:
    """Whether `left` is one constant times `right` at every fixed point (at least three)."""
    evaluator = _Evaluator(_context(), real=not _has_imaginary(left, right))
    factors: list[Any] = []
    for mode, trial in _TRIALS:
        try:
            top, bottom = evaluator.value(left, mode, trial), evaluator.value(right, mode, trial)
            factors.append(evaluator.checked(top / bottom))
        except (NoValueError, ZeroDivisionError):
            continue
    return len(factors) >= 3 and all(evaluator.same(factors[0], factor) for factor in factors)


def approximate(node: Node) -> Any | None:
    """The value of a constant expression to 60 digits (an mpmath number), or None where it has none."""
    try:
        return _Evaluator(_context(), real=not _has_imaginary(node)).value(node, "positive", 1)
    except NoValueError:
        return None


def has_value(node: Node) -> bool:
    """Whether an expression has a value at one of the fixed points at least."""
    evaluator = _Evaluator(_context(), real=not _has_imaginary(node))
    for mode, trial in _TRIALS[:1] if _is_constant(node) else _TRIALS:
        try:
            evaluator.value(node, mode, trial)
        except NoValueError:
            continue
        return True
    return False


def close(left: Node, right: Node, *, relative: float = 0.0, absolute: float = 0.0) -> bool | None:
    """Whether two constants differ by at most `absolute` or `relative` times the left one; None without values."""
    a, b = approximate(left), approximate(right)
    if a is None or b is None:
        return None
    return bool(abs(a - b) <= max(absolute, relative * abs(a)))


def _is_constant(*nodes: Node) -> bool:
    """Whether the value is the same at every point."""
    return not any(node.op in ("name", "apply", "mark") for side in nodes for node in side.walk())


def _has_imaginary(*nodes: Node) -> bool:
    return any(node.op == "constant" and node.name == "i" for side in nodes for node in side.walk())


class _Evaluator:
    """Values of nodes in one arithmetic; `real` refuses what leaves the real line."""

    def __init__(self, context: Any, *, real: bool) -> None:
        self.mp = context
        self.real = real
        self.mode: Mode = "positive"
        self.trial = 0

    def same(self, a: Any, b: Any) -> bool:
        scale = max(abs(a), abs(b))
        return bool(abs(a - b) <= scale * self.mp.mpf(10) ** -_AGREE) or bool(scale < self.mp.mpf(10) ** -(DIGITS - 5))

    def point(self, key: str, mode: Mode, trial: int) -> Any:
        seed = (zlib.crc32(key.encode("utf-8", "surrogatepass")) ^ (trial * 2654435761)) & 0xFFFFFFFF
        if mode == "integer":
            return self.mp.mpf(2 + seed % 9)
        value = self.mp.mpf(seed) / 2**32 * self.mp.mpf(12) / 5 + self.mp.mpf(3) / 10 + self.mp.mpf(1) / 1009
        return -value if mode == "negative" else value

    def value(self, node: Node, mode: Mode, trial: int) -> Any:
        self.mode, self.trial = mode, trial
        try:
            return self.checked(self._value(node))
        except (ZeroDivisionError, ValueError, OverflowError, TypeError, ArithmeticError) as error:
            raise NoValueError(str(error)) from None

    def checked(self, value: Any) -> Any:
        if not self.mp.isfinite(value):
            raise NoValueError("not finite")
        return value

    def _value(self, node: Node) -> Any:
        method = getattr(self, f"_{node.op}", None)
        if method is None:
            raise NoValueError(f"no value for {node.op}")
        return method(node)

    def _number(self, node: Node) -> Any:
        return self.mp.mpf(node.number.numerator) / node.number.denominator

    _base = _number

    def _name(self, node: Node) -> Any:
        return self.point(node.name, self.mode, self.trial)

    def _mark(self, node: Node) -> Any:
        return self.point(repr(node), "positive", self.trial)

    def _apply(self, node: Node) -> Any:
        key = f"{node.name}({','.join(self.mp.nstr(self._value(part), 30) for part in node.args)})"
        return self.point(key, "positive", self.trial)

    def _constant(self, node: Node) -> Any:
        if node.name == "pi":
            return +self.mp.pi
        if node.name == "e":
            return +self.mp.e
        if node.name == "i":
            return self.mp.mpc(0, 1)
        raise NoValueError("infinity")

    def _add(self, node: Node) -> Any:
        total = self._value(node.args[0])
        for part in node.args[1:]:
            total = total + self._value(part)
        return total

    _mixed = _add

    def _multiply(self, node: Node) -> Any:
        total = self._value(node.args[0])
        for part in node.args[1:]:
            total = total * self._value(part)
        return total

    def _negate(self, node: Node) -> Any:
        return -self._value(node.args[0])

    def _divide(self, node: Node) -> Any:
        bottom = self._value(node.args[1])
        if abs(bottom) < self.mp.mpf(10) ** -_AGREE:
            raise NoValueError("a division by zero")
        return self._value(node.args[0]) / bottom

    def _percent(self, node: Node) -> Any:
        return self._value(node.args[0]) / 100

    def _degree(self, node: Node) -> Any:
        return self._value(node.args[0]) * self.mp.pi / 180

    def _power(self, node: Node) -> Any:
        base, exponent = self._value(node.args[0]), self._value(node.args[1])
        if base == 0:
            if self.mp.re(exponent) <= 0:
                raise NoValueError("a power of zero")
            return base
        if abs(exponent) * abs(self.mp.log(abs(base), 2)) > _MAX_LOG:
            raise NoValueError("too large")
        whole = self.mp.im(exponent) == 0 and self.mp.re(exponent) == self.mp.floor(self.mp.re(exponent))
        if self.real and not whole and base < 0:
            return self._odd_root(node.args[1], -base, exponent)
        return base**exponent

    def _odd_root(self, written: Node, size: Any, exponent: Any) -> Any:
        """A negative number to `p/q` with odd q, written as a fraction of two integers: the real root."""
        if written.op == "divide" and all(
            part.op == "number" and part.number.denominator == 1 for part in written.args
        ):
            top, bottom = written.args[0].number, written.args[1].number
            if bottom % 2 == 1:
                return size**exponent * (-1 if top % 2 == 1 else 1)
        raise NoValueError("a root of a negative number")

    def _root(self, node: Node) -> Any:
        inner, degree = self._value(node.args[0]), self._value(node.args[1])
        if self.real and inner < 0:
            if degree == self.mp.floor(degree) and int(degree) % 2 == 1:
                return -self.mp.root(-inner, int(degree))
            raise NoValueError("a root of a negative number")
        return self.mp.sqrt(inner) if degree == 2 else inner ** (1 / degree)

    def _absolute(self, node: Node) -> Any:
        return abs(self._value(node.args[0]))

    def _floor(self, node: Node) -> Any:
        return self.mp.floor(self._value(node.args[0]))

    def _ceil(self, node: Node) -> Any:
        return self.mp.ceil(self._value(node.args[0]))

    def _factorial(self, node: Node) -> Any:
        inner = self._value(node.args[0])
        if abs(inner) > _MAX_GAMMA:
            raise NoValueError("too large")
        return self.mp.gamma(inner + 1)

    def _binomial(self, node: Node) -> Any:
        top, bottom = (self._value(part) for part in node.args)
        if abs(top) > _MAX_GAMMA or abs(bottom) > _MAX_GAMMA:
            raise NoValueError("too large")
        return self.mp.binomial(top, bottom)

    def _call(self, node: Node) -> Any:
        values = [self._value(part) for part in node.args]
        method = getattr(self, f"_call_{node.name}", None)
        if method is not None:
            return method(*values)
        name = _NAMES.get(node.name)
        if name is None or len(values) != 1:
            raise NoValueError(f"no value for {node.name}")
        (value,) = values
        if abs(value) > _MAX_LOG:
            raise NoValueError("too large")
        pole = _POLES.get(name)
        if pole is not None and abs(getattr(self.mp, pole)(value)) < self.mp.mpf(10) ** -_AGREE:
            raise NoValueError(f"a pole of {name}")
        result = getattr(self.mp, name)(value)
        if self.real and self.mp.im(result) != 0:
            raise NoValueError("not real")
        return result

    def _call_log(self, value: Any, base: Any = 10) -> Any:
        bottom = self._call_ln(self.mp.mpf(base))
        if abs(bottom) < self.mp.mpf(10) ** -_AGREE:
            raise NoValueError("a logarithm to base one")
        return self._call_ln(value) / bottom

    def _call_ln(self, value: Any) -> Any:
        if self.real and value <= 0:
            raise NoValueError("a logarithm of a number that is not positive")
        return self.mp.log(value)

    def _call_exp(self, value: Any) -> Any:
        if abs(value) > _MAX_LOG:
            raise NoValueError("too large")
        return self.mp.exp(value)

    def _call_max(self, *values: Any) -> Any:
        return max(values)

    def _call_min(self, *values: Any) -> Any:
        return min(values)

    def _whole(self, values: tuple[Any, ...]) -> list[int]:
        if any(value != self.mp.floor(value) or abs(value) > 10**15 for value in values):
            raise NoValueError("not whole")
        return [int(value) for value in values]

    def _call_gcd(self, *values: Any) -> Any:
        import math

        return self.mp.mpf(math.gcd(*self._whole(values)))

    def _call_lcm(self, *values: Any) -> Any:
        import math

        return self.mp.mpf(math.lcm(*self._whole(values)))


_NAMES = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "coth": "coth", "sech": "sech", "csch": "csch", "arsinh": "asinh",
    "arcosh": "acosh", "artanh": "atanh", "sgn": "sign", "arg": "arg", "Re": "re", "Im": "im",
}  # fmt: skip

_POLES = {
    "tan": "cos", "sec": "cos", "cot": "sin", "csc": "sin", "coth": "sinh", "csch": "sinh",
}  # fmt: skip
"""Functions that have no value where another one is zero."""

OPERATIONS = frozenset(name[1:] for name in vars(_Evaluator) if re.fullmatch("_[a-z]+", name))
"""The operations that have values here."""
