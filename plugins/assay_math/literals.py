"""Numbers as they are written: integers, decimals, groups of three, exponents, digits with a base."""

from fractions import Fraction

from assay_math.expression import TEN, Node, number
from assay_math.lexer import UnreadableError


def literal(text: str) -> Node:
    """The number that a literal of the lexer stands for; a decimal keeps its writing."""
    if "," in text and "." in text and text.rindex(".") < text.rindex(","):
        text = text.replace(".", "").replace(",", ".")
    if text.count(".") > 1:
        text = text.replace(".", "")
    text = text.replace(",", "").replace(" ", "").replace("'", "")
    if len(text) > 2_000:
        raise UnreadableError("a number of more than 2000 digits")
    mantissa, mark, exponent = text.lower().partition("e")
    if mark:
        if len(exponent) > 6:
            raise UnreadableError("an exponent of more than five digits")
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
