r"""One spelling for what is written in many: unicode, sizing, spacing, fonts and delimiters become plain LaTeX.

Nothing is evaluated and nothing that could change the meaning is dropped: hidden characters (zero-width, bidirectional
controls, NUL, lone surrogates) stay where they are inside the text, and the lexer then refuses them.
"""

import re
import unicodedata

_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ⁽⁾", "0123456789+-ni()", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
    "rho",
    "varsigma",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "chi",
    "psi",
    "omega",
]


def _table() -> dict[int, str]:
    table: dict[int, str] = {0xFF01 + k: chr(0x21 + k) for k in range(94)}
    table.update({0x3B1 + k: f"\\{name} " for k, name in enumerate(_GREEK)})
    table.update(
        {
            ord(c): " "
            for c in "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
        }
    )
    pairs = {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "‒": "-", "﹣": "-",
        "×": "\\times ", "⋅": "\\cdot ", "·": "\\cdot ", "∙": "\\cdot ", "÷": "\\div ", "∗": "*", "⁄": "/", "∕": "/",
        "±": "\\pm ", "∓": "\\mp ", "∞": "\\infty ", "π": "\\pi ", "ϕ": "\\phi ", "∆": "\\Delta ", "ℯ": "e",
        "°": "^\\circ ", "º": "^\\circ ", "℃": "^\\circ C", "℉": "^\\circ F", "′": "'", "″": "''", "％": "\\%",
        "≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≡": "\\equiv ",
        "∈": "\\in ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ", "∖": "\\setminus ", "ℝ": "\\mathbb{R}",
        "→": "\\to ", "…": "\\ldots ", "⋯": "\\ldots ", "‰": "\\permille ",
        "，": ",", "、": ",", "。": ".", "：": ":", "；": ";", "（": "(", "）": ")",
        "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "∠": "\\angle ", "∣": "|",
        "“": '"', "”": '"', "‘": "'", "’": "'", "∫": "\\int ", "∑": "\\sum ", "∏": "\\prod ",
    }  # fmt: skip
    table.update({ord(k): v for k, v in pairs.items()})
    for code in (*range(0xBC, 0xBF), *range(0x2150, 0x215F), 0x2189):
        top, _, bottom = unicodedata.normalize("NFKC", chr(code)).partition("\u2044")
        if bottom:
            table[code] = f"\\frac{{{top}}}{{{bottom}}}"
    table.update({code: unicodedata.normalize("NFKC", chr(code)) for code in range(0x1D400, 0x1D800)})
    return table


_UNICODE = _table()
_RUN_UP = re.compile(f"[{''.join(_SUPER)}]+")
_RUN_DOWN = re.compile(f"[{''.join(_SUB)}]+")
_RADICAL = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z])?")
_DEGREES = {"√": "", "∛": "[3]", "∜": "[4]"}
_UNDERLINED = re.compile(r"\\underline\s*\{([^{}]*)\}")
_EDGES = " \t\r\n\u200b\ufeff\u2060"

_COMMAND = re.compile(
    r"\\\\(?:\s*\[[^\]]*\])?"  # a row break keeps its place, its spacing goes
    r"|\\(?:left|right)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])"
    r"|,\s*\\!\s*(?=\d{3})|\{,\}(?=\d{3}(?!\d))|\{,\}|\\!"
    r"|\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge)(?![a-zA-Z])"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|quad|qquad|thinspace|enspace|noindent|strut)(?![a-zA-Z])"
    r"|\\(?:hspace|vspace|hskip|color|textcolor|phantom|hphantom|vphantom|label|tag)\*?\s*\{[^{}]*\}"
    r"|\\(?:boxed|fbox|bm|boldsymbol|mathbf|mathit|mathsf|mathcal|ensuremath|bf|it|rm|cal)(?![a-zA-Z])"
    r"|\\[,;:>\s]|~|\\[()\[\]]|\\(?=\d)"
    r"|\\(?:d|t|c)frac(?![a-zA-Z])|\\degrees?(?![a-zA-Z])"
    r"|\\(?:text(?:bf|it|rm|sf|tt|normal|up)|mbox|hbox|mathrm|mathtext|operatorname\*?)\s*(?=\{)"
    r"|\\text\s+(?=\{)"
)
_BASE_DIGITS = re.compile(r"\\text\{\s*([0-9A-Z]+)\s*\}(?=[0-9A-Z]*_)|\(([0-9A-Z]*[A-Z][0-9A-Z]*)\)(?=_\{?\d)")
_SPOKEN_BASE = re.compile(
    r"([0-9A-Z]+)\s*(?:\\text\{\s*)?\(?\s*(?:in\s+)?base[\s-]*\}?\s*(?:\\text\{\s*)?(\d{1,2})\s*\)?\s*\}?"
)
_BASE_WORDS = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16",
}  # fmt: skip
_BASE = r"(\d{1,2}|" + "|".join(_BASE_WORDS) + ")"
_SUBSCRIPT_BASE = re.compile(
    r"(?<=[0-9A-Za-z)}])\s*_\s*\{\s*(?:"
    rf"\\text\s*\{{\s*(?:base[\s-]*)?\(?\s*{_BASE}\s*\)?\s*\}}|\\text\s*\{{\s*base[\s-]*\}}\s*{_BASE}|"
    rf"(?:base[\s-]*|\(\s*)?{_BASE}\s*\)?)\s*\}}"
)
_TRANSPOSED = re.compile(r"\^\s*\{?\s*\\(?:top|intercal)(?![a-zA-Z])\s*\}?")
_GOES_ON = re.compile(
    r"(?<![\d.])(?P<start>\d{0,20}\.\d{0,20}?)(?:(?P<block>\d)(?P=block){2,40}+)\s?(?:\.\.\.|\\[lc]?dots\b)"
)
_LETTER_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_LETTER_DEGREE = re.compile(r"(?<=\d)\s*\^\s*\{?\s*o\s*\}?(?![A-Za-z])")
_PAIRED_DOLLARS = re.compile(r"\$\$?")
_PRICE = re.compile(r"\$(?=\s*-?\.?\d)")


def _command(match: re.Match[str]) -> str:
    found = match.group()
    if found.startswith("\\\\"):
        return "\\\\ "
    if found.startswith((",", "{,}")) or found == "\\!":
        # `{,}` before a group of three separates thousands; before anything else it is a decimal comma.
        three = found.startswith(",") or found == "\\!" or re.match(r"\d{3}(?!\d)", match.string[match.end() :][:4])
        return "" if three else ","
    if found.endswith("frac"):
        return "\\frac"
    if found.startswith("\\degree"):
        return "^\\circ "
    if found.startswith(("\\text", "\\mbox", "\\hbox", "\\mathrm", "\\mathtext", "\\operatorname")):
        return "\\text" if not found.startswith("\\textcolor") and not found.startswith("\\textstyle") else ""
    if found.startswith(("\\left", "\\right", "\\middle", "\\big", "\\Big")):
        return " " if found.rstrip().endswith(".") else ""
    if found in ("\\(", "\\)", "\\[", "\\]", "\\"):
        return ""
    return " "


def fold_unicode(text: str) -> str:
    """`text` with every mathematical character spelled in ASCII or as a LaTeX command; unknown letters stay."""
    text = _RADICAL.sub(lambda m: f"\\sqrt{_DEGREES[m[1]]}" + (f"{{{m[2]}}}" if m[2] else ""), text)
    text = _RUN_UP.sub(
        lambda m: f"^{_SUPER[m[0]]}" if len(m[0]) == 1 else f"^{{{''.join(map(_SUPER.__getitem__, m[0]))}}}", text
    )
    text = _RUN_DOWN.sub(lambda m: "_{" + "".join(_SUB[c] for c in m[0]) + "}", text)
    return text.translate(_UNICODE)


def _without_dollars(text: str) -> str:
    text = text.replace("\\$", "\\dollar ").replace("US\\dollar ", "\\dollar ")
    if "$" not in text:
        return text
    prices = len(_PRICE.findall(text))
    if prices == text.count("$") and not (prices == 2 and text.count("$$")):
        return text.replace("$", "\\dollar ")
    return _PAIRED_DOLLARS.sub("", text)


def _base(match: re.Match[str]) -> str:
    """The base of a subscript, in digits."""
    found = next(filter(None, match.groups()))
    return _BASE_WORDS.get(found, found)


def _numbers(text: str) -> str:
    """`text` with bases, repeating digits, letters for signs and small degree marks in one spelling."""
    if "_" in text and "{" in text:
        text = _SUBSCRIPT_BASE.sub(lambda match: f"_{{{_base(match)}}}", text)
    if "base" in text:
        text = _SPOKEN_BASE.sub(r"\1_{\2}", text)
    if ".." in text or "dots" in text:
        text = _GOES_ON.sub(r"\g<start>\\overline{\g<block>}", text)
    if "10" in text:
        text = _LETTER_TIMES.sub(r"\\times ", text)
    if "^" in text:
        text = _LETTER_DEGREE.sub(r"^\\circ ", text)
    if "_" in text:
        text = _BASE_DIGITS.sub(lambda match: match[1] or match[2], text)
    return text


def normalise(text: str) -> str:
    """`text` in the one spelling that the lexer reads; equal results mean equal writing."""
    text = text.strip(_EDGES)
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'`":
        text = text[1:-1].strip(_EDGES)
    if (underlined := _UNDERLINED.fullmatch(text)) is not None:
        text = underlined[1]
    if text.endswith("\\"):
        text = text.rstrip("\\ ")  # what is left of a final control space
    if not text.isascii():
        text = fold_unicode(text)
    if "$" in text:
        text = _without_dollars(text)
    if "\\" in text or "~" in text or "{,}" in text:
        text = _TRANSPOSED.sub("^T", _COMMAND.sub(_command, text))
    text = _numbers(text).strip()
    while text.endswith((".", ",", ";")) and not text.endswith(("..", "\\,", "\\;")):
        text = text[:-1].rstrip()
    return text
