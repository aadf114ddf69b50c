"""Matrices and vectors: rows, and products with numbers and transposes written out."""

from collections.abc import Callable

from assay_math.expression import ONE, Node, multiplied, negate

_TRANSPOSE = (Node("name", (), "T"), Node("text", (), "T"))


def rows_of(node: Node) -> list[tuple[Node, ...]] | None:
    """The rows of a matrix, or of a tuple as a column; None for anything else."""
    if node.op == "matrix":
        return [row.args for row in node.args]
    if node.op == "tuple":
        return [(part,) for part in node.args]
    return None


def written_out(node: Node) -> Node:
    r"""A scalar times a matrix, a matrix over a scalar, its negative and its transpose, as one matrix.

    Anything else, as a product of two matrices, stays as it is.
    """
    if node.op not in ("multiply", "negate", "divide", "power") or not any(
        part.op in ("matrix", "tuple") for part in node.walk()
    ):
        return node
    if node.op == "negate":
        return _each(written_out(node.args[0]), node, negate)
    if node.op == "divide":
        bottom = node.args[1]
        return _each(written_out(node.args[0]), node, lambda cell: Node("divide", (cell, bottom)))
    if node.op == "power":
        return _transposed(node)
    parts = [written_out(part) for part in node.args]
    found = [part for part in parts if part.op == "matrix"]
    scalars = [part for part in parts if part.op != "matrix"]
    if len(found) != 1 or any(inner.op == "matrix" for part in scalars for inner in part.walk()):
        return node
    return _each(found[0], node, lambda cell: multiplied([*(part for part in scalars if part != ONE), cell]))


def _each(matrix: Node, node: Node, change: Callable[[Node], Node]) -> Node:
    """`matrix` with every cell changed; `node` where it is no matrix."""
    if matrix.op != "matrix":
        return node
    return Node("matrix", tuple(row._replace(args=tuple(map(change, row.args))) for row in matrix.args))


def _transposed(node: Node) -> Node:
    base, exponent = node.args
    if exponent in _TRANSPOSE and base.op == "tuple":
        return base  # a column, however it is written
    matrix = written_out(base)
    rows = rows_of(matrix) if matrix.op == "matrix" else None
    if rows is None or exponent not in _TRANSPOSE or len({len(row) for row in rows}) != 1:
        return node
    return Node("matrix", tuple(Node("row", column) for column in zip(*rows, strict=True)))
