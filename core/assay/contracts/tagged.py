"""Plain data as tagged JSON: how values cross the border of a sandbox, in both directions.

Only exact builtin types are written (`type(x) is int`): a subclass with a lying `__eq__` becomes an `object` tag, which
equals nothing. No pickle, no attribute of the value is ever called, depth and size are capped, NaN is always a tag.
This module is standard library only and is also run inside jails, where assay itself is not installed.

    None, bool, str, finite float, small int   as in JSON
    list                                        a JSON array of tagged values
    {"t": "tuple" | "set" | "frozenset", "v": [...]}      {"t": "dict", "v": [[key, value], ...]}
    {"t": "int" | "bytes", "v": hexadecimal}              {"t": "float", "v": "nan" | "inf" | "-inf"}
    {"t": "complex", "v": [real, imaginary]}              {"t": "type", "v": name of one of Python's plain types}
    {"t": "object", "v": name of the type}

`Counter`, `defaultdict` and `OrderedDict` are written as dict, `deque` as list: Python's own `==` takes them so.
"""

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, cast

__all__ = ["MAX_BYTES", "Opaque", "TaggedError", "decode", "encode", "restore", "tag"]

MAX_BYTES = 1 << 20
"""Largest tagged text that is written or read."""
MAX_DEPTH = 48
MAX_HASHED = 10_000
"""Elements of sets and dicts in one value: keys that all hash alike make larger ones take minutes to build."""
_SMALL = 1 << 53
_TYPES = {
    each.__name__: each
    for each in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, type(None))
}
_DICTS = (dict, Counter, defaultdict, OrderedDict)
_SEQUENCES = {list: None, deque: None, tuple: "tuple", set: "set", frozenset: "frozenset"}


class TaggedError(ValueError):
    """A value is too large, too deep, or a text is not of the tagged form."""


class Opaque:
    """Stands for a value of a type that does not cross the border; equal to nothing, itself included."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        """Remember the `name` of the type, for messages."""
        self.name = name

    def __eq__(self, other: object) -> bool:
        """Never."""
        return False

    def __ne__(self, other: object) -> bool:
        """Always."""
        return True

    def __repr__(self) -> str:
        """How it looks in evidence."""
        return f"<{self.name}>"


def encode(value: object, *, max_bytes: int = MAX_BYTES) -> str:
    """The tagged JSON text of `value`, ASCII only; raises `TaggedError` where it is too deep or too large."""
    text = json.dumps(tag(value, max_bytes=max_bytes), separators=(",", ":"))
    if len(text) > max_bytes:
        raise TaggedError(f"a value of {len(text)} bytes as tagged JSON; at most {max_bytes} cross the border")
    return text


def tag(value: object, *, max_bytes: int = MAX_BYTES) -> Any:
    """The JSON tree of `value`; raises `TaggedError` as `encode` does."""
    budget = max_bytes

    def walk(item: Any, depth: int) -> Any:
        nonlocal budget
        kind = cast("Any", type(item))
        budget -= len(item) if kind is str or kind is bytes else 2
        if budget < 0:
            raise TaggedError(f"a value of more than {max_bytes} bytes as tagged JSON")
        if depth > MAX_DEPTH:
            raise TaggedError(f"a value nested deeper than {MAX_DEPTH} levels")
        if item is None or kind is bool or kind is str:
            return item
        if kind is int:
            budget -= item.bit_length() // 4
            return item if -_SMALL <= item <= _SMALL else {"t": "int", "v": hex(item)}
        if kind is float:
            return item if math.isfinite(item) else {"t": "float", "v": str(item)}
        if kind in _SEQUENCES:
            name = _SEQUENCES[kind]
            items = [walk(part, depth + 1) for part in item]
            return items if name is None else {"t": name, "v": items}
        if kind in _DICTS:
            pairs = [[walk(key, depth + 1), walk(part, depth + 1)] for key, part in item.items()]
            return {"t": "dict", "v": pairs}
        if kind is bytes or kind is bytearray:
            return {"t": "bytes", "v": item.hex()}
        if kind is complex:
            return {"t": "complex", "v": [walk(item.real, depth), walk(item.imag, depth)]}
        if kind is type and any(item is each for each in _TYPES.values()):
            return {"t": "type", "v": item.__name__}
        return {"t": "object", "v": str(type.__dict__["__name__"].__get__(kind))[:80]}

    return walk(value, 0)


def decode(text: str | bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """The value of a tagged JSON text; raises `TaggedError` for anything that `encode` would not have written."""
    if len(text) > max_bytes:
        raise TaggedError(f"a tagged text of {len(text)} bytes; at most {max_bytes} cross the border")
    try:
        tree = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TaggedError(f"not tagged JSON: {error}") from None
    return restore(tree)


def restore(tree: Any) -> Any:
    """The value of a tagged JSON tree; raises `TaggedError` where the tree is not of the tagged form."""
    try:
        return _Restorer().walk(tree, 0)
    except TaggedError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise TaggedError(f"not a tagged value: {error}") from None


class _Restorer:
    """Builds one value, counting what has to be hashed."""

    def __init__(self) -> None:
        self._hashed_left = MAX_HASHED

    def walk(self, item: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise TaggedError(f"a value nested deeper than {MAX_DEPTH} levels")
        if isinstance(item, list):
            return [self.walk(part, depth + 1) for part in _parts(item)]  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(item, dict):
            return item
        if len(item) != 2 or "t" not in item or "v" not in item:  # pyright: ignore[reportUnknownArgumentType]
            raise TaggedError(f"no tag of this form: {str(item)[:80]}")  # pyright: ignore[reportUnknownArgumentType]
        return self._tagged(str(item["t"]), item["v"], depth)  # pyright: ignore[reportUnknownArgumentType]

    def _tagged(self, name: str, content: Any, depth: int) -> Any:
        if name in _BUILDERS:
            return _BUILDERS[name]([self.walk(part, depth + 1) for part in self._count(name, content)])
        if name == "dict":
            pairs = self._count(name, content)
            return {self.walk(key, depth + 1): self.walk(part, depth + 1) for key, part in pairs}
        if name == "complex":
            real, imaginary = _parts(content)
            return complex(self.walk(real, depth + 1), self.walk(imaginary, depth + 1))
        if name == "type" and content in _TYPES:
            return _TYPES[content]
        if name in _FROM_TEXT and isinstance(content, str):
            return _FROM_TEXT[name](content)
        raise TaggedError(f"no tag of this form: {name[:20]!r}")

    def _count(self, name: str, content: Any) -> list[Any]:
        parts = _parts(content)
        if name != "tuple":
            self._hashed_left -= len(parts)
            if self._hashed_left < 0:
                raise TaggedError(f"sets and dicts with more than {MAX_HASHED} elements in one value")
        return parts


def _parts(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TaggedError(f"a tag without a list: {str(content)[:80]}")
    return content  # pyright: ignore[reportUnknownVariableType]


def _special_float(name: str) -> float:
    if name not in ("nan", "inf", "-inf"):
        raise TaggedError(f"no special float: {name[:20]!r}")
    return float(name)


_BUILDERS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "int": lambda digits: int(digits, 16),
    "bytes": bytes.fromhex,
    "float": _special_float,
    "object": lambda name: Opaque(name[:80]),
}


def _no_constant(name: str) -> Any:
    raise TaggedError(f"the constant {name} outside a tag")
