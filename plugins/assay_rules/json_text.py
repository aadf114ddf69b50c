"""Strict JSON out of a response: the whole text, or one code fence around it; numbers keep their exact value."""

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

_FENCE = re.compile(r"```(?:json|JSON|Json)?[ \t]*\r?\n(.*?)\r?\n?[ \t]*```", re.DOTALL)


class NotJsonError(ValueError):
    """The text is not JSON as RFC 8259 has it; its text says why in one line."""


def unfenced(text: str) -> str:
    """`text` without white space around and without the one code fence that may enclose all of it."""
    text = text.strip()
    if not text.startswith("```"):
        return text
    fence = _FENCE.fullmatch(text)
    return fence.group(1).strip() if fence and "```" not in fence.group(1) else text


def read_json(text: str, *, exact: bool = False) -> Any:
    """The value of `text`; decimals are `Decimal` where `exact`, floats otherwise.

    Raises:
        NotJsonError: for anything else than one JSON value: also for NaN, a key that occurs twice, an overlong integer,
            a number beyond a double, and nesting too deep to read.
    """
    try:
        return json.loads(
            text,
            parse_float=Decimal if exact else _float,
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
        )
    except NotJsonError:
        raise
    except RecursionError:
        raise NotJsonError("nested too deep") from None
    except ValueError as error:
        raise NotJsonError(str(error).partition("\n")[0][:200]) from error


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise NotJsonError(f"the number {text[:40]} is beyond a double")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise NotJsonError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotJsonError("a key occurs twice in one object")
    return found
