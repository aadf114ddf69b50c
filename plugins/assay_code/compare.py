"""Whether an output or a returned value is the expected one. Nothing here raises for what a candidate wrote."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["tokens", "lines", "exact", "float", "unordered", "checker"]
_SPACE = " \t\r\n\f\v"
_BLANKS = re.compile(f"[{_SPACE}]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = frozenset({"nan", "inf", "infinity"})
_MAX_DIGITS = 400


@dataclass(frozen=True)
class OutputRule:
    """How standard output is compared."""

    mode: Mode = "tokens"
    abs_tol: float = 1e-6
    rel_tol: float = 1e-6
    by: Literal["lines", "tokens"] = "lines"
    """What `unordered` counts."""


@dataclass(frozen=True)
class ValueRule:
    """How returned values are compared."""

    tuple_is_list: bool = False
    float_tol: float | None = None
    """Absolute and relative; None is exact."""
    unordered: bool = False
    """Whether the order of the outermost list does not matter."""
    as_set: bool = False
    """Whether neither order nor number of equal elements of the outermost list matters."""
    python: bool = False
    """Python's own `==`, as an assert means it (True equals 1)."""


def tokens(text: str) -> list[str]:
    """The text split at ASCII white space; NUL, no-break and zero-width spaces are not white space."""
    return [part for part in _BLANKS.split(text) if part]


def lines(text: str) -> list[str]:
    """The text's lines without trailing white space, and without blank lines at the end."""
    found = [line.rstrip(_SPACE) for line in text.split("\n")]
    while found and not found[-1]:
        found.pop()
    return found


def same_output(expected: str, actual: str, rule: OutputRule) -> bool:
    """Whether `actual` is what `expected` asks for, by every mode but `checker`."""
    match rule.mode:
        case "exact":
            return expected == actual
        case "lines":
            return lines(expected) == lines(actual)
        case "unordered":
            split = lines if rule.by == "lines" else tokens
            return Counter(split(expected)) == Counter(split(actual))
        case "float":
            wanted, found = tokens(expected), tokens(actual)
            if len(wanted) != len(found):
                return False
            return all(_close_tokens(*pair, rule) for pair in zip(wanted, found, strict=True))
        case _:
            return tokens(expected) == tokens(actual)


def _close_tokens(wanted: str, found: str, rule: OutputRule) -> bool:
    left, right = _number(wanted), _number(found)
    if left is None or right is None:
        # Not both finite numbers: equal as written, unless it is a number, or its name, that is not finite.
        return wanted == found and not _not_finite(wanted)
    return _close(left, right, rule.abs_tol, rule.rel_tol)


def _not_finite(token: str) -> bool:
    """Whether the token names a NaN or an infinity, or is a number beyond the range of a double."""
    return token.lower().lstrip("+-") in _NOT_FINITE or (
        _NUMBER.fullmatch(token) is not None and not math.isfinite(float(token))
    )


def _number(token: str) -> float | None:
    if len(token) > _MAX_DIGITS or not _NUMBER.fullmatch(token):
        return None
    value = float(token)
    return value if math.isfinite(value) else None


def _close(left: float, right: float, abs_tol: float, rel_tol: float) -> bool:
    return abs(left - right) <= max(abs_tol, rel_tol * max(abs(left), abs(right)))


def same_value(expected: Any, actual: Any, rule: ValueRule) -> bool:
    """Whether a value that crossed the border is the expected one: plain data only, `actual` never decides."""
    if rule.python:
        return bool(expected == actual)
    if (rule.unordered or rule.as_set) and _is_sequence(expected) and _is_sequence(actual):
        return _same_bag(list(expected), list(actual), rule)
    return _same(expected, actual, rule)


def _same(expected: Any, actual: Any, rule: ValueRule) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return type(expected) is type(actual) and expected == actual
    if type(expected) in (int, float) and type(actual) in (int, float):
        return _same_number(expected, actual, rule.float_tol)
    if _is_sequence(expected) and _is_sequence(actual):
        if not rule.tuple_is_list and type(expected) is not type(actual):
            return False
        left, right = list[Any](expected), list[Any](actual)
        return len(left) == len(right) and all(_same(*pair, rule) for pair in zip(left, right, strict=True))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return len(expected) == len(actual) and all(  # pyright: ignore[reportUnknownArgumentType]
            key in actual and _same(value, actual[key], rule)
            for key, value in expected.items()  # pyright: ignore[reportUnknownVariableType]
        )
    kinds: tuple[Any, Any] = (type(expected), type(actual))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return kinds[0] is kinds[1] and bool(expected == actual)


def _same_number(expected: float, actual: float, tolerance: float | None) -> bool:
    if tolerance is None:
        return expected == actual
    try:
        left, right = float(expected), float(actual)
    except OverflowError:
        return expected == actual
    if not (math.isfinite(left) and math.isfinite(right)):
        return expected == actual
    return _close(left, right, tolerance, tolerance)


def _same_bag(expected: list[Any], actual: list[Any], rule: ValueRule) -> bool:
    if rule.as_set:
        return _covers(expected, actual, rule) and _covers(actual, expected, rule)
    if len(expected) != len(actual):
        return False
    left = list(actual)
    for value in expected:
        for index, other in enumerate(left):
            if _same(value, other, rule):
                del left[index]
                break
        else:
            return False
    return True


def _covers(these: list[Any], those: list[Any], rule: ValueRule) -> bool:
    return all(any(_same(value, other, rule) for other in those) for value in these)


def _is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple)
