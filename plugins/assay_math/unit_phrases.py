"""Units behind a number: words, powers, fractions of words, currency signs."""

from assay_math.cursor import Cursor
from assay_math.expression import Node
from assay_math.lexer import UnreadableError
from assay_math.units import SYMBOLS, may_be_unit
from assay_math.vocabulary import UNIT_LETTERS, is_plain_word


class UnitReader(Cursor):
    """Reads what a number is counted in."""

    def with_unit(self, node: Node) -> Node:
        """`node` with the unit, percent or degree words that follow it."""
        start = self.position
        phrase = self._unit_phrase() if self._unit_begins(node) else ""
        if not phrase:
            return node
        word = phrase.lower().strip(" .")
        if word in ("percent", "per cent", "percentage", "pct", "%", "\\%"):
            return Node("percent", (node,))
        if not may_be_unit(phrase):
            self.position = start
            raise UnreadableError(f"words after a number that are not its unit: {phrase!r}")
        return Node("unit", (node,), phrase)

    def _unit_begins(self, node: Node) -> bool:
        if node.op in ("text", "set", "tuple", "bracket", "matrix", "list", "union"):
            return False
        token = self.token
        if token.text in SYMBOLS or token.text == "\\dollar" or self._lone_unit(node):
            return True
        if (token.text == "\\frac" and self._unit_fraction()) or self.at_article():
            return True
        if token.kind not in ("word", "text") or token.text.lower().strip(" ,") in ("and", "or", "to", "&", "和", "或"):
            return False
        return token.kind == "text" or is_plain_word(token.text)

    def _unit_phrase(self) -> str:
        parts: list[str] = []
        while True:
            token = self.token
            if token.kind == "text" or token.kind == "word" or token.text in SYMBOLS:
                if token.text.lower().strip(" ,") in ("and", "or") and token.kind in ("word", "text"):
                    break
                parts.append(" " + token.text)
            elif token.text == "\\dollar":
                parts.append(" $")
            elif token.text == "\\frac" and self._unit_fraction():
                parts.append(self._fraction_of_units())
                continue
            elif token.kind == "letter" and token.space:
                parts.append(" " + token.text)
            elif token.text in ("^", "**") and parts:
                self.position += 1
                parts.append("^" + self._exponent_of_unit())
                continue
            elif token.text in ("/", "-", "*", "\\cdot") and parts and self.ahead().kind in ("text", "word", "letter"):
                parts.append({"\\cdot": "*"}.get(token.text, token.text))
                self.position += 1
                parts.append(self.take().text)
                continue
            else:
                break
            self.position += 1
        return "".join(parts).strip()

    def _fraction_of_units(self) -> str:
        self.position += 2
        top = self.take().text
        self.expect("}")
        self.expect("{")
        bottom = self.take().text
        if self.accept("^"):
            bottom += "^" + self._exponent_of_unit()
        self.expect("}")
        return f" {top}/{bottom}"

    def _exponent_of_unit(self) -> str:
        braced = self.accept("{")
        sign = "-" if self.accept("-") else ""
        digits = self.take().text
        if braced:
            self.expect("}")
        if not digits.isdigit() or len(digits) > 2:
            raise UnreadableError("a unit with an exponent that is not a number")
        return sign + digits

    def _unit_fraction(self) -> bool:
        r"""Whether `\\frac{\\text{km}}{\\text{h}}` stands at the cursor."""
        return self.ahead(1).text == "{" and self.ahead(2).kind == "text" and self.ahead(3).text == "}"

    def at_article(self) -> bool:
        """Whether the article of a rate stands at the cursor, as in `$12 a day`."""
        token, following = self.token, self.ahead()
        words = following.kind == "word" and following.space and is_plain_word(following.text)
        return token.text in ("a", "an") and token.kind in ("letter", "word") and token.space and words

    def _lone_unit(self, previous: Node) -> bool:
        """Whether a last letter that stands apart is a unit symbol, as in `15 m`."""
        token = self.token
        lone = token.kind == "letter" and token.space and token.text in UNIT_LETTERS and self.ahead().kind == "end"
        return lone and previous.op == "number" and self.tokens[self.position - 1].kind == "number"
