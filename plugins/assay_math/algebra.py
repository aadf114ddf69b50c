r"""Exact algebra: expressions as quotients of polynomials over the rationals, in generators that are reduced exactly.

Generators are variables, pi, e, i (with i^2 = -1) and square roots of primes (with r^2 = p). Over these, "the
difference is the zero polynomial" decides equality in both directions. Anything else (a sine, a cube root, a symbolic
power) becomes an *opaque* generator that is named by its canonical form: a zero difference still proves equality, a
non-zero one proves nothing and is left to `numeric`. Powers and factorials that are too large to write out become
*huge* generators with a lower bound of their logarithm: they are compared by name and by magnitude, never expanded.
"""

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from assay_math.expression import Node

Monomial = tuple[tuple[str, int], ...]
Polynomial = dict[Monomial, Fraction]
Kind = Literal["free", "opaque", "huge"]

MAX_BITS = 20_000
"""Longest integer that is written out, in bits (about 6,000 digits)."""
MAX_TERMS = 500
MAX_PRODUCT = 2_500
MAX_POWER = 400
_MAX_FACTORIAL = 2_300
_ONE: Polynomial = {(): Fraction(1)}
_PRIMES = tuple(n for n in range(2, 1000) if all(n % d for d in range(2, math.isqrt(n) + 1)))


class TooCostly(Exception):
    """The cost gate: writing this out would take more than the exact layers may spend."""


class Undefined(Exception):
    """The expression has no value (a division by zero)."""


class Generator(NamedTuple):
    """What a generator's name stands for."""

    kind: Kind
    node: Node | None = None
    """The expression, for the numeric evaluator."""
    log2: float = 0.0
    """Lower bound of its logarithm to base 2, of huge ones."""


class Ratio(NamedTuple):
    """A quotient of two polynomials; the denominator is never the zero polynomial."""

    top: Polynomial
    bottom: Polynomial

    @property
    def rational(self) -> Fraction | None:
        """The value, where it is a rational number."""
        if self.bottom == _ONE and (not self.top or (len(self.top) == 1 and () in self.top)):
            return self.top.get((), Fraction(0))
        return None


class Form(NamedTuple):
    """An expression in exact form, with the generators that it uses."""

    ratio: Ratio
    generators: dict[str, Generator]

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of generator in it."""
        return {generator.kind for generator in self.generators.values()}


# ---- polynomials ----------------------------------------------------------------------------------------------------


def _add(left: Polynomial, right: Polynomial) -> Polynomial:
    result = dict(left)
    for monomial, coefficient in right.items():
        total = result.get(monomial, 0) + coefficient
        if total:
            result[monomial] = Fraction(total)
        else:
            del result[monomial]
    if len(result) > MAX_TERMS:
        raise TooCostly(f"more than {MAX_TERMS} terms")
    return result


def _scale(polynomial: Polynomial, factor: Fraction) -> Polynomial:
    return {monomial: coefficient * factor for monomial, coefficient in polynomial.items()} if factor else {}


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    if left == _ONE:
        return right
    if right == _ONE:
        return left
    if len(left) * len(right) > MAX_PRODUCT:
        raise TooCostly(f"a product of {len(left)} by {len(right)} terms")
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
        raise TooCostly(f"more than {MAX_TERMS} terms")
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


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _normal(top: Polynomial, bottom: Polynomial) -> Ratio:
    if not bottom:
        raise Undefined("a division by zero")
    if len(bottom) == 1:
        ((monomial, coefficient),) = bottom.items()
        if not monomial:
            return Ratio(top if coefficient == 1 else _scale(top, 1 / coefficient), _ONE)
        if len(top) == 1 and monomial in top:
            return Ratio({(): top[monomial] / coefficient}, _ONE)
        if coefficient != 1:
            return Ratio(_scale(top, 1 / coefficient), {monomial: Fraction(1)})
    return Ratio(top, bottom)


def add(left: Ratio, right: Ratio) -> Ratio:
    """The sum; raises `TooCostly`."""
    if left.bottom == right.bottom:
        return _normal(_add(left.top, right.top), left.bottom)
    top = _add(_times(left.top, right.bottom), _times(right.top, left.bottom))
    return _normal(top, _times(left.bottom, right.bottom))


def multiply(left: Ratio, right: Ratio) -> Ratio:
    """The product; raises `TooCostly`."""
    return _normal(_times(left.top, right.top), _times(left.bottom, right.bottom))


def divide(left: Ratio, right: Ratio) -> Ratio:
    """The quotient; raises `Undefined` when `right` is the zero polynomial."""
    return _normal(_times(left.top, right.bottom), _times(left.bottom, right.top))


def constant(value: Fraction | int) -> Ratio:
    """A rational number."""
    return Ratio({(): Fraction(value)} if value else {}, _ONE)


def check_size(ratio: Ratio) -> None:
    """Raise `TooCostly` when a coefficient has grown past what may be written out."""
    if any(_bits(coefficient) > 4 * MAX_BITS for coefficient in ratio.top.values()):
        raise TooCostly(f"a number of more than {4 * MAX_BITS} bits")


def subtract(left: Ratio, right: Ratio) -> Ratio:
    """The difference; raises `TooCostly`."""
    return add(left, Ratio(_scale(right.top, Fraction(-1)), right.bottom))


def canonical(ratio: Ratio) -> str:
    """A name that equal polynomials share, in any process and any order of terms."""
    return "/".join(_written(part) for part in (ratio.top, ratio.bottom) if part != _ONE) or "1"


def _written(polynomial: Polynomial) -> str:
    terms = sorted((m, c) for m, c in polynomial.items())
    return "+".join(f"{c}" + "".join(f"*{name}^{e}" for name, e in m) for m, c in terms)


# ---- expressions to quotients ---------------------------------------------------------------------------------------


def form(node: Node) -> Form:
    """`node` in exact form; raises `TooCostly` or `Undefined`."""
    builder = _Builder()
    ratio = builder.build(node)
    used = {name for part in ratio for monomial in part for name, _ in monomial}
    return Form(ratio, {name: builder.generators[name] for name in used})


class _Builder:
    """Collects the generators of one expression while it is built."""

    def __init__(self) -> None:
        self.generators: dict[str, Generator] = {}

    def generator(self, name: str, entry: Generator, exponent: int = 1) -> Ratio:
        self.generators[name] = entry
        return Ratio({((name, exponent),): Fraction(1)}, _ONE)

    def build(self, node: Node) -> Ratio:
        method = getattr(self, f"_{node.op}", None)
        return self.opaque(node) if method is None else method(node)

    def opaque(self, node: Node) -> Ratio:
        """A generator for what has no exact rules here, named by the canonical form of its arguments."""
        keys: list[str] = []
        for part in node.args:
            try:
                keys.append(canonical(self.build(part)))
            except (TooCostly, Undefined):
                keys.append(repr(part))
        return self.generator(f"{node.op}:{node.name}({','.join(keys)})", Generator("opaque", node))

    def _number(self, node: Node) -> Ratio:
        return constant(node.number)

    def _base(self, node: Node) -> Ratio:
        return constant(node.number)

    def _name(self, node: Node) -> Ratio:
        return self.generator(f"n:{node.name}", Generator("free", node))

    def _mark(self, node: Node) -> Ratio:
        return self.generator(f"mark:{node!r}", Generator("free", node))

    def _apply(self, node: Node) -> Ratio:
        keys = ",".join(canonical(self.build(part)) for part in node.args)
        return self.generator(f"{node.name}({keys})", Generator("free", node))

    def _constant(self, node: Node) -> Ratio:
        return self.generator(node.name, Generator("free", node))

    def _add(self, node: Node) -> Ratio:
        total = self.build(node.args[0])
        for part in node.args[1:]:
            total = add(total, self.build(part))
        return total

    _mixed = _add

    def _multiply(self, node: Node) -> Ratio:
        total = self.build(node.args[0])
        for part in node.args[1:]:
            total = multiply(total, self.build(part))
            check_size(total)
        return total

    def _negate(self, node: Node) -> Ratio:
        inner = self.build(node.args[0])
        return Ratio(_scale(inner.top, Fraction(-1)), inner.bottom)

    def _divide(self, node: Node) -> Ratio:
        return divide(self.build(node.args[0]), self.build(node.args[1]))

    def _percent(self, node: Node) -> Ratio:
        return multiply(self.build(node.args[0]), constant(Fraction(1, 100)))

    def _degree(self, node: Node) -> Ratio:
        pi = self.generator("pi", Generator("free", Node("constant", (), "pi")))
        return multiply(multiply(self.build(node.args[0]), pi), constant(Fraction(1, 180)))

    def _absolute(self, node: Node) -> Ratio:
        value = self.build(node.args[0]).rational
        return self.opaque(node) if value is None else constant(abs(value))

    def _floor(self, node: Node) -> Ratio:
        value = self.build(node.args[0]).rational
        return self.opaque(node) if value is None else constant(math.floor(value))

    def _ceil(self, node: Node) -> Ratio:
        value = self.build(node.args[0]).rational
        return self.opaque(node) if value is None else constant(math.ceil(value))

    def _factorial(self, node: Node) -> Ratio:
        inner = self.build(node.args[0])
        value = inner.rational
        if value is not None and value.denominator == 1 and value >= 0:
            if value <= _MAX_FACTORIAL:
                return constant(math.factorial(int(value)))
            return self.generator(f"{value}!", Generator("huge", node, _as_float(value)))
        bound = self._log2(inner)
        if bound:
            return self.generator(f"({canonical(inner)})!", Generator("huge", node, _power_of_two(bound)))
        return self.opaque(node)

    def _binomial(self, node: Node) -> Ratio:
        top, bottom = (self.build(part).rational for part in node.args)
        if top is None or bottom is None or top.denominator != 1 or bottom.denominator != 1 or top < 0:
            return self.opaque(node)
        if bottom < 0 or bottom > top:
            return constant(0)
        n, k = int(top), int(min(bottom, top - bottom))
        if k * n.bit_length() > MAX_BITS or k > 5_000:
            return self.generator(f"C({n},{k})", Generator("huge", node, float(k)))
        return constant(math.comb(n, k))

    def _root(self, node: Node) -> Ratio:
        degree = self.build(node.args[1]).rational
        if degree is None or degree.denominator != 1 or not 1 <= degree <= 64:
            return self.opaque(node)
        return self._rooted(node.args[0], self.build(node.args[0]), int(degree), 1)

    def _rooted(self, radicand: Node, inner: Ratio, degree: int, power: int) -> Ratio:
        """`inner ** (power / degree)`; a sum under the root, or a root that is not exact, becomes a generator."""
        value = inner.rational
        if value is not None and _bits(value) <= 2_000:
            exact = self._exact_root(value, degree)
            if exact is not None:
                return _raise(exact, power)
        name = f"root{degree}({canonical(inner)})"
        base = self.generator(name, Generator("opaque", Node("root", (radicand, Node("number", (), "", Fraction(degree))))))
        return _raise(base, power)

    def _exact_root(self, value: Fraction, degree: int) -> Ratio | None:
        if value == 0:
            return constant(0)
        if degree == 2:
            return self._square_root(value)
        negative = value < 0
        if negative and degree % 2 == 0:
            return None
        top, bottom = _perfect_root(abs(value.numerator), degree), _perfect_root(value.denominator, degree)
        if top is None or bottom is None:
            return None
        return constant(Fraction(-top if negative else top, bottom))

    def _square_root(self, value: Fraction) -> Ratio | None:
        outside, primes, rest = _square_free(abs(value.numerator) * value.denominator)
        if rest > 1 and rest >= _PRIMES[-1] ** 2:
            return None
        names = [f"√{p}" for p in (*primes, *((rest,) if rest > 1 else ()))]
        for name in names:
            self.generators[name] = Generator("free", Node("root", (Node("number", (), "", Fraction(name[1:])), _TWO)))
        if value < 0:
            names.append("i")
            self.generators["i"] = Generator("free", Node("constant", (), "i"))
        monomial = tuple(sorted((name, 1) for name in names))
        return Ratio({monomial: Fraction(outside, value.denominator)}, _ONE)

    def _power(self, node: Node) -> Ratio:
        base, exponent = self.build(node.args[0]), self.build(node.args[1])
        power = exponent.rational
        if power is None:
            return self._symbolic_power(node, base, exponent)
        if power.denominator != 1:
            if abs(power.numerator) > MAX_POWER or power.denominator > 64:
                return self.opaque(node)
            return self._rooted(node.args[0], base, power.denominator, int(power.numerator))
        count = int(power)
        value = base.rational
        if value is not None:
            return self._number_power(node, value, count)
        if abs(count) > MAX_POWER:
            if len(base.top) == 1 and len(base.bottom) == 1 and abs(count) < 10**9 and not self._log2(base):
                return _monomial_power(base, count)
            return self.generator(f"({canonical(base)})^{count}", Generator(*self._kind(base), node))
        return _raise(base, count)

    def _kind(self, base: Ratio) -> tuple[Kind]:
        return ("huge",) if self._log2(base) else ("opaque",)

    def _number_power(self, node: Node, value: Fraction, count: int) -> Ratio:
        if value in (0, 1, -1):
            if value == 0 and count <= 0:
                raise Undefined("a power of zero with a negative exponent" if count else "zero to the power of zero")
            return constant(value if count % 2 or value != -1 else 1)
        if _bits(value) * abs(count) <= MAX_BITS:
            return constant(value**count)
        if value.denominator != 1 or value.numerator < 2 or value.numerator >= 10**12:
            return self.generator(f"({value})^{count}", Generator("huge", node))
        whole = Ratio(_ONE, _ONE)
        for prime, multiplicity in _factors(value.numerator).items():
            size = multiplicity * abs(count)
            entry = Generator("huge", node, size * math.log2(prime) if size < 10**300 else math.inf)
            whole = multiply(whole, self.generator(f"{prime}^{size}", entry))
        return whole if count > 0 else divide(Ratio(_ONE, _ONE), whole)

    def _symbolic_power(self, node: Node, base: Ratio, exponent: Ratio) -> Ratio:
        bound = self._log2(exponent)
        value = base.rational
        if bound and value is not None and value.denominator == 1 and value >= 2:
            name = f"({value})^({canonical(exponent)})"
            return self.generator(name, Generator("huge", node, _power_of_two(bound)))
        if bound:
            return self.generator(f"({canonical(base)})^({canonical(exponent)})", Generator("huge", node))
        if exponent.bottom == _ONE and len(exponent.top) > 1 and exponent.top.get((), Fraction(1, 2)).denominator == 1:
            return self._split_power(node, base, exponent)
        return self.opaque(node)

    def _split_power(self, node: Node, base: Ratio, exponent: Ratio) -> Ratio:
        """`a^(n + 3)` as `a^n * a^3`, so that whole parts of an exponent are exact."""
        whole = exponent.top.get((), Fraction(0))
        rest = Ratio({m: c for m, c in exponent.top.items() if m}, _ONE)
        if not whole or abs(whole) > MAX_POWER:
            return self.opaque(node)
        shift = Node("number", (), "", whole)
        inner = Node("power", (node.args[0], Node("add", (node.args[1], Node("negate", (shift,))))))
        symbolic = self.generator(f"power:({canonical(base)},{canonical(rest)})", Generator("opaque", inner))
        return multiply(symbolic, self._power(Node("power", (node.args[0], shift))))

    def _log2(self, ratio: Ratio) -> float:
        """A positive lower bound of log2 of something with one huge positive term and no others that matter, or 0."""
        if ratio.bottom != _ONE or not ratio.top:
            return 0.0
        bound = 0.0
        for monomial, coefficient in ratio.top.items():
            sizes = [self.generators[name].log2 * exponent for name, exponent in monomial]
            if any(self.generators[name].kind != "huge" for name, _ in monomial):
                return 0.0
            if monomial and coefficient > 0:
                bound = max(bound, sum(sizes) - _bits(coefficient))
            elif monomial or _bits(coefficient) > MAX_BITS:
                return 0.0
        return bound if bound > 2 * MAX_BITS else 0.0


_TWO = Node("number", (), "", Fraction(2))


def _as_float(value: Fraction) -> float:
    return float(value) if _bits(value) < 1_000 else math.inf


def _power_of_two(exponent: float) -> float:
    return 2.0**exponent if exponent < 1_000 else math.inf


def _raise(base: Ratio, count: int) -> Ratio:
    """An integer power by repeated squaring; raises `TooCostly`."""
    if count < 0:
        base, count = divide(Ratio(_ONE, _ONE), base), -count
    width = max(len(base.top), len(base.bottom))
    if width > 1 and math.comb(count + width - 1, width - 1) > MAX_TERMS:
        raise TooCostly(f"a power of {count} with {width} terms")
    result = Ratio(_ONE, _ONE)
    while count:
        if count & 1:
            result = multiply(result, base)
        count >>= 1
        if count:
            base = multiply(base, base)
            check_size(base)
    return result


def _monomial_power(base: Ratio, count: int) -> Ratio:
    ((top, a),), ((bottom, b),) = base.top.items(), base.bottom.items()
    if abs(a) != 1 or b != 1 or any(name == "i" or name[0] == "√" for name, _ in (*top, *bottom)):
        raise TooCostly(f"a power of {count}")
    if count < 0:
        top, bottom, count = bottom, top, -count
    sign = Fraction(1 if a > 0 or count % 2 == 0 else -1)
    raised = {tuple((name, e * count) for name, e in top): sign}
    return _normal(raised, {tuple((name, e * count) for name, e in bottom): Fraction(1)})


@lru_cache(maxsize=4096)
def _square_free(value: int) -> tuple[int, tuple[int, ...], int]:
    """`value = outside^2 * product(primes) * rest`, with small primes taken out and `rest` free of them."""
    outside, primes = 1, []
    for prime in _PRIMES:
        if prime * prime > value:
            break
        count = 0
        while value % prime == 0:
            value //= prime
            count += 1
        outside *= prime ** (count // 2)
        if count % 2:
            primes.append(prime)
    root = math.isqrt(value)
    if root * root == value:
        return outside * root, tuple(primes), 1
    return outside, tuple(primes), value


@lru_cache(maxsize=1024)
def _factors(value: int) -> dict[int, int]:
    """Prime factors below 1000 with their counts; what is left stands as one factor."""
    found: dict[int, int] = {}
    for prime in _PRIMES:
        while value % prime == 0:
            value //= prime
            found[prime] = found.get(prime, 0) + 1
    if value > 1:
        found[value] = 1
    return found


def _perfect_root(value: int, degree: int) -> int | None:
    if value < 2:
        return value
    guess = round(value ** (1 / degree)) if value.bit_length() < 1_000 else 0
    for candidate in (guess - 1, guess, guess + 1):
        if candidate > 0 and candidate**degree == value:
            return candidate
    return None


# ---- decisions ------------------------------------------------------------------------------------------------------

Outcome = Literal["equal", "different", "unknown", "costly"]


def compare(left: Form, right: Form) -> Outcome:
    """Whether two exact forms are equal: `unknown` leaves it to numbers, `costly` says that nothing here can."""
    if left.ratio == right.ratio:
        return "equal"
    kinds = left.kinds | right.kinds
    if not left.generators and not right.generators:
        return "different"
    top = _add(
        _times(left.ratio.top, right.ratio.bottom),
        _scale(_times(right.ratio.top, left.ratio.bottom), Fraction(-1)),
    )
    if not top:
        return "equal"
    remaining = {name for monomial in top for name, _ in monomial}
    table = {**left.generators, **right.generators}
    kinds = {table[name].kind for name in remaining}
    if "huge" in kinds:
        return "different" if _dominated(top, table) or _other_factors(top, table) else "costly"
    return "unknown" if "opaque" in kinds else "different"


def _other_factors(top: Polynomial, table: dict[str, Generator]) -> bool:
    """Whether the difference is of two terms that cannot cancel: other prime factors, or factorials of other numbers."""
    if len(top) != 2 or not all(top):
        return False
    (one, a), (two, b) = top.items()
    names = [name for monomial in (one, two) for name, _ in monomial]
    if all(name.endswith("!") and name[:-1].isdigit() for name in names):
        return a == -b and len(one) == len(two) == 1
    if not all(re.fullmatch(r"\d+\^\d+", name) for name in names) or max(_bits(a), _bits(b)) > 2_000:
        return False
    powers: dict[int, int] = {}
    for monomial, sign in ((one, 1), (two, -1)):
        for name, exponent in monomial:
            prime, _, size = name.partition("^")
            powers[int(prime)] = powers.get(int(prime), 0) + sign * int(size) * exponent
    ratio = -b / a
    for prime, power in powers.items():
        count = 0
        while ratio.numerator % prime == 0:
            ratio, count = ratio / prime, count + 1
        while ratio.denominator % prime == 0:
            ratio, count = ratio * prime, count - 1
        if count != power:
            return True
    return ratio != 1


def _dominated(top: Polynomial, table: dict[str, Generator]) -> bool:
    """Whether one huge term is larger than all the others together, so that the sum cannot be zero."""
    sizes: list[float] = []
    rest = 0.0
    for monomial, coefficient in top.items():
        if any(table[name].kind != "huge" or table[name].log2 <= 0 for name, _ in monomial):
            return False
        if monomial:
            sizes.append(sum(table[name].log2 * e for name, e in monomial) - _bits(coefficient))
        else:
            rest = float(_bits(coefficient) + 1)
    return len(sizes) == 1 and sizes[0] > rest
