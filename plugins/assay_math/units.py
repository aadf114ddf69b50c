"""Units of measure and currencies: what they measure and how much of the dimension's own unit they are.

Only exact factors are listed. A word that is not listed is a plain noun (students, ways, marbles): it has no dimension
of its own, so it is compared as a word.
"""

import re
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit: its dimension as a sorted product of powers, and its size in the dimension's own unit."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction
    radian: bool = False
    """Whether the size is to be multiplied by pi (a degree is pi/180 radians)."""


_TABLE: dict[str, dict[str, str]] = {
    "length": {
        "m": "1 m meter metre", "cm": "1/100 centimeter centimetre", "mm": "1/1000 millimeter millimetre",
        "km": "1000 kilometer kilometre", "dm": "1/10 decimeter decimetre", "nm": "1/1000000000 nanometer nanometre",
        "ft": "3048/10000 feet foot", "in": "254/10000 inch inche", "yd": "9144/10000 yard",
        "mi": "1609344/1000 mile", "米": "1", "厘米": "1/100", "千米": "1000", "公里": "1000", "毫米": "1/1000",
    },
    "mass": {
        "kg": "1 kilogram kilo 千克 公斤", "g": "1/1000 gram gm 克", "mg": "1/1000000 milligram",
        "lb": "45359237/100000000 pound", "oz": "45359237/1600000000 ounce", "t": "1000 tonne",
    },
    "time": {
        "s": "1 sec second 秒", "min": "60 minute 分钟", "h": "3600 hr hour 小时", "day": "86400 天",
        "week": "604800 wk", "ms": "1/1000 millisecond", "year": "31557600 yr 年", "month": "2629800 个月",
    },
    "volume": {"L": "1 l liter litre 升", "mL": "1/1000 ml milliliter millilitre 毫升",
               "gal": "3785411784/1000000000 gallon", "quart": "946352946/1000000000 qt",
               "pint": "473176473/1000000000 pt"},
    "angle": {"rad": "1 radian 弧度"},
    "temperature": {"K": "1 kelvin"},
    "celsius": {"°C": "1 celsius"},
    "fahrenheit": {"°F": "1 fahrenheit"},
    "force": {"N": "1 newton"}, "energy": {"J": "1 joule", "kJ": "1000 kilojoule"},
    "power": {"W": "1 watt", "kW": "1000 kilowatt"},
    "pressure": {"Pa": "1 pascal", "kPa": "1000"}, "frequency": {"Hz": "1 hertz"}, "charge": {"C": "1 coulomb"},
    "voltage": {"V": "1 volt"}, "amount": {"mol": "1 mole"},
    "usd": {"$": "1 dollar usd buck us$", "¢": "1/100 cent"},
    "eur": {"€": "1 euro eur", "eurocent": "1/100"}, "gbp": {"£": "1 gbp", "pence": "1/100 penny"},
    "jpy": {"yen": "1 jpy 日元"},
    "cny": {"元": "1 yuan rmb cny 人民币 ¥", "角": "1/10", "分": "1/100"},
    "inr": {"₹": "1 rupee inr rs"}, "krw": {"₩": "1 won"},
}  # fmt: skip

MULTIPLIERS = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8,
}  # fmt: skip
"""Words between a number and its unit that belong to the number."""

SYMBOLS = frozenset({"$", "€", "£", "¥", "₹", "₩", "¢"})
"""Currency signs that may stand before or after the number."""

_AMBIGUOUS = frozenset(
    {"m", "g", "s", "h", "t", "L", "l", "N", "J", "W", "V", "C", "K", "in", "min", "day", "won", "mi", "nm", "ms", "分"}
)
"""Unit words that bare letters may mean otherwise; they are units only in `\\text` or standing apart at the end."""


def _units() -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for dimension, table in _TABLE.items():
        for symbol, line in table.items():
            size, *names = line.split()
            unit = Unit(((dimension, 1),), Fraction(size))
            for name in (symbol, *names):
                found[name] = unit
    found["degree"] = found["°"] = found["deg"] = found["度"] = Unit((("angle", 1),), Fraction(1, 180), radian=True)
    for symbol, top, bottom in (("mph", "mi", "h"), ("kph", "km", "h"), ("kmh", "km", "h"), ("km/hr", "km", "h")):
        found[symbol] = _combine(found[top], found[bottom], -1)
    return found


def _combine(left: Unit, right: Unit, power: int) -> Unit:
    dimension = dict(left.dimension)
    for name, exponent in right.dimension:
        dimension[name] = dimension.get(name, 0) + exponent * power
    kept = tuple(sorted((k, v) for k, v in dimension.items() if v))
    return Unit(kept, left.factor * right.factor**power, left.radian or right.radian)


UNITS = _units()
_CURRENCIES = frozenset({"usd", "eur", "gbp", "jpy", "cny", "inr", "krw"})
_POWER_WORDS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
_SPLIT = re.compile(r"[^\W\d_]+\.?\$?|[$€£¥₹₩¢°]C?F?|\^\{?-?\d+\}?|[/·*]|-|[0-9]+")
_RATES = frozenset({"a", "an", "each", "every"})
_SECOND_READINGS = {"pound": "£", "pounds": "£", "¥": "yen", "cent": "eurocent", "cents": "eurocent"}
_IN_ALL = re.compile(r"\s+(?:each|apiece|in total|total|altogether|in all)$", re.IGNORECASE)
_BARE_DIGITS = re.compile(r"(?<![\^\w-])\d")
_VOLUME_CUBES = Fraction(1, 1000)
# Words that show that a phrase after a number is not its unit but a statement about it.
_NOT_UNITS = frozenset(
    [
        "not",
        "or",
        "and",
        "is",
        "are",
        "was",
        "to",
        "than",
        "maybe",
        "but",
        "because",
        "since",
        "so",
        "which",
        "except",
        "no",
        "wrong",
        "if",
        "then",
        "also",
        "either",
        "between",
        "correct",
        "answer",
        "reward",
        "score",
        "plus",
        "minus",
        "over",
        "divided",
        "multiplied",
        "factorial",
        "otherwise",
        "modulo",
        "unless",
        "perhaps",
        "possibly",
        "alternatively",
        "fail",
        "fails",
        "failed",
        "incorrect",
        "false",
        "impossible",
        "invalid",
        "cannot",
        "never",
        "too",
    ]
)


def _known(word: str) -> Unit | None:
    if word in UNITS:
        return UNITS[word]
    lower = word.lower()
    for form in (lower, lower.rstrip("."), lower.removesuffix("s"), lower.removesuffix("es")):
        if form in UNITS:
            return UNITS[form]
    return None


def is_unit_word(word: str) -> bool:
    """Whether bare letters after a number may be read as a unit rather than as a product of variables."""
    return word not in _AMBIGUOUS and (_known(word) is not None or word in MULTIPLIERS or word == "percent")


def may_be_unit(phrase: str) -> bool:
    """Whether words after a number can be its unit at all: few, letters only, and no statement about the number."""
    words = phrase.split()
    if _BARE_DIGITS.search(phrase):
        return False
    if not words or len(words) > 6 or len(phrase) > 60 or phrase.lower().strip(" .") in ("squared", "cubed"):
        return False
    bare = [word.lower().strip(".,()") for word in words]
    return not any(word in _NOT_UNITS or word.endswith(("n't", "n’t")) for word in bare)


def multiplier(phrase: str) -> tuple[int, str]:
    """What number words at the start of `phrase` multiply by, and the rest: `(10**6, "dollars")`."""
    factor = 1
    rest = phrase.strip()
    while rest:
        for word, value in MULTIPLIERS.items():
            if rest.startswith(word) and (not word.isascii() or not rest[len(word) :][:1].isalpha()):
                factor, rest = factor * value, rest[len(word) :].strip()
                break
        else:
            break
    return factor, rest


def read_unit(phrase: str) -> Unit | None:
    """The unit that `phrase` names (`cm^2`, `square feet`, `km/h`, `miles per hour`), or None for a plain noun."""
    phrase = _IN_ALL.sub("", phrase)
    spaced = phrase.replace("**", "^").replace(" per ", " / ").replace("平方", "平方 ").replace("立方", "立方 ")
    pieces = _SPLIT.findall(spaced)
    unit = Unit((), Fraction(1))
    sign, power, seen = 1, 1, False
    position = 0
    while position < len(pieces):
        piece = pieces[position]
        position += 1
        if piece == "/" or (piece.lower() in _RATES and position < len(pieces)):
            sign = -1
        elif piece in ("·", "*", "-"):
            continue
        elif piece.lower() in _POWER_WORDS:
            power = _POWER_WORDS[piece.lower()]
        elif piece.lower() in ("squared", "cubed") and seen:
            continue
        else:
            known = _known(piece)
            if known is None:
                return None
            if position < len(pieces) and (pieces[position].startswith("^") or pieces[position].isdigit()):
                power = int(pieces[position].strip("^{}"))
                position += 1
            elif position < len(pieces) and pieces[position].lower() in ("squared", "cubed"):
                power = 2 if pieces[position].lower() == "squared" else 3
            if abs(power) > 9:
                return None
            for _ in range(abs(power)):
                unit = _combine(unit, known, sign if power > 0 else -sign)
            power, seen = 1, True
    return _as_length(unit) if seen else None


def _as_length(unit: Unit) -> Unit:
    """The same unit with volumes (litres) written as cubed lengths, so that 1 L is 1000 cm^3."""
    dimension = dict(unit.dimension)
    litres = dimension.pop("volume", 0)
    if not litres:
        return unit
    dimension["length"] = dimension.get("length", 0) + 3 * litres
    kept = tuple(sorted((k, v) for k, v in dimension.items() if v))
    return Unit(kept, unit.factor * _VOLUME_CUBES**litres, unit.radian)


def in_common(left: str, right: str) -> tuple[Unit | None, Unit | None]:
    """The units that two phrases name: of a word with two readings (pounds, cents, yen's sign) the one that fits."""
    one, two = read_unit(left), read_unit(right)
    if one is None or two is None or one.dimension == two.dimension:
        return one, two
    second = [read_unit(_SECOND_READINGS.get(phrase.strip().lower(), phrase)) for phrase in (left, right)]
    for pair in ((second[0], two), (one, second[1])):
        if pair[0] is not None and pair[1] is not None and pair[0].dimension == pair[1].dimension:
            return pair
    return one, two


def is_currency(unit: Unit) -> bool:
    """Whether the unit is an amount of money."""
    return len(unit.dimension) == 1 and unit.dimension[0][0] in _CURRENCIES


_CLOCK = re.compile(r"\b([ap])\.?\s?m\b\.?")
_FILLER = frozenset(["different", "total", "distinct", "possible", "of", "the", "a", "an", "in"])


def same_noun(left: str, right: str) -> bool:
    """Whether two unlisted nouns mean the same: equal, or one a part of the other (`tickets`, `child tickets`)."""
    one, two = (
        {word.strip("s") for word in re.findall(r"[^\W\d_]+", _CLOCK.sub(r"\1m", phrase.lower()))} - _FILLER
        for phrase in (left, right)
    )
    return one <= two or two <= one


GENERIC = frozenset(
    {"unit", "units", "square units", "cubic units", "units^2", "units^3", "unit^2", "sq units", "单位"}
)
"""Units that only say that there is one; they agree with any."""
