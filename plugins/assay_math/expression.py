"""The tree that an answer is read into: one plain node type, so that every layer can walk it without a visitor."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal, NamedTuple

ZERO = Fraction(0)

Op = Literal[
    # scalars
    "number",  # .number; .name is the literal as written where it is a decimal
    "name",  # a variable
    "constant",  # pi, e, i, infinity
    "add",
    "multiply",
    "negate",
    "divide",
    "power",
    "root",  # (radicand, degree)
    "call",  # .name of a known function
    "apply",  # .name of an unknown function
    "absolute",
    "floor",
    "ceil",
    "factorial",
    "binomial",
    "plus_minus",  # (x) or (a, b); .name is "+" or "-" for the upper sign
    "degree",
    "percent",
    "mixed",  # (whole, fraction): a sum that is one literal
    "mark",  # an accent such as \overline over names; .name
    "deep",  # an integral, sum, limit ...: only the worker can say more; .name
    # structures
    "unit",  # (quantity); .name is the unit as written
    "text",
    "base",  # .name is "digits_base"; .number its value
    "ratio",  # 3:1, 12:30
    "list",  # a bare list, order free
    "either",  # alternatives joined by "or"
    "set",
    "tuple",  # parenthesised
    "bracket",  # square or mixed brackets; .name is "[]", "[)" or "(]"
    "range",  # 1..100, 5, ..., 8
    "union",
    "intersection",
    "difference",
    "matrix",
    "row",
    "relation",  # (left, right, ...); .name is the signs joined by a space
    "such_that",  # {x | condition}
]


class Node(NamedTuple):
    """One node: what it is, its parts, and a literal where it has one."""

    op: Op
    args: tuple["Node", ...] = ()
    name: str = ""
    number: Fraction = ZERO

    def walk(self) -> Iterator["Node"]:
        """This node and everything below it, without recursion."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.args)


def number(value: Fraction | int, literal: str = "") -> Node:
    """A number; `literal` is how a decimal was written."""
    return Node("number", (), literal, Fraction(value))


ONE = number(1)
TWO = number(2)
TEN = number(10)
INFINITY = Node("constant", (), "infinity")
PI = Node("constant", (), "pi")


def negate(node: Node) -> Node:
    """Minus `node`, folded into a number's sign."""
    if node.op == "number":
        return Node("number", (), node.name and "-" + node.name, -node.number)
    return Node("negate", (node,))


def multiplied(factors: list[Node]) -> Node:
    """The product of one or more factors."""
    return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))
