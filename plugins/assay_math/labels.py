"""Left sides that only name a value, and plus-minus signs written out."""

from collections.abc import Sequence

from assay_math.expression import Node, negate

_LABEL_OPS = frozenset(
    {"name", "apply", "mark", "constant", "multiply", "tuple", "call", "absolute", "power", "divide"}
)


def is_label(left: Node, rest: Sequence[Node]) -> bool:
    r"""Whether a left side only names the value: a variable, `f(x)`, a text, `AB`, `(p,q)`, `\cos A`, but no sum."""
    if left.op in ("text", "unit"):
        return all(part.op in ("text", "unit", "name") for part in left.walk())
    if _is_sum_of_values(left):
        return True
    parts = [left] if left.op == "apply" else list(left.walk())
    if len(parts) > 12 or not any(part.op in ("name", "apply", "mark") for part in parts):
        return False
    exponents = {id(part.args[1]) for part in parts if part.op == "power"}
    if not all(part.op in _LABEL_OPS or id(part) in exponents or _inverse(part) for part in parts):
        return False
    names = {part for part in left.walk() if part.op == "name"}
    if left.op not in ("name", "tuple"):
        return not any(part == left for side in rest for part in side.walk())
    return not any(part in names for side in rest for part in side.walk())


def _is_sum_of_values(left: Node) -> bool:
    """Whether `left` is a sum or product of an unknown function's values at numbers, as `f(-2) + f(0)`."""
    inner = list(left.walk())
    if left.op not in ("add", "multiply", "negate") or len(inner) > 24 or not any(p.op == "apply" for p in inner):
        return False
    return all(part.op in ("add", "multiply", "negate", "apply", "number", "divide") for part in inner)


def _inverse(node: Node) -> bool:
    return node.op == "power" and node.args[0].op == "name" and node.args[1].op in ("number", "negate")


def _labels(nodes: Sequence[Node]) -> list[Node]:
    return [
        node.args[0]
        for node in nodes
        if node.op == "relation" and node.name == "=" and is_label(node.args[0], node.args[1:])
    ]


def distinct_labels(nodes: Sequence[Node]) -> bool:
    """Whether every part is an equation and each names another value."""
    labels = _labels(nodes)
    return len(labels) == len(nodes) > 1 and len(set(labels)) == len(labels)


def expanded(node: Node) -> Node:
    """`node` with every plus-minus written out as a list of its values."""
    if not any(part.op == "plus_minus" for part in node.walk()):
        return node
    if node.op in ("list", "either", "set"):
        parts: list[Node] = []
        for part in node.args:
            inner = expanded(part)
            parts.extend(inner.args if inner.op == "list" and part.op != "list" else (inner,))
        return node._replace(args=tuple(parts))
    if node.op == "relation" and len(node.args) == 2 and not any(p.op == "plus_minus" for p in node.args[0].walk()):
        right = expanded(node.args[1])
        return Node("list", tuple(node._replace(args=(node.args[0], part)) for part in right.args))
    return Node("list", (_signed(node, "+"), _signed(node, "-")))


def _signed(node: Node, sign: str) -> Node:
    args = tuple(_signed(part, sign) for part in node.args)
    if node.op != "plus_minus":
        return node._replace(args=args)
    last = args[-1] if (node.name == "+") == (sign == "+") else negate(args[-1])
    return last if len(args) == 1 else Node("add", (args[0], last))
