"""Sets of real numbers as sorted, merged segments: intervals, unions, inequalities in one variable, single points."""

import math
from fractions import Fraction
from typing import NamedTuple

from assay_math import algebra
from assay_math.expression import INFINITY, Node, negate, number
from assay_math.numeric import approximate
from assay_math.polynomials import TooCostlyError, UndefinedError

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class End(NamedTuple):
    """One end of a segment: its place on the line, whether it belongs to the segment, and the expression."""

    place: float
    closed: bool
    node: Node


class Segment(NamedTuple):
    """The reals between two ends; a point when both places are equal."""

    low: End
    high: End


class Region(NamedTuple):
    """A set of reals and the variable that it was written in, if any."""

    segments: tuple[Segment, ...]
    variable: str = ""


_BOTTOM = End(-math.inf, False, negate(INFINITY))
_TOP = End(math.inf, False, INFINITY)


def region(node: Node, *, pairs: bool = True) -> Region | None:
    """The set that `node` describes, or None where it describes none; `(a,b)` is an open interval with `pairs`."""
    if node.op == "bracket" and len(node.args) == 2:
        return _interval(node.args[0], node.args[1], node.name)
    if node.op == "tuple" and len(node.args) == 2:
        return _interval(node.args[0], node.args[1], "()") if pairs else None
    if node.op == "set":
        points = [_point(part) for part in node.args]
        return None if None in points else Region(merge([Segment(p, p) for p in points if p is not None]))
    if node.op in ("union", "intersection", "difference"):
        return _combined(node)
    if node.op == "such_that":
        return region(node.args[1])
    if node.op == "relation":
        return _related(node)
    if node.op in ("either", "list"):
        if all(_is_condition(part) for part in node.args):
            return _conditions(node)
        if all(is_region(part) for part in node.args):
            return _conditions(node._replace(op="either"))
    return None


def is_region(node: Node) -> bool:
    """Whether `node` is written as a set of reals (an open pair alone is not: it may be a point of the plane)."""
    if node.op in ("bracket", "union", "intersection", "difference", "such_that"):
        return node.op != "bracket" or len(node.args) == 2
    if node.op in ("either", "list"):
        return all(is_region(part) for part in node.args)
    return _is_condition(node)


def _is_condition(node: Node) -> bool:
    return node.op == "relation" and any(
        sign in ("<", ">", "<=", ">=", "in", "notin", "!=") for sign in node.name.split()
    )


def _place(node: Node) -> float | None:
    if node == INFINITY or (node.op == "negate" and node.args[0] == INFINITY):
        return math.inf if node == INFINITY else -math.inf
    if node.op == "number":
        return float(node.number) if abs(node.number) < 10**300 else None
    if node.op == "add" and len(node.args) == 1:
        return _place(node.args[0])
    value = approximate(node)
    if value is None or any(part.op in ("name", "apply", "mark") for part in node.walk()):
        return None
    return float(value.real)


def _point(node: Node) -> End | None:
    place = _place(node)
    return None if place is None else End(place, True, node)


def _interval(low: Node, high: Node, brackets: str) -> Region | None:
    left, right = _place(low), _place(high)
    if left is None or right is None or left > right:
        return None
    return Region((Segment(End(left, brackets[0] == "[", low), End(right, brackets[1] == "]", high)),))


def _combined(node: Node) -> Region | None:
    left, right = region(node.args[0]), region(node.args[1])
    if left is None or right is None:
        return None
    if node.op == "union":
        return Region(merge([*left.segments, *right.segments]), left.variable or right.variable)
    if node.op == "difference":
        return Region(intersect(left.segments, complement(right.segments)), left.variable)
    return Region(intersect(left.segments, right.segments), left.variable or right.variable)


def merge(segments: list[Segment]) -> tuple[Segment, ...]:
    """The union as sorted segments that do not touch."""
    kept: list[Segment] = []
    for segment in sorted(segments, key=lambda s: (s.low.place, not s.low.closed, s.high.place)):
        if kept:
            last = kept[-1]
            touches = segment.low.place < last.high.place or (
                segment.low.place == last.high.place and (segment.low.closed or last.high.closed)
            )
            if touches:
                high = max(last.high, segment.high, key=lambda end: (end.place, end.closed))
                kept[-1] = Segment(last.low, high)
                continue
        kept.append(segment)
    return tuple(kept)


def complement(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """What the real line has outside sorted segments."""
    found: list[Segment] = []
    low = _BOTTOM
    for segment in segments:
        high = End(segment.low.place, not segment.low.closed, segment.low.node)
        holds = high.place > low.place or (high.place == low.place and high.closed and low.closed)
        if holds and high.place > -math.inf:
            found.append(Segment(low, high))
        low = End(segment.high.place, not segment.high.closed, segment.high.node)
    if low.place < math.inf:
        found.append(Segment(low, _TOP))
    return tuple(found)


def intersect(left: tuple[Segment, ...], right: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The common part of two sorted sets of segments."""
    found: list[Segment] = []
    for one in left:
        for two in right:
            low = max(one.low, two.low, key=lambda end: (end.place, not end.closed))
            high = min(one.high, two.high, key=lambda end: (end.place, end.closed))
            if low.place < high.place or (low.place == high.place and low.closed and high.closed):
                found.append(Segment(low, high))
    return merge(found)


def _conditions(node: Node) -> Region | None:
    parts = [region(part) for part in node.args]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    variables = {part.variable for part in known if part.variable}
    if len(variables) > 1:
        return None
    variable = next(iter(variables), "")
    union = merge([segment for part in known for segment in part.segments])
    if node.op == "either":
        return Region(union, variable)
    both = known[0].segments
    for part in known[1:]:
        both = intersect(both, part.segments)
    # `x < -3, x > 5` cannot be meant as "both": it is the union of its parts.
    return Region(both or union, variable)


def _related(node: Node) -> Region | None:
    signs = node.name.split()
    if signs == ["in"] or signs == ["notin"]:
        inner = region(node.args[1])
        if inner is None or node.args[0].op != "name":
            return None
        segments = inner.segments if signs == ["in"] else complement(inner.segments)
        return Region(segments, node.args[0].name)
    if any(sign not in _FLIPPED for sign in signs):
        return None
    result: Region | None = None
    for left, sign, right in zip(node.args, signs, node.args[1:], strict=False):
        half = _half_line(left, sign, right)
        if half is None or (result is not None and result.variable != half.variable):
            return None
        result = half if result is None else Region(intersect(result.segments, half.segments), half.variable)
    return result


def _half_line(left: Node, sign: str, right: Node) -> Region | None:
    """The solutions of one comparison that is linear in one variable with a rational slope."""
    if left == INFINITY or right == INFINITY or negate(INFINITY) in (left, right):
        return _unbounded(left, sign, right)
    if right.op == "absolute":
        left, sign, right = right, _FLIPPED[sign], left
    if left.op == "absolute":
        return _distance(left.args[0], sign, right)
    if right.op == "name" and left.op != "name":
        left, sign, right = right, _FLIPPED[sign], left
    if left.op == "name" and _place(right) is not None:
        return _ray(left.name, sign, right)
    try:
        difference = algebra.form(Node("add", (left, negate(right))))
    except (TooCostlyError, UndefinedError):
        return None
    names = [name for name in difference.generators if name.startswith("n:")]
    top, bottom = difference.ratio
    if len(names) != 1 or bottom != {(): Fraction(1)}:
        return None
    slope = top.get(((names[0], 1),), Fraction(0))
    if slope == 0 or set(top) - {((names[0], 1),), ()}:
        return None
    root = number(-top.get((), Fraction(0)) / slope)
    return _ray(names[0][2:], sign if slope > 0 else _FLIPPED[sign], root)


def _distance(inner: Node, sign: str, bound: Node) -> Region | None:
    """The solutions of `|inner| sign bound` for a positive bound."""
    place = _place(bound)
    if place is None or place <= 0 or sign not in ("<", "<=", ">", ">="):
        return None
    above, below = _half_line(inner, sign, bound), _half_line(inner, _FLIPPED[sign], negate(bound))
    if above is None or below is None:
        return None
    if sign.startswith("<"):
        return Region(intersect(above.segments, below.segments), above.variable)
    return Region(merge([*below.segments, *above.segments]), above.variable)


def _unbounded(left: Node, sign: str, right: Node) -> Region | None:
    """`-oo < x` and the like, which say nothing beyond the variable."""
    name = left if left.op == "name" else right
    return Region((Segment(_BOTTOM, _TOP),), name.name) if name.op == "name" and sign != "=" else None


def _ray(variable: str, sign: str, bound: Node) -> Region | None:
    place = _place(bound)
    if place is None:
        return None
    if sign == "=":
        return Region((Segment(End(place, True, bound), End(place, True, bound)),), variable)
    if sign == "!=":
        point = End(place, False, bound)
        return Region((Segment(_BOTTOM, point), Segment(point, _TOP)), variable)
    end = End(place, "=" in sign, bound)
    return Region((Segment(_BOTTOM, end) if sign.startswith("<") else Segment(end, _TOP),), variable)
