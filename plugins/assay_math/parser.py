r"""Tokens to a tree: a recursive-descent reader of the LaTeX and plain mathematics that answers are written in.

Its only output is `Node`; no text is ever evaluated. Nesting is bounded, so that hostile input ends in
`UnreadableError` instead of a deep stack. Conventions where notation is ambiguous: a sign belongs to a whole mixed
number, `1/2x` is `(1/2)x`, `\sin 2x` takes the whole product up to the next sign or function, a lone `i` is the
imaginary unit.
"""

import re
from typing import Literal, cast

from assay_math.commands import CommandReader
from assay_math.expression import Node, multiplied, negate
from assay_math.lexer import Token, Tokens, UnreadableError, lex
from assay_math.literals import literal
from assay_math.vocabulary import (
    DOTS,
    ENDS_PRODUCT,
    FENCES,
    JOINTS,
    OVER,
    RELATIONS,
    SETS,
    TIMES,
    UNIT_LETTERS,
    is_plain_word,
)

_INTEGER = re.compile(r"\d+")
_SCALED = ("%", "\\%", "^", "\\circ")
"""What may follow a mixed number that is written with a slash."""
_LEAD_IN = re.compile(
    r"(?!.*\b(?:wrong|incorrect|false|not|never|except|up to|next to|close to|at least|at most)\b)"
    r"(?:.*\b(?:answer|is|are|equals?|be|to|about|approximately|approx\.?|around|roughly)|.*[:=：]|(?:thus|so|therefore|hence),?)\s*",
    re.I | re.S,
)


def parse(text: str, *, groups: bool = True) -> tuple[Node, Tokens]:
    """The tree of normalised `text` and its tokens; raises `UnreadableError`."""
    tokens = lex(text, groups=groups)
    reader = Reader(list(tokens.items))
    node = reader.answer()
    if reader.token.kind != "end":
        raise UnreadableError(f"{reader.token.text!r} does not fit where it stands")
    return node, tokens


class Reader(CommandReader):
    """Reads lists, relations, sums, products and powers."""

    def nested(self, text: str) -> Node:
        """The tree of another text."""
        return parse(text)[0]

    def answer(self) -> Node:
        """Everything up to a closing bracket or the end: one item, or a list of them."""
        self.enter()
        items = [self.relation()]
        alternatives = dots = False
        while (joint := self.joint()) is not None:
            alternatives |= joint == "or"
            if self.token.kind == "end" or self.token.text in (")", "]", "\\}", "}"):
                break
            items.append(self.relation())
        self.depth -= 1
        dots = any(item.op == "text" and item.name == "..." for item in items)
        if dots:
            return Node("range", tuple(item for item in items if item.name != "..."))
        if len(items) == 1:
            return items[0]
        return Node("either" if alternatives else "list", tuple(items))

    def joint(self) -> Literal["and", "or"] | None:
        """What joins two items, if anything does; consumes all of `,`, `and`, `, or` ..."""
        found: str | None = None
        while self.token.kind in ("symbol", "word", "text", "command"):
            joint = JOINTS.get(self.token.text.lower().strip(" ,") or ",")
            if joint is None:
                break
            # `a, or b` is an alternative; a comma alone is not.
            found = "or" if joint == "or" else (found or joint)
            self.position += 1
        return cast('Literal["and", "or"] | None', found)

    def relation(self) -> Node:
        """One item: sides joined by comparison signs, a ratio, a range, or a single side."""
        parts = [self._left_side()]
        signs: list[str] = []
        while True:
            token = self.token
            if token.kind == "symbol" and token.text == ":" and not self.in_set:
                self.position += 1
                parts[-1] = self._ratio(parts[-1], self.sets())
                continue
            if token.kind == "symbol" and token.text == "..":
                self.position += 1
                parts[-1] = Node("range", (parts[-1], self.sets()))
                continue
            if token.kind == "word" and token.text == "to":
                self.position += 1
                parts[-1] = Node("range", (parts[-1], self.sets()))
                continue
            sign = RELATIONS.get(token.text) if token.kind in ("symbol", "command") else None
            if token.kind == "command" and token.text == "\\not" and self.ahead().text in ("=", "\\in"):
                self.position += 1
                sign = "!=" if self.token.text == "=" else "notin"
            if sign is None:
                break
            self.position += 1
            signs.append(sign)
            parts.append(self.sets())
        return Node("relation", tuple(parts), " ".join(signs)) if signs else parts[0]

    def _left_side(self) -> Node:
        r"""The first side; `= 5` and `\approx 5` are `5`, and `\ge 5` is a condition on an unnamed variable."""
        sign = RELATIONS.get(self.token.text) if self.token.kind in ("symbol", "command") else None
        if sign in ("=", "~"):
            self.position += 1
        elif sign in ("<", ">", "<=", ">="):
            return Node("name", (), "?")
        return self.sets()

    @staticmethod
    def _ratio(left: Node, right: Node) -> Node:
        """`a:b`, with a unit behind it (`9:45 pm`) around the whole."""
        whole = left.args if left.op == "ratio" else (left,)
        if right.op == "unit":
            return right._replace(args=(Node("ratio", (*whole, right.args[0])),))
        return Node("ratio", (*whole, right))

    def sets(self) -> Node:
        """Sums joined by set operations."""
        left = self.sum()
        while True:
            token = self.token
            op = SETS.get(token.text) if token.kind == "command" else None
            if token.kind == "letter" and token.text == "U" and left.op in ("tuple", "bracket", "set", "union"):
                op = "union"
            if op is None:
                return left
            self.position += 1
            left = Node(op, (left, self.sum()))

    def sum(self) -> Node:
        """Terms joined by signs, with the unit behind them."""
        left: Node | None = None
        terms: list[Node] = []
        while True:
            sign = self._sign(first=left is None and not terms)
            if sign is None:
                break
            term = self.product()
            if sign in ("+", "-"):
                terms.append(term if sign == "+" else negate(term))
                continue
            name = "+" if sign == "\\pm" else "-"
            if not terms and left is None:
                left = Node("plus_minus", (term,), name)
            else:
                left = Node("plus_minus", (self._added(left, terms), term), name)
                terms = []
        return self.with_unit(self._added(left, terms))

    def _sign(self, *, first: bool) -> str | None:
        """The sign before the next term (folding `+ -`), or None when the sum ends."""
        sign = None
        while self.token.kind in ("symbol", "command") and self.token.text in ("+", "-", "\\pm", "\\mp"):
            found = self.take().text
            if sign is None or sign == "+":
                sign = found
            elif found == "-":
                sign = {"-": "+", "\\pm": "\\mp", "\\mp": "\\pm"}[sign]
        return sign or ("+" if first else None)

    @staticmethod
    def _added(left: Node | None, terms: list[Node]) -> Node:
        parts = ([left] if left else []) + terms
        return parts[0] if len(parts) == 1 else Node("add", tuple(parts))

    def product(self) -> Node:
        """Factors joined by signs or by standing side by side."""
        if self.token.kind == "text" and self.ahead().kind != "end" and _LEAD_IN.fullmatch(self.token.text):
            self.position += 1
            if self.at("+", "-"):
                return negate(self.product()) if self.take().text == "-" else self.product()
        factors = [self.power()]
        while True:
            token = self.token
            if token.kind in ("symbol", "command") and token.text in TIMES:
                self.position += 1
                factors.append(self.signed_power())
            elif token.kind in ("symbol", "command") and token.text in OVER:
                self.position += 1
                factors = [Node("divide", (multiplied(factors), self.signed_power()))]
            elif self.begins_factor(factors[-1]):
                self._juxtapose(factors)
            else:
                return multiplied(factors)

    def signed_power(self) -> Node:
        """A factor that may carry its own sign, as behind a multiplication sign."""
        if self.token.kind == "symbol" and self.token.text in ("-", "+"):
            sign = self.take().text
            inner = self.power()
            return negate(inner) if sign == "-" else inner
        return self.power()

    def begins_factor(self, previous: Node) -> bool:
        """Whether the next token begins a factor that is joined without a sign."""
        token = self.token
        if token.kind in ("letter", "base"):
            if self._lone_unit(previous) or self.at_article():
                return False
            return token.text != "U" or previous.op not in ("tuple", "bracket", "set", "union")
        if token.kind == "number":
            return True
        if token.kind == "word":
            return not is_plain_word(token.text) and not self.at_article()
        if token.kind == "text":
            bare_letter = len(token.text) == 1 and token.text.isascii() and token.text not in UNIT_LETTERS
            return previous.op == "text" or bare_letter
        if token.text == "\\frac" and self._unit_fraction():
            return False
        if token.kind == "command":
            if token.text in RELATIONS or token.text in SETS or token.text in DOTS:
                return False
            if token.text in FENCES:
                return not (self.fences and token.text == self.fences[-1])
            return token.text == "\\{" or (token.text[1].isalpha() and token.text not in ENDS_PRODUCT)
        if token.text == "|":
            return not self.fences and not self.in_set
        return token.text in ("(", "[", "{")

    def _juxtapose(self, factors: list[Node]) -> None:
        previous, token = factors[-1], self.token
        whole = previous.op == "number" and not previous.name and len(factors) == 1
        before = self.tokens[self.position - 1]
        if token.kind == "number":
            if whole and before.kind == "number" and token.space and self._fraction_follows():
                top = literal(self.take().text)
                self.position += 1
                mixed = self._mixed(previous, Node("divide", (top, literal(self.take().text))))
                factors[-1] = self._postfixed(mixed) if self.token.text in _SCALED else mixed
                return
            if previous.op == "number" and before.kind == "number":
                raise UnreadableError(f"two numbers side by side: {before.text!r} and {token.text!r}")
        following = self.power()
        if whole and before.kind == "number" and token.text == "\\frac":
            # A percent or degree sign belongs to the whole mixed number.
            part = following.args[0] if following.op in ("percent", "degree") else following
            if self._is_proper(part):
                mixed = self._mixed(previous, part)
                factors[-1] = mixed if part is following else following._replace(args=(mixed,))
                return
        factors.append(following)

    def _fraction_follows(self) -> bool:
        over, bottom = self.ahead(1), self.ahead(2)
        return (
            over.text == "/"
            and bottom.kind == "number"
            and _INTEGER.fullmatch(self.token.text) is not None
            and _INTEGER.fullmatch(bottom.text) is not None
            and int(self.token.text) < int(bottom.text)
        )

    @staticmethod
    def _is_proper(node: Node) -> bool:
        if node.op != "divide" or any(part.op != "number" or part.name for part in node.args):
            return False
        return 0 < node.args[0].number < node.args[1].number

    @staticmethod
    def _mixed(whole: Node, part: Node) -> Node:
        return Node("mixed", (whole, part))

    def power(self) -> Node:
        """A primary with its exponents, factorials, percent and degree signs."""
        self.enter()
        node = self._postfixed(self.primary())
        self.depth -= 1
        return node

    def _postfixed(self, node: Node) -> Node:
        while True:
            token = self.token
            if token.kind not in ("symbol", "command"):
                return node
            if token.text in ("^", "**"):
                self.position += 1
                node = self._raised(node)
            elif token.text == "!":
                self.position += 1
                if self.token.text == "!" and not self.token.space:
                    self.position += 1
                    node = Node("deep", (node,), "double factorial")
                else:
                    node = Node("factorial", (node,))
            elif token.text == "!=" and node.op == "number":
                self.tokens[self.position] = Token("symbol", "=")
                node = Node("factorial", (node,))
            elif token.text in ("%", "\\%"):
                self.position += 1
                node = Node("percent", (node,))
            elif token.text == "'" and node.op in ("name", "apply"):
                self.position += 1
                node = node._replace(name=node.name + "'")
            elif token.text == "\\circ" and node.op == "number":
                self.position += 1
                node = Node("degree", (node,))
            else:
                return node

    def _raised(self, base: Node) -> Node:
        if self.token.text == "\\circ" or (
            self.token.text == "{" and self.ahead().text == "\\circ" and self.ahead(2).text == "}"
        ):
            self.position += 1 if self.token.text == "\\circ" else 3
            scale = self.token
            if scale.kind in ("letter", "text") and scale.text in ("C", "F", "K"):
                self.position += 1
                return Node("unit", (base,), "°" + scale.text)
            return Node("degree", (base,))
        if self.token.text in ("\\prime", "'"):
            self.position += 1
            return base._replace(name=base.name + "'")
        if self.token.kind == "symbol" and self.token.text in ("-", "+"):
            sign = self.take().text
            exponent = self._raised_part()
            exponent = negate(exponent) if sign == "-" else exponent
        else:
            exponent = self._raised_part()
        return Node("power", (base, exponent))

    def _raised_part(self) -> Node:
        self.enter()
        node = self.argument(whole_number=True)
        if self.accept("^", "**"):
            node = self._raised(node)
        self.depth -= 1
        return node
