r"""LaTeX commands with arguments, environments, sets and functions."""

from collections.abc import Sequence

from assay_math.expression import INFINITY, Node, multiplied, negate, number
from assay_math.lexer import UnreadableError
from assay_math.primaries import PrimaryReader
from assay_math.vocabulary import (
    ACCENTS,
    ALIASES,
    CONSTANTS,
    DEEP,
    DOTS,
    FENCES,
    FUNCTIONS,
    GREEK,
    MATRICES,
    OVER,
    SYMBOL_COMMANDS,
)

_ALIGNED = ("aligned", "align", "align*")
"""Environments whose rows are lines of their own."""


def determinant(rows: Sequence[Sequence[Node]]) -> Node:
    """The determinant of a small square of expressions, by its first row."""
    if len(rows) == 1:
        return rows[0][0]
    terms: list[Node] = []
    for place, cell in enumerate(rows[0]):
        minor = determinant([[*row[:place], *row[place + 1 :]] for row in rows[1:]])
        term = multiplied([cell, minor])
        terms.append(negate(term) if place % 2 else term)
    return Node("add", tuple(terms))


class CommandReader(PrimaryReader):
    """Reads what a command begins."""

    def _read_command(self) -> Node:
        command = self.token.text
        name = command[1:]
        if name in FUNCTIONS:
            self.position += 1
            return self.function(name)
        if name in CONSTANTS:
            self.position += 1
            return Node("constant", (), CONSTANTS[name])
        if command in FENCES:
            return self._absolute(command)
        if command in DOTS:
            self.position += 1
            return Node("text", (), "...")
        method = getattr(self, f"_command_{name}", None) if name.isalpha() else None
        if method is not None:
            self.position += 1
            return method()
        if command == "\\{":
            return self._set()
        return self._rarer(command)

    def _rarer(self, command: str) -> Node:
        self.position += 1
        if command in ACCENTS:
            return Node("mark", (self.argument(whole_number=True),), command[1:])
        if command in DEEP:
            rest = "".join(token.text + " " for token in self.tokens[self.position : -1])
            self._skip_deep()
            return Node("deep", (), f"{command} {rest}")
        if command in SYMBOL_COMMANDS:
            return Node("name", (), command)
        if not command[1].isalpha():
            raise UnreadableError(f"{command!r} where a number or a name is needed")
        return self.named(command) if command in GREEK else self._unknown(command)

    @staticmethod
    def _unknown(command: str) -> Node:
        raise UnreadableError(f"the command {command!r} is not known")

    def _skip_deep(self) -> None:
        """Pass over an integral, sum or limit up to the end of its bracket."""
        depth = 0
        while self.token.kind != "end":
            if self.token.text in ("(", "[", "{", "\\{"):
                depth += 1
            elif self.token.text in (")", "]", "}", "\\}"):
                if depth == 0:
                    return
                depth -= 1
            self.position += 1

    def _command_frac(self) -> Node:
        top = self.argument()
        return Node("divide", (top, self.argument()))

    def _command_binom(self) -> Node:
        top = self.argument()
        return Node("binomial", (top, self.argument()))

    _command_dbinom = _command_tbinom = _command_binom

    def _command_sqrt(self) -> Node:
        degree = self.group("]") if self.token.text == "[" else number(2)
        return Node("root", (self.argument(whole_number=True), degree))

    def _command_dollar(self) -> Node:
        self.position -= 1
        return self._money("$")

    def _command_euro(self) -> Node:
        self.position -= 1
        return self._money("€")

    def _command_pounds(self) -> Node:
        self.position -= 1
        return self._money("£")

    def _command_emptyset(self) -> Node:
        return Node("set")

    _command_varnothing = _command_emptyset

    def _command_lfloor(self) -> Node:
        inner = self.sum()
        self.expect("\\rfloor")
        return Node("floor", (inner,))

    def _command_lceil(self) -> Node:
        inner = self.sum()
        self.expect("\\rceil")
        return Node("ceil", (inner,))

    def _command_langle(self) -> Node:
        inner = self.answer()
        self.expect("\\rangle")
        return Node("tuple", inner.args if inner.op == "list" else (inner,))

    def _command_mathbb(self) -> Node:
        braced = self.accept("{")
        name = self.take().text
        if braced:
            self.expect("}")
        if name == "R":
            return Node("bracket", (negate(INFINITY), INFINITY), "()")
        return Node("name", (), f"\\mathbb{{{name}}}")

    def _command_degree(self) -> Node:
        raise UnreadableError("a degree sign without a number")

    def _command_begin(self) -> Node:
        environment = self._subscript_name()
        if environment not in MATRICES:
            raise UnreadableError(f"the environment {environment!r} is not known")
        if environment == "array" and self.token.text == "{":
            self._subscript_name()
        if environment in _ALIGNED:
            self._drop_alignment()
        rows = [self._row()]
        while self.accept("\\\\"):
            if self.token.text == "\\end":
                break
            rows.append(self._row())
        self.expect("\\end")
        self._subscript_name()
        system = environment == "cases" and all([cell.op for cell in row.args] == ["relation"] for row in rows)
        if environment in _ALIGNED or system:
            lines = tuple(row.args[0] for row in rows)
            return lines[0] if len(lines) == 1 else Node("list", lines)
        if environment == "vmatrix" and len(rows) <= 3 and all(len(row.args) == len(rows) for row in rows):
            return determinant([row.args for row in rows])
        if environment in ("vmatrix", "Vmatrix", "cases"):
            return Node("deep", tuple(rows), environment)
        return Node("matrix", tuple(rows))

    def _drop_alignment(self) -> None:
        """Take out the marks by which the lines up to the end of the environment are aligned."""
        stop = next((at for at in range(self.position, len(self.tokens)) if self.tokens[at].text == "\\end"), None)
        self.tokens[self.position : stop] = [t for t in self.tokens[self.position : stop] if t.text != "&"]

    def _row(self) -> Node:
        cells = [self.relation()]
        while self.accept("&"):
            cells.append(self.relation())
        return Node("row", tuple(cells))

    def _subscript_name(self) -> str:
        self.expect("{")
        parts: list[str] = []
        while self.token.kind != "end" and self.token.text != "}":
            parts.append(self.take().text)
        self.expect("}")
        return "".join(parts)

    def _set(self) -> Node:
        self.position += 1
        if self.accept("\\}"):
            return Node("set")
        self.in_set += 1
        inner = self.answer()
        if self.accept("\\mid", ":", "|", "\\colon"):
            inner = Node("such_that", (inner, self.answer()))
        self.in_set -= 1
        self.expect("\\}")
        if inner.op == "such_that":
            return inner
        return Node("set", inner.args if inner.op == "list" else (inner,))

    def function(self, name: str) -> Node:
        r"""A known function: its power (`\sin^2 x`), base (`\log_2 x`) and argument."""
        name = ALIASES.get(name, name)
        if name == "sqrt":
            return self._command_sqrt()
        base = self.argument(whole_number=True) if self.accept("_") else None
        exponent = self.argument(whole_number=True) if self.accept("^") else None
        if exponent == number(-1) and name in ("sin", "cos", "tan", "cot", "sec", "csc"):
            name, exponent = "arc" + name, None
        argument = self._function_argument()
        args = argument.args if argument.op == "list" else (argument,)
        node = Node("absolute", args) if name == "abs" else Node("call", args if base is None else (*args, base), name)
        return node if exponent is None else Node("power", (node, exponent))

    def _function_argument(self) -> Node:
        if self.token.kind == "symbol" and self.token.text == "(":
            node = self._round_argument()
            return node
        if self.token.kind == "symbol" and self.token.text == "{":
            return self.group("}")
        sign = self.token.kind == "symbol" and self.token.text == "-"
        if sign:
            self.position += 1
        factors = [self.power()]
        while True:
            if self.token.text in OVER and factors[-1].op in ("number", "name", "constant", "multiply"):
                self.position += 1
                factors = [Node("divide", (multiplied(factors), self.power()))]
            elif self._continues_argument(factors[-1]):
                factors.append(self.power())
            else:
                break
        inner = multiplied(factors)
        return negate(inner) if sign else inner

    def _continues_argument(self, previous: Node) -> bool:
        token = self.token
        if token.kind in ("command", "word") and token.text.lstrip("\\") in FUNCTIONS - {"sqrt"}:
            return False
        if token.kind == "number" or token.text in ("(", "[", "|"):
            return False
        return self.begins_factor(previous)

    def _round_argument(self) -> Node:
        self.position += 1
        fences, self.fences = self.fences, []
        node = self.answer()
        self.fences = fences
        self.expect(")")
        return node
