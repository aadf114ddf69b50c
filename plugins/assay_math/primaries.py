"""The smallest parts: numbers, names, words, brackets, and the arguments of commands."""

import re
from fractions import Fraction

from assay_math.expression import ONE, Node, negate, number
from assay_math.lexer import Token, UnreadableError
from assay_math.literals import based, literal
from assay_math.unit_phrases import UnitReader
from assay_math.units import SYMBOLS
from assay_math.vocabulary import CONSTANTS, DOTS, FENCES, FUNCTIONS, is_plain_word

_PLAIN_BODY = re.compile(r"[-+]?[\d.,:/\s]*\d[\d.,:/\s]*(?:[ap]\.?\s?m\.?)?", re.IGNORECASE)
_CLOCK = re.compile(r"\s*([ap])\.?\s?m\.?$", re.IGNORECASE)


class PrimaryReader(UnitReader):
    """Reads one primary."""

    def argument(self, *, whole_number: bool = False) -> Node:
        """One TeX argument: a braced group or the next token; of a number only the first digit unless told."""
        token = self.token
        if token.text == "{" and token.kind == "symbol":
            return self.group("}")
        if token.kind == "number" and not whole_number and len(token.text) > 1:
            self.tokens[self.position] = Token("number", token.text[1:])
            return literal(token.text[0])
        if (
            token.kind == "word"
            and not is_plain_word(token.text)
            and token.text not in FUNCTIONS
            and token.text not in CONSTANTS
        ):
            self.tokens[self.position : self.position + 1] = [Token("letter", c) for c in token.text]
        return self.primary()

    def group(self, close: str) -> Node:
        """The content of a bracket that is already open at the cursor."""
        self.position += 1
        fences, self.fences = self.fences, []
        node = self.answer()
        if self.accept("\\choose"):
            node = Node("binomial", (node, self.answer()))
        self.fences = fences
        self.expect(close)
        return node

    def primary(self) -> Node:
        """One number, name, bracket, word or command."""
        self.enter()
        node = getattr(self, f"_read_{self.token.kind}")()
        self.depth -= 1
        return node

    def _read_end(self) -> Node:
        raise UnreadableError("it ends where a number or a name is needed")

    def _read_number(self) -> Node:
        text = self.take().text
        node = literal(text.rstrip("."))
        if (
            self.token.text in ("\\overline", "\\dot", "\\bar")
            and self.ahead().text == "{"
            and self.ahead(2).kind == "number"
        ):
            return self._repeating(text)
        return node

    def _repeating(self, text: str) -> Node:
        text = text.rstrip(".")
        self.position += 2
        digits = self.take().text
        self.expect("}")
        if not digits.isdigit():
            raise UnreadableError("a bar over something that is not digits")
        text = text if "." in text else text + "."
        places = len(text) - text.index(".") - 1
        start = Fraction(text + "0")
        return number(start + Fraction(int(digits), (10 ** len(digits) - 1) * 10**places))

    def _read_base(self) -> Node:
        return based(self.take().text)

    def _read_letter(self) -> Node:
        letter = self.take().text
        if letter in ("e", "i") and self.token.text not in ("_", "'"):
            return Node("constant", (), letter)
        return self.named(letter)

    def named(self, name: str) -> Node:
        """A variable with its subscript, or an unknown function with its arguments."""
        if self.accept("_"):
            name += "_" + self._subscript()
        opens = self.token.text == "(" and not self.token.space
        if opens and name == "C" and self._counts():
            return Node("binomial", self.group(")").args)
        if opens and name[0] in "fghFGHPQ" and len(name.partition("_")[0]) == 1:
            inner = self.group(")")
            return Node("apply", inner.args if inner.op == "list" else (inner,), name)
        return Node("name", (), name)

    def _counts(self) -> bool:
        """Whether two whole numbers in round brackets stand at the cursor: `C(20, 10)` counts choices."""
        return [self.ahead(place).kind == "number" for place in (1, 3)] == [True, True] and (
            self.ahead(2).text == "," and self.ahead(4).text == ")"
        )

    def _subscript(self) -> str:
        if not self.accept("{"):
            return self.take().text
        parts: list[str] = []
        while self.token.kind != "end" and self.token.text != "}":
            parts.append(self.take().text)
        self.expect("}")
        return "".join(parts)

    def _read_word(self) -> Node:
        word = self.take().text
        if word in FUNCTIONS:
            return self.function(word)
        if word in CONSTANTS:
            return Node("constant", (), CONSTANTS[word])
        if is_plain_word(word):
            return self._words(word)
        self.tokens[self.position : self.position] = [Token("letter", c) for c in word]
        return self._read_letter()

    def _words(self, first: str) -> Node:
        words = [first]
        while self.token.kind in ("word", "letter", "text") and self.token.text.lower() not in ("and", "or"):
            words.append(self.take().text)
        return Node("text", (), " ".join(words))

    def _read_text(self) -> Node:
        body = self.take().text
        if _PLAIN_BODY.fullmatch(body):
            return self.nested(_CLOCK.sub(r" \1m", body))
        if len(body) == 1 and body.isalpha():
            return Node("constant", (), body) if body in ("e", "i") else self.named(body)
        if body in FUNCTIONS:
            return self.function(body)
        return self._words(body)

    def _read_symbol(self) -> Node:
        text = self.token.text
        if text == "(":
            return self._round()
        if text == "[":
            return self._square()
        if text == "{":
            return self.group("}")
        if text in FENCES:
            return self._absolute(text)
        if text in SYMBOLS:
            return self._money(text)
        if text in DOTS:
            self.position += 1
            return Node("text", (), "...")
        raise UnreadableError(f"{text!r} where a number or a name is needed")

    def _money(self, sign: str) -> Node:
        self.position += 1
        if self.token.text == "-" and self.token.kind == "symbol":
            self.position += 1
            return Node("unit", (negate(self.power()),), sign)
        return Node("unit", (self.power(),), sign)

    def _bracketed(self) -> tuple[Node, str]:
        self.position += 1
        fences, self.fences = self.fences, []
        inner = self.answer()
        self.fences = fences
        close = self.take().text
        if close not in (")", "]"):
            raise UnreadableError("a bracket that never closes")
        return inner, close

    def _round(self) -> Node:
        inner, close = self._bracketed()
        if close == "]":
            if inner.op != "list" or len(inner.args) != 2:
                raise UnreadableError("brackets that do not match")
            return Node("bracket", inner.args, "(]")
        if inner.op == "list":
            return Node("tuple", inner.args)
        if inner.op == "number" and not inner.name and self.token.text == "_":
            digits = str(inner.number)
            self.position += 1
            base = self._subscript()
            if base.isdigit() and len(base) <= 2:
                return based(f"{digits}_{base}")
            raise UnreadableError("a base that is not a number")
        # A bracket keeps `2(3/4)` a product: only a bare fraction joins a whole number.
        return inner if inner.op != "divide" else Node("multiply", (ONE, inner))

    def _square(self) -> Node:
        inner, close = self._bracketed()
        if inner.op == "list" and (close == "]" or len(inner.args) == 2):
            return Node("bracket", inner.args, "[" + close)
        if close == ")":
            raise UnreadableError("brackets that do not match")
        return inner

    def _absolute(self, opening: str) -> Node:
        self.position += 1
        self.fences.append(FENCES[opening])
        inner = self.sum()
        self.expect(self.fences.pop())
        return Node("absolute", (inner,))
