r"""The reader: golden trees, the limits of hostile input, and that nothing it is given can raise anything else."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay_math.expression import Node, number
from assay_math.lexer import UnreadableError, lex
from assay_math.normalise import normalise
from assay_math.parser import parse
from assay_math.reading import is_words, read, text_form
from assay_math.units import multiplier, read_unit, same_noun

X = Node("name", (), "x")
ALPHABET = [
    *"0123456789abcxyeipU+-*/^_=<>(){}[]|.,:;!%'& \t\n$~\"\\",
    *[
        "\\frac",
        "\\sqrt",
        "\\text{",
        "\\left",
        "\\right",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\\\",
        "\\{",
        "\\}",
        "\\pi",
        "\\cup",
        "\\infty",
        "\\le",
        "\\pm",
    ],
    *[
        "\\circ",
        "\\sin",
        "\\log_",
        "\\binom",
        "\\boxed{",
        "\\int",
        "\\overline{",
        "√",
        "½",
        "²",
        "−",
        "π",
        "°",
        "元",
        "or",
        "and",
        "degrees",
        "million",
    ],
    *"\u200b\u202e\x00\ud800\u0663\uff0e",
]


def tree(text: str) -> Node:
    return parse(normalise(text))[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-3", number(-3)),
        ("2 3/4", Node("mixed", (number(2), Node("divide", (number(3), number(4)))))),
        ("\\frac34", Node("divide", (number(3), number(4)))),
        ("1,234,567", number(1_234_567)),
        ("1.234,5", number(Fraction(2469, 2), "1234.5")),
        ("52\\,000", number(52_000)),
        ("0.1\\overline{6}", number(Fraction(1, 6))),
        ("x\\ge 4", Node("relation", (X, number(4)), ">=")),
        ("60^{\\circ}", Node("degree", (number(60),))),
        ("35\\%", Node("percent", (number(35),))),
        ("$18.50", Node("unit", (number(Fraction(37, 2), "18.50"),), "$")),
        ("15\\text{ cm}^2", Node("unit", (number(15),), "cm^2")),
        ("1101_{2}", Node("base", (), "1101_2", Fraction(13))),
        ("(1,2]", Node("bracket", (number(1), number(2)), "(]")),
        ("\\{\\}", Node("set")),
        ("\\pm x", Node("plus_minus", (X,), "+")),
        ("x = 1 \\text{ or } x = 2", Node("either", tuple(Node("relation", (X, number(k)), "=") for k in (1, 2)))),
        ("\\sin^{2} x", Node("power", (Node("call", (X,), "sin"), number(2)))),
        ("|x|", Node("absolute", (X,))),
        ("5!", Node("factorial", (number(5),))),
        ("1..9", Node("range", (number(1), number(9)))),
    ],
)
def test_golden_trees(text: str, expected: Node) -> None:
    assert tree(text) == expected


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("−½", "-\\frac{1}{2}"),
        ("\uff12\uff15", "25"),
        ("\\left( 1,\\, 2 \\right)", "(1,2)"),
        ("\\dfrac{x}{2}", "\\frac{x}{2}"),
        ("x³", "x^{3}"),
        ("√2", "\\sqrt{2}"),
        ("3 \\times 4", "3 \\cdot 4"),
        ("1{,}000", "1,000"),
        ("$\\displaystyle 7$", "7"),
        ("pi/4", "\\pi/4"),
        ("4**2", "4^2"),
        ("60°", "60^\\circ"),
        ("\\mathrm{e}", "e"),
        ("2\\text{B}_{16}", "2B_{16}"),
        ("(243)_5", "243_5"),
    ],
)
def test_writings_of_one_tree(one: str, two: str) -> None:
    assert tree(one) == tree(two)


@pytest.mark.parametrize(
    "text",
    [
        "\\frac{3}{",
        "(1,2",
        "4\u200b2",
        "\u202e42",
        "5\x00",
        "\ud8005",
        "1 2",
        "\\unknown{3}",
        "x +",
        "[1,2",
        "{",
        "^2",
        "7 8/",
    ],
)
def test_what_cannot_be_read_says_so(text: str) -> None:
    answer = read(text)
    assert answer.node is None
    assert answer.problem


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5_000,
        "{" * 3_000 + "}" * 3_000,
        "-" * 3_900,
        "2^" * 900 + "2",
        "\\frac{" * 600,
        "9" * 3_900,
        "1e999999999",
        "|" * 999,
    ],
)
def test_hostile_text_ends_in_a_sentence(text: str) -> None:
    assert read(text).node is None
    assert read(text + "x" * 5_000).problem.startswith("it has")


@given(st.lists(st.sampled_from(ALPHABET), max_size=30).map("".join))
@example("\\text{\\text{}")
@example("_{")
@example("\\sqrt[")
@example("1:")
def test_reading_never_raises_anything_else(text: str) -> None:
    answer = read(text)
    assert (answer.node is None) == bool(answer.problem)
    with contextlib.suppress(UnreadableError):
        assert lex(normalise(text)).items[-1].kind == "end"


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    answer = read(text)
    assert (answer.node is None) == bool(answer.problem)
    assert text_form(text) == text_form(text)


def test_language_and_products_are_told_apart() -> None:
    assert is_words("Tuesday")
    assert is_words("\\text{VW}")
    assert is_words("no solution")
    assert not is_words("xy")
    assert not is_words("sin(x)")
    assert tree("3qr") == Node("multiply", (number(3), Node("name", (), "q"), Node("name", (), "r")))


def test_text_answers_share_a_form() -> None:
    assert text_form("\\text{The Circle.}") == text_form("circle") == "circle"
    assert text_form("1:03 PM") == text_form("1:03\\text{ p.m.}")
    assert text_form("listen") != text_form("silent")


def test_units_are_exact() -> None:
    inch, foot = read_unit("square inches"), read_unit("ft^2")
    assert inch is not None
    assert foot is not None
    assert foot.factor / inch.factor == 144
    litre, cube = read_unit("L"), read_unit("cm^3")
    assert litre is not None
    assert cube is not None
    assert litre.dimension == cube.dimension
    assert litre.factor / cube.factor == 1_000
    assert read_unit("m/s") == read_unit("meters per second")
    assert read_unit("students") is None
    assert same_noun("tickets", "children tickets")
    assert not same_noun("apples", "oranges")
    assert multiplier("million dollars") == (10**6, "dollars")
    assert multiplier("万元") == (10**4, "元")
