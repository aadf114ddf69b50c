r"""Tokens to a tree: a recursive-descent reader of the LaTeX and plain mathematics that answers are written in.

Its only output is `Node`; no text is ever evaluated. Nesting is bounded, so that hostile input ends in `Unreadable`
instead of a deep stack. Conventions where notation is ambiguous: a sign belongs to a whole mixed number, `1/2x` is
`(1/2)x`, `\sin 2x` takes the whole product up to the next sign or function, a lone `i` is the imaginary unit.
"""

import re
from fractions import Fraction
from typing import Literal

from assay_math.expression import INFINITY, ONE, TEN, Node, Op, negate, number
from assay_math.lexer import Token, Tokens, Unreadable, lex
from assay_math.units import SYMBOLS, is_unit_word, may_be_unit

MAX_DEPTH = 48

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch asin acos atan "
    "log ln lg exp sqrt abs max min gcd lcm det arg sgn Re Im arsinh arcosh artanh".split()
)
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
_CONSTANTS = {"pi": "pi", "infty": "infinity", "infinity": "infinity", "inf": "infinity", "e": "e", "i": "i", "mathrm e": "e"}
_RELATIONS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=",
    "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\leqq": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=",
    "\\geqq": ">=", "\\lt": "<", "\\gt": ">", "\\ne": "!=", "\\neq": "!=", "\\in": "in", "\\notin": "notin",
    "\\approx": "~", "\\simeq": "~", "\\sim": "~", "\\cong": "~", "\\doteq": "~", "\\equiv": "==", "\\to": "to",
    "\\rightarrow": "to", "\\implies": "=>", "\\Rightarrow": "=>", "\\iff": "<=>", "\\Leftrightarrow": "<=>",
    "\\mapsto": "to", "\\subset": "subset", "\\subseteq": "subset", "\\parallel": "parallel", "\\perp": "perp",
}  # fmt: skip
_SETS: dict[str, Op] = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference", "\\backslash": "difference"}
_TIMES = frozenset({"*", "\\cdot", "\\times", "\\ast", "\\cdotp"})
_OVER = frozenset({"/", "\\div"})
_DEEP = frozenset({"\\int", "\\iint", "\\oint", "\\sum", "\\prod", "\\lim", "\\limsup", "\\liminf", "\\sup", "\\partial"})
_ACCENTS = frozenset(
    "\\overline \\bar \\vec \\hat \\widehat \\tilde \\overrightarrow \\underline \\dot \\overleftrightarrow \\overset".split()
)
_SYMBOL_COMMANDS = frozenset("\\angle \\triangle \\circ \\odot \\Box \\square \\star \\bullet \\Delta".split())
_FENCES = {"\\lvert": "\\rvert", "\\lVert": "\\rVert", "\\|": "\\|", "|": "|", "\\vert": "\\vert", "\\Vert": "\\Vert"}
_MATRICES = frozenset("pmatrix bmatrix matrix array smallmatrix Bmatrix vmatrix Vmatrix cases aligned align* align".split())
_DOTS = frozenset({"\\ldots", "\\cdots", "\\dots", "\\dotsc", "...", ".."})
_SHORT_WORDS = frozenset(
    "yes no odd even true false none east west up down red blue all any one two six ten mon tue wed thu fri sat sun "
    "dne nan never left right north south am pm".split()
)
_UNIT_LETTERS = frozenset("mgsLlhWVNJCKtA")
_INTEGER = re.compile(r"\d+")
_PLAIN_BODY = re.compile(r"[-+]?[\d.,:/\s]*\d[\d.,:/\s]*(?:[ap]\.?\s?m\.?)?", re.IGNORECASE)
_CLOCK = re.compile(r"\s*([ap])\.?\s?m\.?$", re.IGNORECASE)
_LEAD_IN = re.compile(r"(?:.*\b(?:answer|is|are|equals?|be|to|about|approximately)|.*[:=：]|(?:thus|so|therefore|hence),?)\s*", re.I | re.S)


def parse(text: str, *, groups: bool = True) -> tuple[Node, Tokens]:
    """The tree of normalised `text` and its tokens; raises `Unreadable`."""
    tokens = lex(text, groups=groups)
    reader = _Reader(list(tokens.items))
    node = reader.answer()
    if reader.token.kind != "end":
        raise Unreadable(f"{reader.token.text!r} does not fit where it stands")
    return node, tokens


def literal(text: str) -> Node:
    """The number that a literal of the lexer stands for; a decimal keeps its writing."""
    if "," in text and "." in text and text.rindex(".") < text.rindex(","):
        text = text.replace(".", "").replace(",", ".")
    text = text.replace(",", "").replace(" ", "")
    if len(text) > 2_000:
        raise Unreadable("a number of more than 2000 digits")
    mantissa, mark, exponent = text.lower().partition("e")
    if mark:
        if len(exponent) > 6:
            raise Unreadable("an exponent of more than five digits")
        return Node("multiply", (literal(mantissa), Node("power", (TEN, number(int(exponent))))))
    if "." not in mantissa:
        return number(int(mantissa))
    return number(Fraction(mantissa if mantissa[0] != "." else "0" + mantissa), mantissa)


def based(text: str) -> Node:
    """The number that digits with a base subscript stand for; its name is `digits_base`."""
    digits, _, base = text.replace(" ", "").replace("{", "").replace("}", "").partition("_")
    whole, _, part = digits.partition(".")
    size, value = int(base), Fraction(0)
    for place, digit in enumerate(whole + part):
        value += int(digit, 36) * Fraction(size) ** (len(whole) - 1 - place) if size else 0
    valid = size >= 2 and all(int(digit, 36) < size for digit in whole + part)
    return Node("base", (), f"{digits}_{size}", value if valid else Fraction(-1))


class _Reader:
    """A cursor over tokens with one method per level of binding."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.fences: list[str] = []
        self.in_set = 0

    # ---- the cursor -------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def ahead(self, count: int = 1) -> Token:
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def accept(self, *texts: str) -> bool:
        token = self.tokens[self.position]
        if token.kind in ("symbol", "command") and token.text in texts:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            found = self.token.text or "the end"
            raise Unreadable(f"{text!r} is missing before {found!r}")

    # ---- lists, relations, sets -------------------------------------------------------------------------------------

    def answer(self) -> Node:
        """Everything up to a closing bracket or the end: one item, or a list of them."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nesting deeper than {MAX_DEPTH}")
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
        found: Literal["and", "or"] | None = None
        while True:
            token = self.token
            if token.kind == "symbol" and token.text in (",", ";"):
                found = found or "and"
            elif token.kind in ("word", "text") and token.text.lower().strip(" ,") in ("and", "&", "or", "и", "和", "或", "und", "et", "y"):
                found = "or" if token.text.lower().strip(" ,") in ("or", "或") else (found or "and")
            elif token.kind == "command" and token.text in ("\\vee", "\\lor", "\\wedge", "\\land", "\\&"):
                found = "or" if token.text in ("\\vee", "\\lor") else (found or "and")
            else:
                return found
            self.position += 1

    def relation(self) -> Node:
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
            sign = _RELATIONS.get(token.text) if token.kind in ("symbol", "command") else None
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
        """The first side; `= 5` and `\\approx 5` are `5`, and `\\ge 5` is a condition on an unnamed variable."""
        sign = _RELATIONS.get(self.token.text) if self.token.kind in ("symbol", "command") else None
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
        left = self.sum()
        while True:
            token = self.token
            op = _SETS.get(token.text) if token.kind == "command" else None
            if token.kind == "letter" and token.text == "U" and left.op in ("tuple", "bracket", "set", "union"):
                op = "union"
            if op is None:
                return left
            self.position += 1
            left = Node(op, (left, self.sum()))

    # ---- sums, products, powers -------------------------------------------------------------------------------------

    def sum(self) -> Node:
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
        if self.token.kind == "text" and self.ahead().kind != "end" and _LEAD_IN.fullmatch(self.token.text):
            self.position += 1
            if self.token.text in ("+", "-") and self.token.kind == "symbol":
                return negate(self.product()) if self.take().text == "-" else self.product()
        factors = [self.power()]
        while True:
            token = self.token
            if token.kind in ("symbol", "command") and token.text in _TIMES:
                self.position += 1
                factors.append(self.signed_power())
            elif token.kind in ("symbol", "command") and token.text in _OVER:
                self.position += 1
                factors = [Node("divide", (self._multiplied(factors), self.signed_power()))]
            elif self.begins_factor(factors[-1]):
                self._juxtapose(factors)
            else:
                return self._multiplied(factors)

    @staticmethod
    def _multiplied(factors: list[Node]) -> Node:
        return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))

    def signed_power(self) -> Node:
        if self.token.kind == "symbol" and self.token.text in ("-", "+"):
            sign = self.take().text
            inner = self.power()
            return negate(inner) if sign == "-" else inner
        return self.power()

    def begins_factor(self, previous: Node) -> bool:
        """Whether the next token begins a factor that is joined without a sign."""
        token = self.token
        if token.kind in ("letter", "base"):
            if self._lone_unit(previous):
                return False
            return token.text != "U" or previous.op not in ("tuple", "bracket", "set", "union")
        if token.kind == "number":
            return True
        if token.kind == "word":
            return not self._is_plain_word(token.text)
        if token.kind == "text":
            bare_letter = len(token.text) == 1 and token.text.isascii() and token.text not in _UNIT_LETTERS
            return previous.op == "text" or bare_letter
        if token.text == "\\frac" and self._unit_fraction():
            return False
        if token.kind == "command":
            if token.text in _RELATIONS or token.text in _SETS or token.text in _DOTS:
                return False
            if token.text in _FENCES:
                return not (self.fences and token.text == self.fences[-1])
            return token.text in ("\\{",) or token.text[1].isalpha() and token.text not in (
                "\\right", "\\end", "\\pm", "\\mp", "\\mid", "\\rfloor", "\\rceil", "\\rvert", "\\rVert", "\\rangle", "\\not",
                "\\vee", "\\lor", "\\wedge", "\\land", "\\circ", "\\permille", "\\colon",
            )  # fmt: skip
        if token.text == "|":
            return not self.fences and not self.in_set
        return token.text in ("(", "[", "{")

    def _unit_fraction(self) -> bool:
        r"""Whether `\\frac{\\text{km}}{\\text{h}}` stands at the cursor."""
        return self.ahead(1).text == "{" and self.ahead(2).kind == "text" and self.ahead(3).text == "}"

    def _lone_unit(self, previous: Node) -> bool:
        """Whether a last letter that stands apart is a unit symbol, as in `15 m`."""
        token = self.token
        lone = token.kind == "letter" and token.space and token.text in _UNIT_LETTERS and self.ahead().kind == "end"
        return lone and previous.op == "number" and self.tokens[self.position - 1].kind == "number"

    def _juxtapose(self, factors: list[Node]) -> None:
        previous, token = factors[-1], self.token
        whole = previous.op == "number" and not previous.name and len(factors) == 1
        before = self.tokens[self.position - 1]
        if token.kind == "number":
            if whole and before.kind == "number" and token.space and self._fraction_follows():
                top = literal(self.take().text)
                self.position += 1
                factors[-1] = self._mixed(previous, Node("divide", (top, literal(self.take().text))))
                return
            if previous.op == "number" and before.kind == "number":
                raise Unreadable(f"two numbers side by side: {before.text!r} and {token.text!r}")
        following = self.power()
        if whole and before.kind == "number" and token.text == "\\frac" and self._is_proper(following):
            factors[-1] = self._mixed(previous, following)
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
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nesting deeper than {MAX_DEPTH}")
        node = self.primary()
        while True:
            token = self.token
            if token.kind not in ("symbol", "command"):
                break
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
                break
        self.depth -= 1
        return node

    def _raised(self, base: Node) -> Node:
        if self.token.text == "\\circ" or (self.token.text == "{" and self.ahead().text == "\\circ" and self.ahead(2).text == "}"):
            self.position += 1 if self.token.text == "\\circ" else 3
            scale = self.token
            if scale.kind in ("letter", "text") and scale.text in ("C", "F", "K") and not (scale.kind == "letter" and scale.space and False):
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
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nesting deeper than {MAX_DEPTH}")
        node = self.argument(whole_number=True)
        if self.accept("^", "**"):
            node = self._raised(node)
        self.depth -= 1
        return node

    # ---- arguments and primaries ------------------------------------------------------------------------------------

    def argument(self, *, whole_number: bool = False) -> Node:
        """One TeX argument: a braced group or the next token; of a number only the first digit unless told."""
        token = self.token
        if token.text == "{" and token.kind == "symbol":
            return self.group("}")
        if token.kind == "number" and not whole_number and len(token.text) > 1:
            self.tokens[self.position] = Token("number", token.text[1:])
            return literal(token.text[0])
        if token.kind == "word" and not self._is_plain_word(token.text) and token.text not in FUNCTIONS and token.text not in _CONSTANTS:
            self.tokens[self.position : self.position + 1] = [Token("letter", c) for c in token.text]
        return self.primary()

    def group(self, close: str) -> Node:
        """The content of a bracket that is already open at the cursor."""
        self.position += 1
        fences, self.fences = self.fences, []
        node = self.answer()
        self.fences = fences
        self.expect(close)
        return node

    def primary(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nesting deeper than {MAX_DEPTH}")
        node = getattr(self, f"_read_{self.token.kind}")()
        self.depth -= 1
        return node

    def _read_end(self) -> Node:
        raise Unreadable("it ends where a number or a name is needed")

    def _read_number(self) -> Node:
        text = self.take().text
        node = literal(text.rstrip("."))
        if self.token.text in ("\\overline", "\\dot", "\\bar") and self.ahead().text == "{" and self.ahead(2).kind == "number":
            return self._repeating(text)
        if self.token.text == "_" and self.ahead().text == "{" and self.ahead(2).kind in ("text", "word"):
            words = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "sixteen": 16}
            base = words.get(self.ahead(2).text.lower())
            if base is not None:
                self.position += 4
                return based(f"{text}_{base}")
        return node

    def _repeating(self, text: str) -> Node:
        text = text.rstrip(".")
        self.position += 2
        digits = self.take().text
        self.expect("}")
        if not digits.isdigit():
            raise Unreadable("a bar over something that is not digits")
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
        if opens and name[0] in "fghFGHPQ" and len(name.partition("_")[0]) == 1:
            inner = self.group(")")
            return Node("apply", inner.args if inner.op == "list" else (inner,), name)
        return Node("name", (), name)

    def _subscript(self) -> str:
        if not self.accept("{"):
            return self.take().text
        parts: list[str] = []
        while self.token.kind != "end" and self.token.text != "}":
            parts.append(self.take().text)
        self.expect("}")
        return "".join(parts)

    @staticmethod
    def _is_plain_word(word: str) -> bool:
        """Whether bare letters are language (or a unit) rather than a product of variables or a known name."""
        if word in FUNCTIONS or word in _CONSTANTS:
            return False
        return not word.isascii() or len(word) >= 4 or word.lower() in _SHORT_WORDS or is_unit_word(word) or word.lower() in ("and", "or", "to")

    def _read_word(self) -> Node:
        word = self.take().text
        if word in FUNCTIONS:
            return self.function(word)
        if word in _CONSTANTS:
            return Node("constant", (), _CONSTANTS[word])
        if self._is_plain_word(word):
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
            return parse(_CLOCK.sub(r" \1m", body))[0]
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
        if text in _FENCES:
            return self._absolute(text)
        if text in SYMBOLS:
            return self._money(text)
        if text in _DOTS:
            self.position += 1
            return Node("text", (), "...")
        raise Unreadable(f"{text!r} where a number or a name is needed")

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
            raise Unreadable("a bracket that never closes")
        return inner, close

    def _round(self) -> Node:
        inner, close = self._bracketed()
        if close == "]":
            if inner.op != "list" or len(inner.args) != 2:
                raise Unreadable("brackets that do not match")
            return Node("bracket", inner.args, "(]")
        if inner.op == "list":
            return Node("tuple", inner.args)
        if inner.op == "number" and not inner.name and self.token.text == "_":
            digits = str(inner.number)
            self.position += 1
            base = self._subscript()
            if base.isdigit() and len(base) <= 2:
                return based(f"{digits}_{base}")
            raise Unreadable("a base that is not a number")
        # A bracket keeps `2(3/4)` a product: only a bare fraction joins a whole number.
        return inner if inner.op != "divide" else Node("multiply", (ONE, inner))

    def _square(self) -> Node:
        inner, close = self._bracketed()
        if inner.op == "list" and (close == "]" or len(inner.args) == 2):
            return Node("bracket", inner.args, "[" + close)
        if close == ")":
            raise Unreadable("brackets that do not match")
        return inner

    def _absolute(self, opening: str) -> Node:
        self.position += 1
        self.fences.append(_FENCES[opening])
        inner = self.sum()
        self.expect(self.fences.pop())
        return Node("absolute", (inner,))

    def _read_command(self) -> Node:
        command = self.token.text
        name = command[1:]
        if name in FUNCTIONS:
            self.position += 1
            return self.function(name)
        if name in _CONSTANTS:
            self.position += 1
            return Node("constant", (), _CONSTANTS[name])
        if command in _FENCES:
            return self._absolute(command)
        if command in _DOTS:
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
        if command in _ACCENTS:
            return Node("mark", (self.argument(whole_number=True),), command[1:])
        if command in _DEEP:
            rest = "".join(token.text + " " for token in self.tokens[self.position : -1])
            self._skip_deep()
            return Node("deep", (), f"{command} {rest}")
        if command in _SYMBOL_COMMANDS:
            return Node("name", (), command)
        if not command[1].isalpha():
            raise Unreadable(f"{command!r} where a number or a name is needed")
        return self.named(command) if command in _GREEK else self._unknown(command)

    @staticmethod
    def _unknown(command: str) -> Node:
        raise Unreadable(f"the command {command!r} is not known")

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

    # ---- commands with arguments ------------------------------------------------------------------------------------

    def _command_frac(self) -> Node:
        top = self.argument()
        return Node("divide", (top, self.argument()))

    def _command_binom(self) -> Node:
        top = self.argument()
        return Node("binomial", (top, self.argument()))

    _command_dbinom = _command_tbinom = _command_choose = _command_binom

    def _command_sqrt(self) -> Node:
        degree = self.group("]") if self.token.text == "[" else number(2)
        return Node("root", (self.argument(whole_number=True), degree))

    def _command_dollar(self) -> Node:
        return self._money_after()

    def _money_after(self) -> Node:
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
        raise Unreadable("a degree sign without a number")

    def _command_begin(self) -> Node:
        environment = self._subscript_name()
        if environment not in _MATRICES:
            raise Unreadable(f"the environment {environment!r} is not known")
        if environment == "array" and self.token.text == "{":
            self._subscript_name()
        rows = [self._row()]
        while self.accept("\\\\"):
            if self.token.text == "\\end":
                break
            rows.append(self._row())
        self.expect("\\end")
        self._subscript_name()
        if environment in ("vmatrix", "Vmatrix", "cases"):
            return Node("deep", tuple(rows), environment)
        return Node("matrix", tuple(rows))

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

    # ---- functions and units ----------------------------------------------------------------------------------------

    def function(self, name: str) -> Node:
        """A known function: its power (`\\sin^2 x`), base (`\\log_2 x`) and argument."""
        name = _ALIASES.get(name, name)
        if name == "sqrt":
            return self._command_sqrt()
        base = self.argument(whole_number=True) if self.accept("_") else None
        exponent = self.argument(whole_number=True) if self.accept("^") else None
        if exponent is not None and exponent == number(-1) or (exponent is not None and exponent.op == "negate"):
            if name in ("sin", "cos", "tan", "cot", "sec", "csc"):
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
            if self.token.text in _OVER and factors[-1].op in ("number", "name", "constant", "multiply"):
                self.position += 1
                factors = [Node("divide", (self._multiplied(factors), self.power()))]
            elif self._continues_argument(factors[-1]):
                factors.append(self.power())
            else:
                break
        inner = self._multiplied(factors)
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

    def with_unit(self, node: Node) -> Node:
        """`node` with the unit, percent or degree words that follow it."""
        start = self.position
        phrase = self._unit_phrase() if self._unit_begins(node) else ""
        if not phrase:
            return node
        word = phrase.lower().strip(" .")
        if word in ("percent", "per cent", "percentage", "pct"):
            return Node("percent", (node,))
        if not may_be_unit(phrase):
            self.position = start
            raise Unreadable(f"words after a number that are not its unit: {phrase!r}")
        return Node("unit", (node,), phrase)

    def _unit_begins(self, node: Node) -> bool:
        if node.op in ("text", "set", "tuple", "bracket", "matrix", "list", "union"):
            return False
        token = self.token
        if token.text in SYMBOLS or token.text == "\\dollar" or self._lone_unit(node):
            return True
        if token.text == "\\frac" and self._unit_fraction():
            return True
        if token.kind not in ("word", "text") or token.text.lower().strip(" ,") in ("and", "or", "to", "&", "和", "或"):
            return False
        return token.kind == "text" or self._is_plain_word(token.text)

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
            raise Unreadable("a unit with an exponent that is not a number")
        return sign + digits


_GREEK = frozenset(
    "\\"
    + name
    for name in (
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron rho "
        "varrho sigma tau upsilon phi varphi chi psi omega Gamma Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell hbar nabla"
    ).split()
)
