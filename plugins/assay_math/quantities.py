"""A scalar with what it is counted in: units, currencies, percent and degree signs taken apart from the number."""

from fractions import Fraction
from typing import NamedTuple

from assay_math.expression import PI, Node, negate, number
from assay_math.units import GENERIC, Unit, in_common, is_currency, multiplier, read_unit, same_noun


class Quantity(NamedTuple):
    """A scalar expression and its unit as written (empty for none)."""

    value: Node
    phrase: str = ""
    percent: bool = False

    @property
    def unit(self) -> Unit | None:
        """The listed unit, or None for a plain noun or nothing."""
        return read_unit(self.phrase) if self.phrase else None


def quantity(node: Node) -> Quantity:
    """`node` taken apart into number and unit."""
    if node.op == "negate":
        inner = quantity(node.args[0])
        return inner._replace(value=negate(inner.value)) if inner.phrase or inner.percent else Quantity(node)
    if node.op == "degree":
        return Quantity(node.args[0], "°")
    if node.op == "percent":
        return Quantity(node, percent=True)
    if node.op == "unit":
        return _with_phrase(quantity(node.args[0]), node.name)
    if node.op == "multiply":
        for place, part in enumerate(node.args):
            if part.op == "unit" or (part.op == "degree" and place == len(node.args) - 1):
                inner = quantity(part)
                rest = (*node.args[:place], inner.value, *node.args[place + 1 :])
                return inner._replace(value=Node("multiply", rest))
    return Quantity(node)


def _with_phrase(inner: Quantity, phrase: str) -> Quantity:
    factor, rest = multiplier(phrase)
    value = Node("multiply", (inner.value, number(factor))) if factor != 1 else inner.value
    if inner.phrase and rest:
        known = read_unit(rest)
        # A noun behind a unit says what is counted (`$5 profit`); a second unit multiplies the first.
        kept = inner.unit == known if known is not None else inner.unit is not None
        rest = inner.phrase if kept else f"{inner.phrase} {rest}"
    return Quantity(value, rest or inner.phrase, inner.percent)


def reconcile(left: Quantity, right: Quantity, rule: str) -> tuple[Node, Node] | str:
    """The two numbers to compare once units are settled, or a sentence on why the units already differ."""
    if rule == "ignore" or (not left.phrase and not right.phrase):
        return left.value, right.value
    if not left.phrase or not right.phrase:
        if rule == "required" and left.phrase:
            return f"the unit {left.phrase!r} is missing"
        return _one_sided(left, right)
    one, two = in_common(left.phrase, right.phrase)
    if left.phrase in GENERIC or right.phrase in GENERIC:
        return left.value, right.value
    if one is None and two is None:
        if same_noun(left.phrase, right.phrase):
            return left.value, right.value
        return f"{left.phrase!r} and {right.phrase!r} are different units"
    if one is None or two is None or one.dimension != two.dimension:
        return f"{left.phrase!r} and {right.phrase!r} are different units"
    if one == two:
        return left.value, right.value
    if rule in ("same", "required"):
        return f"{left.phrase!r} and {right.phrase!r} are different units and the task asks for the same"
    return _sized(left.value, one), _sized(right.value, two)


def _one_sided(left: Quantity, right: Quantity) -> tuple[Node, Node]:
    """A missing unit is fine; a bare multiple of pi beside a degree sign is in radians."""
    for with_unit, bare, swapped in ((left, right, False), (right, left, True)):
        unit = with_unit.unit
        if unit is None or not unit.radian or bare.phrase:
            continue
        if any(part == PI for part in bare.value.walk()) and not any(part == PI for part in with_unit.value.walk()):
            pair = (_sized(with_unit.value, unit), bare.value)
            return (pair[1], pair[0]) if swapped else pair
    return left.value, right.value


def _sized(value: Node, unit: Unit) -> Node:
    parts: list[Node] = [value]
    if unit.factor != 1:
        parts.append(number(Fraction(unit.factor)))
    if unit.radian:
        parts.append(PI)
    return Node("multiply", tuple(parts)) if len(parts) > 1 else value


__all__ = ["Quantity", "is_currency", "quantity", "reconcile"]
