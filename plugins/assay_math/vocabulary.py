r"""The words and commands that the reader knows."""

from assay_math.expression import Op
from assay_math.units import is_unit_word

FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "arccot",
        "arcsec",
        "arccsc",
        "sinh",
        "cosh",
        "tanh",
        "coth",
        "sech",
        "csch",
        "asin",
        "acos",
        "atan",
        "log",
        "ln",
        "lg",
        "exp",
        "sqrt",
        "abs",
        "max",
        "min",
        "gcd",
        "lcm",
        "det",
        "arg",
        "sgn",
        "Re",
        "Im",
        "arsinh",
        "arcosh",
        "artanh",
    ]
)
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
CONSTANTS = {
    "pi": "pi",
    "infty": "infinity",
    "infinity": "infinity",
    "inf": "infinity",
    "e": "e",
    "i": "i",
    "mathrm e": "e",
}
RELATIONS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=",
    "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\leqq": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=",
    "\\geqq": ">=", "\\lt": "<", "\\gt": ">", "\\ne": "!=", "\\neq": "!=", "\\in": "in", "\\notin": "notin",
    "\\approx": "~", "\\simeq": "~", "\\sim": "~", "\\cong": "~", "\\doteq": "~", "\\equiv": "==", "\\to": "to",
    "\\rightarrow": "to", "\\implies": "=>", "\\Rightarrow": "=>", "\\iff": "<=>", "\\Leftrightarrow": "<=>",
    "\\mapsto": "to", "\\subset": "subset", "\\subseteq": "subset", "\\parallel": "parallel", "\\perp": "perp",
}  # fmt: skip
SETS: dict[str, Op] = {
    "\\cup": "union",
    "\\cap": "intersection",
    "\\setminus": "difference",
    "\\backslash": "difference",
}
TIMES = frozenset({"*", "\\cdot", "\\times", "\\ast", "\\cdotp"})
OVER = frozenset({"/", "\\div"})
DEEP = frozenset(
    {"\\int", "\\iint", "\\oint", "\\sum", "\\prod", "\\lim", "\\limsup", "\\liminf", "\\sup", "\\partial"}
)
ACCENTS = frozenset(
    [
        "\\overline",
        "\\bar",
        "\\vec",
        "\\hat",
        "\\widehat",
        "\\tilde",
        "\\overrightarrow",
        "\\underline",
        "\\dot",
        "\\overleftrightarrow",
        "\\overset",
    ]
)
SYMBOL_COMMANDS = frozenset(
    ["\\angle", "\\triangle", "\\circ", "\\odot", "\\Box", "\\square", "\\star", "\\bullet", "\\Delta"]
)
FENCES = {"\\lvert": "\\rvert", "\\lVert": "\\rVert", "\\|": "\\|", "|": "|", "\\vert": "\\vert", "\\Vert": "\\Vert"}
MATRICES = frozenset(
    [
        "pmatrix",
        "bmatrix",
        "matrix",
        "array",
        "smallmatrix",
        "Bmatrix",
        "vmatrix",
        "Vmatrix",
        "cases",
        "aligned",
        "align*",
        "align",
    ]
)
DOTS = frozenset({"\\ldots", "\\cdots", "\\dots", "\\dotsc", "...", ".."})
SHORT_NOUNS = frozenset({
    "per", "old", "men", "man", "boy", "kid", "egg", "cat", "dog", "cow", "pig", "hen", "ant", "bee", "fox", "rat",
    "owl", "car", "bus", "van", "hat", "cap", "pen", "key", "map", "bag", "box", "cup", "jar", "mug", "can", "pie",
    "nut", "pea", "toy", "bed", "pan", "pot", "gem", "job", "leg",
})  # fmt: skip
"""Short words behind a number that say what is counted."""
SHORT_WORDS = SHORT_NOUNS | frozenset(
    [
        "yes",
        "no",
        "odd",
        "even",
        "true",
        "false",
        "none",
        "east",
        "west",
        "up",
        "down",
        "red",
        "blue",
        "all",
        "any",
        "one",
        "two",
        "six",
        "ten",
        "mon",
        "tue",
        "wed",
        "thu",
        "fri",
        "sat",
        "sun",
        "dne",
        "nan",
        "never",
        "left",
        "right",
        "north",
        "south",
        "am",
        "pm",
        "are",
        "was",
        "has",
        "had",
        "did",
        "the",
    ]
)
"""Words of two or three letters that are language, as `red` and the nouns that answers count."""
UNIT_LETTERS = frozenset("mgsLlhWVNJCKtA")
GREEK = frozenset(
    "\\" + name
    for name in [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "omicron",
        "rho",
        "varrho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Upsilon",
        "Phi",
        "Psi",
        "Omega",
        "ell",
        "hbar",
        "nabla",
    ]
)
ENDS_PRODUCT = frozenset(
    {
        "\\right", "\\end", "\\pm", "\\mp", "\\mid", "\\rfloor", "\\rceil", "\\rvert", "\\rVert", "\\rangle", "\\not",
        "\\vee", "\\lor", "\\wedge", "\\land", "\\circ", "\\permille", "\\colon", "\\choose",
    }
)  # fmt: skip
"""Commands that no factor begins with."""
JOINTS = {
    "and": "and", "&": "and", "和": "and", "und": "and", ",": "and", ";": "and", "\\&": "and", "\\wedge": "and",
    "\\land": "and", "or": "or", "或": "or", "oder": "or", "\\vee": "or", "\\lor": "or",
}  # fmt: skip
"""What joins the items of a list."""
ALTERNATIVE = (
    r"(?:[(.,;!]|\.\.\.)?\s*(?:(?:but|and|hmm+|no|wait|oh|sorry)\b[,.!]?\s*)*(?:\(\s*)?"
    r"(?:(?:also|plus|as\s+well\s+as|along\s+with|together\s+with|rather|i\s+mean|correction|alternatively|possibly|perhaps|"
    r"maybe)\b:?|or\b(?:\s+(?:alternatively|possibly|perhaps|maybe|rather|else)\b)?|"
    r"actually\b,?(?:\s+(?:it\s+is|it['’]s|that\s+is|that['’]s)\b)?|(?:it\s+)?(?:may|might|could)\s+(?:also\s+)?be\b|"
    r"(?<=wait)|(?<=wait,)|(?<=wait,\s)|(?<=no,\s)),?"
)
"""What stands between an answer and another one that is offered beside it or in its place (pattern, any case)."""


def is_plain_word(word: str) -> bool:
    """Whether bare letters are language (or a unit) rather than a product of variables or a known name."""
    if word in FUNCTIONS or word in CONSTANTS:
        return False
    return (
        not word.isascii()
        or len(word) >= 4
        or word.lower() in SHORT_WORDS
        or is_unit_word(word)
        or word.lower() in ("and", "or", "to")
    )
