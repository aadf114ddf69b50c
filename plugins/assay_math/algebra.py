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
from typing import Literal, NamedTuple

from assay_math import numeric
from assay_math.expression import INFINITY, Node
from assay_math.polynomials import (
    MAX_BITS,
    MAX_POWER,
    UNIT,
    Monomial,
    Polynomial,
    Ratio,
    TooCostlyError,
    UndefinedError,
    add,
    add_polynomials,
    bits,
    canonical,
    check_size,
    constant,
    divide,
    monomial_power,
    multiply,
    raised,
    scale,
    times,
)
from assay_math.primes import PRIMES, factors, perfect_root, square_free

Kind = Literal["free", "opaque", "huge"]
_MAX_FACTORIAL = 2_300


class Generator(NamedTuple):
    """What a generator's name stands for."""

    kind: Kind
    node: Node | None = None
    """The expression, for the numeric evaluator."""
    log2: float = 0.0
    """Lower bound of its logarithm to base 2, of huge ones."""


class Form(NamedTuple):
    """An expression in exact form, with the generators that it uses."""

    ratio: Ratio
    generators: dict[str, Generator]

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of generator in it."""
        return {generator.kind for generator in self.generators.values()}


def form(node: Node) -> Form:
    """`node` in exact form; raises `TooCostlyError` or `UndefinedError`.

    Infinity is a value only as a whole, and what cancels must have had a value.
    """
    whole = node.args[0] if node.op == "negate" else node
    if whole != INFINITY and _has_infinity(node):
        raise UndefinedError("infinity inside an expression")
    builder = _Builder()
    ratio = builder.build(node)
    # A quotient with nothing on top is zero, and all of its bottom is cancelled.
    used = {name for part in ratio for monomial in part for name, _ in monomial} if ratio.top else set[str]()
    cancelled = [
        generator.node
        for name, generator in builder.generators.items()
        if name not in used and generator.kind == "opaque" and generator.node is not None
    ]
    for part in cancelled:
        _check_value(part)
    if cancelled and not any(generator.kind == "huge" for generator in builder.generators.values()):
        _check_value(node)  # `sin(pi) / sin(pi)`: both have a value, their quotient has none
    return Form(ratio if ratio.top else constant(0), {name: builder.generators[name] for name in used})


def _has_infinity(node: Node) -> bool:
    """Whether infinity is an operand; a limit or a sum may run to it."""
    return node == INFINITY or (node.op != "deep" and any(_has_infinity(part) for part in node.args))


def _check_value(node: Node) -> None:
    """Raise `UndefinedError` for a cancelled part without a value; what only a worker can evaluate passes."""
    if not any(part.op not in numeric.OPERATIONS for part in node.walk()) and not numeric.has_value(node):
        raise UndefinedError("a part without a value cancels")


class _Builder:
    """Collects the generators of one expression while it is built."""

    def __init__(self) -> None:
        self.generators: dict[str, Generator] = {}

    def generator(self, name: str, entry: Generator, exponent: int = 1) -> Ratio:
        self.generators[name] = entry
        return Ratio({((name, exponent),): Fraction(1)}, UNIT)

    def build(self, node: Node) -> Ratio:
        method = getattr(self, f"_{node.op}", None)
        return self.opaque(node) if method is None else method(node)

    def opaque(self, node: Node) -> Ratio:
        """A generator for what has no exact rules here, named by the canonical form of its arguments."""
        keys: list[str] = []
        for part in node.args:
            try:
                keys.append(canonical(self.build(part)))
            except (TooCostlyError, UndefinedError):
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
        return Ratio(scale(inner.top, Fraction(-1)), inner.bottom)

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
            return self.generator(f"{value.numerator:x}!", Generator("huge", node, _as_float(value)))
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
            return self.generator(f"C({n:x},{k:x})", Generator("huge", node, float(k)))
        return constant(math.comb(n, k))

    def _root(self, node: Node) -> Ratio:
        degree = self.build(node.args[1]).rational
        if degree is None or degree.denominator != 1 or not 1 <= degree <= 64:
            return self.opaque(node)
        return self._rooted(node.args[0], self.build(node.args[0]), int(degree), 1)

    def _rooted(self, radicand: Node, inner: Ratio, degree: int, power: int) -> Ratio:
        """`inner ** (power / degree)`; a sum under the root, or a root that is not exact, becomes a generator."""
        value = inner.rational
        if value is not None and bits(value) <= 2_000:
            exact = self._exact_root(value, degree)
            if exact is not None:
                return raised(exact, power)
        name = f"root{degree}({canonical(inner)})"
        base = self.generator(
            name, Generator("opaque", Node("root", (radicand, Node("number", (), "", Fraction(degree)))))
        )
        return raised(base, power)

    def _exact_root(self, value: Fraction, degree: int) -> Ratio | None:
        if value == 0:
            return constant(0)
        if degree == 2:
            return self._square_root(value)
        negative = value < 0
        if negative and degree % 2 == 0:
            return None
        top, bottom = perfect_root(abs(value.numerator), degree), perfect_root(value.denominator, degree)
        if top is None or bottom is None:
            return None
        return constant(Fraction(-top if negative else top, bottom))

    def _square_root(self, value: Fraction) -> Ratio | None:
        outside, primes, rest = square_free(abs(value.numerator) * value.denominator)
        if rest > 1 and rest >= PRIMES[-1] ** 2:
            return None
        names = [f"√{p}" for p in (*primes, *((rest,) if rest > 1 else ()))]
        for name in names:
            self.generators[name] = Generator("free", Node("root", (Node("number", (), "", Fraction(name[1:])), _TWO)))
        if value < 0:
            names.append("i")
            self.generators["i"] = Generator("free", Node("constant", (), "i"))
        monomial = tuple(sorted((name, 1) for name in names))
        return Ratio({monomial: Fraction(outside, value.denominator)}, UNIT)

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
                return monomial_power(base, count)
            return self.generator(f"({canonical(base)})^{count:x}", Generator(*self._kind(base), node))
        return raised(base, count)

    def _kind(self, base: Ratio) -> tuple[Kind]:
        return ("huge",) if self._log2(base) else ("opaque",)

    def _number_power(self, node: Node, value: Fraction, count: int) -> Ratio:
        if value in (0, 1, -1):
            if value == 0 and count <= 0:
                raise UndefinedError(
                    "a power of zero with a negative exponent" if count else "zero to the power of zero"
                )
            return constant(value if count % 2 or value != -1 else 1)
        if bits(value) * abs(count) <= MAX_BITS:
            return constant(value**count)
        if value.denominator != 1 or value.numerator < 2 or value.numerator >= 10**12:
            return self.generator(f"({value.numerator:x}/{value.denominator:x})^{count:x}", Generator("huge", node))
        whole = Ratio(UNIT, UNIT)
        for prime, multiplicity in factors(value.numerator).items():
            size = multiplicity * abs(count)
            entry = Generator("huge", node, size * math.log2(prime) if size < 10**300 else math.inf)
            whole = multiply(whole, self.generator(f"{prime}^{size:x}", entry))
        return whole if count > 0 else divide(Ratio(UNIT, UNIT), whole)

    def _symbolic_power(self, node: Node, base: Ratio, exponent: Ratio) -> Ratio:
        bound = self._log2(exponent)
        value = base.rational
        if bound and value == 1:
            return constant(1)
        if bound and value is not None and value.denominator == 1 and value >= 2:
            name = f"({value.numerator:x})^({canonical(exponent)})"
            return self.generator(name, Generator("huge", node, _power_of_two(bound)))
        if bound:
            return self.generator(f"({canonical(base)})^({canonical(exponent)})", Generator("huge", node))
        if exponent.bottom == UNIT and len(exponent.top) > 1 and exponent.top.get((), Fraction(1, 2)).denominator == 1:
            return self._split_power(node, base, exponent)
        return self.opaque(node)

    def _split_power(self, node: Node, base: Ratio, exponent: Ratio) -> Ratio:
        """`a^(n + 3)` as `a^n * a^3`, so that whole parts of an exponent are exact."""
        whole = exponent.top.get((), Fraction(0))
        rest = Ratio({m: c for m, c in exponent.top.items() if m}, UNIT)
        if not whole or abs(whole) > MAX_POWER:
            return self.opaque(node)
        shift = Node("number", (), "", whole)
        inner = Node("power", (node.args[0], Node("add", (node.args[1], Node("negate", (shift,))))))
        symbolic = self.generator(f"power:({canonical(base)},{canonical(rest)})", Generator("opaque", inner))
        return multiply(symbolic, self._power(Node("power", (node.args[0], shift))))

    def _log2(self, ratio: Ratio) -> float:
        """A positive lower bound of log2 of something with one huge positive term and no others that matter, or 0."""
        if ratio.bottom != UNIT or not ratio.top:
            return 0.0
        bound = 0.0
        for monomial, coefficient in ratio.top.items():
            sizes = [self.generators[name].log2 * exponent for name, exponent in monomial]
            if any(self.generators[name].kind != "huge" for name, _ in monomial):
                return 0.0
            if monomial and coefficient > 0:
                bound = max(bound, sum(sizes) - bits(coefficient))
            elif monomial or bits(coefficient) > MAX_BITS:
                return 0.0
        return bound if bound > 2 * MAX_BITS else 0.0


_TWO = Node("number", (), "", Fraction(2))


def _as_float(value: Fraction) -> float:
    return float(value) if bits(value) < 1_000 else math.inf


def _power_of_two(exponent: float) -> float:
    return 2.0**exponent if exponent < 1_000 else math.inf


Outcome = Literal["equal", "different", "unknown", "costly"]


def compare(left: Form, right: Form) -> Outcome:
    """Whether two exact forms are equal: `unknown` leaves it to numbers, `costly` says that nothing here can."""
    if left.ratio == right.ratio:
        return "equal"
    kinds = left.kinds | right.kinds
    if not left.generators and not right.generators:
        return "different"
    top = add_polynomials(
        times(left.ratio.top, right.ratio.bottom),
        scale(times(right.ratio.top, left.ratio.bottom), Fraction(-1)),
    )
    if not top:
        return "equal"
    remaining = {name for monomial in top for name, _ in monomial}
    table = {**left.generators, **right.generators}
    kinds = {table[name].kind for name in remaining}
    if "huge" in kinds:
        proved = _dominated(top, table) or _other_factors(top, table) or _varies(top, table)
        return "different" if proved else "costly"
    return "unknown" if "opaque" in kinds else "different"


def _other_factors(top: Polynomial, table: dict[str, Generator]) -> bool:
    """Whether the difference is of two terms that cannot cancel: other primes, or factorials of other numbers."""
    if len(top) != 2 or not all(top):
        return False
    (one, a), (two, b) = top.items()
    names = [name for monomial in (one, two) for name, _ in monomial]
    if all(re.fullmatch(r"[0-9a-f]+!", name) for name in names):
        return a == -b and len(one) == len(two) == 1
    if not all(re.fullmatch(r"\d+\^[0-9a-f]+", name) for name in names) or max(bits(a), bits(b)) > 2_000:
        return False
    powers: dict[int, int] = {}
    for monomial, sign in ((one, 1), (two, -1)):
        for name, exponent in monomial:
            prime, _, size = name.partition("^")
            powers[int(prime)] = powers.get(int(prime), 0) + sign * int(size, 16) * exponent
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


def _varies(top: Polynomial, table: dict[str, Generator]) -> bool:
    """Whether some power of a variable has a coefficient without huge parts: then the difference is not zero."""
    if any(generator.kind == "opaque" for generator in table.values()):
        return False
    if any(
        g.kind == "huge" and g.node is not None and any(n.op == "name" for n in g.node.walk()) for g in table.values()
    ):
        return False
    outer: dict[Monomial, bool] = {}
    for monomial in top:
        variables = tuple(item for item in monomial if item[0].startswith("n:"))
        plain = all(table[name].kind == "free" for name, _ in monomial)
        outer[variables] = outer.get(variables, True) and plain
    return any(variables and plain for variables, plain in outer.items())


def _dominated(top: Polynomial, table: dict[str, Generator]) -> bool:
    """Whether one huge term is larger than all the others together, so that the sum cannot be zero."""
    sizes: list[float] = []
    rest = 0.0
    for monomial, coefficient in top.items():
        if any(table[name].kind != "huge" or table[name].log2 <= 0 for name, _ in monomial):
            return False
        if monomial:
            sizes.append(sum(table[name].log2 * e for name, e in monomial) - bits(coefficient))
        else:
            rest = float(bits(coefficient) + 1)
    return len(sizes) == 1 and sizes[0] > rest
