"""Files of JSON lines as nobody should write them: for tests of whatever reads rows.

Each file has good rows and one kind of damage. What a reader owes: one sentence with the file and the line, no
traceback, bounded time; and where it may skip bad rows, every good one.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class MalformedFile(NamedTuple):
    """One file and what is wrong with it."""

    name: str
    """File name; `.jsonl`, or `.jsonl.gz` for a compressed one."""
    damage: str
    """A few words: the kind of damage."""
    data: bytes
    line: int | None
    """Number of the first bad line, from 1; None where the file as a whole is wrong, or nothing is."""
    good: int
    """Rows that can be used: those that a reader which skips bad rows must keep."""
    field: str | None = None
    """The column that a message must name."""


Row = dict[str, Any]
Damage = Callable[[random.Random, Row], tuple[bytes, str | None]]
"""A good row to the bytes of a bad line, and the column to blame."""


def malformed_files(
    count: int = 500, *, seed: int = 0, row: Callable[[int], Row] | None = None, required: str = "response"
) -> Iterator[MalformedFile]:
    """`count` files, every kind of damage in turn, each with other good rows around it; equal seeds give equal files.

    `row` makes the good row of a number; default prompt, response and answer. `required` is a text column that no row
    may lack.
    """
    chosen = random.Random(seed)  # noqa: S311 - tests, not secrets
    make = row or _plain_row
    kinds = list(_lines(required).items())
    for number in range(count):
        good = [json.dumps(make(index)).encode() for index in range(chosen.randrange(1, 8))]
        turn = number % (len(kinds) + len(_WHOLE))
        if turn < len(kinds):
            damage, spoil = kinds[turn]
            bad, column = spoil(chosen, make(100))
            place = chosen.randrange(len(good) + 1)
            lines = [*good[:place], bad, *good[place:]]
            end = chosen.choice([b"\n", b"\r\n"])
            yield MalformedFile(f"{number:03d}.jsonl", damage, end.join(lines) + end, place + 1, len(good), column)
        else:
            damage, whole = list(_WHOLE.items())[turn - len(kinds)]
            if damage == LONG and number > turn:
                good, whole = good[:1], _longish_line
            suffix, data, line, kept = whole(good)
            yield MalformedFile(f"{number:03d}{suffix}", damage, data, line, kept)


def _plain_row(number: int) -> Row:
    return {"prompt": f"What is {number} + 1?", "response": f"The answer is {number + 1}.", "answer": str(number + 1)}


def _raw(template: str, column: str | None = None) -> Damage:
    return lambda _random, row: (template.replace("ROW", json.dumps(row)[1:-1]).encode(), column)


def _with(name: str, value: Any) -> Damage:
    return lambda _random, row: (json.dumps({**row, name: value}).encode(), name)


def _without(name: str) -> Damage:
    return lambda _random, row: (json.dumps({key: row[key] for key in row if key != name}).encode(), name)


def _renamed(name: str) -> Damage:
    return lambda _random, row: (
        json.dumps({(key[:-1] if key == name else key): value for key, value in row.items()}).encode(),
        name,
    )


def _bad_byte(chosen: random.Random, row: Row) -> tuple[bytes, str | None]:
    raw = json.dumps(row).encode()
    place = chosen.randrange(2, len(raw) - 2)
    return raw[:place] + bytes([chosen.choice([0x80, 0xC0, 0xFE, 0xFF])]) + raw[place:], None


def _cut(chosen: random.Random, row: Row) -> tuple[bytes, str | None]:
    raw = json.dumps(row).encode()
    return raw[: chosen.randrange(1, len(raw))], None


def _lines(required: str) -> dict[str, Damage]:
    """Kinds of damage to one line."""
    return {
        "bytes that are not UTF-8": _bad_byte,
        "UTF-16": lambda _random, row: (json.dumps(row).encode("utf-16-le"), None),
        "a line cut short": _cut,
        "NaN": _raw('{ROW, "n": NaN}', "n"),
        "an infinity": _raw('{ROW, "n": -Infinity}', "n"),
        "1e999": _raw('{ROW, "n": 1e999}', "n"),
        "a number of 5,000 digits": _raw('{ROW, "n": ' + "9" * 5000 + "}", "n"),
        "single quotes": _raw("{'prompt': 'x'}"),
        "a trailing comma": _raw("{ROW,}"),
        "two objects on a line": _raw("{ROW} {ROW}"),
        "a comment": _raw("# {ROW}"),
        "a list": _raw('["x", "y"]'),
        "a bare text": _raw('"x"'),
        "null": _raw("null"),
        "nested 1,000 deep": _raw('{ROW, "n": ' + "[" * 1000 + "]" * 1000 + "}"),
        "nested 100,000 deep": _raw('{ROW, "n": ' + "[" * 100_000),
        "a control character": _raw('{ROW, "n": "\x00\x01"}'),
        "a missing column": _without(required),
        "a column with a typing error": _renamed(required),
        "a number for a text": _with(required, 7),
        "null for a text": _with(required, None),
        "a list for a text": _with(required, ["x"]),
        "an object for an id": _with("id", {"a": 1}),
        "a number for tags": _with("tags", 3),
        "numbers as tags": _with("tags", [1, 2]),
    }


LONG = "a line of 20 MB"
"""Of this kind only the first file is so large; later ones have a line of 1 MB."""
Whole = Callable[[list[bytes]], tuple[str, bytes, int | None, int]]
"""Good lines to suffix, bytes, the bad line (None: none, or the file as a whole) and the rows that can be used."""


def _twice(good: list[bytes]) -> tuple[str, bytes, int | None, int]:
    rows = [json.dumps({**json.loads(line), "id": "same"}).encode() for line in [good[0], *good]]
    return ".jsonl", b"\n".join(rows), 2, 1


def _long_line(good: list[bytes]) -> tuple[str, bytes, int | None, int]:
    row = json.dumps({**json.loads(good[0]), "note": "x" * (20 << 20)}).encode()
    return ".jsonl", b"\n".join([*good, row]), None, len(good) + 1


def _longish_line(good: list[bytes]) -> tuple[str, bytes, int | None, int]:
    row = json.dumps({**json.loads(good[0]), "note": "x" * (1 << 20)}).encode()
    return ".jsonl", b"\n".join([*good, row]), None, len(good) + 1


def _cut_gzip(good: list[bytes]) -> tuple[str, bytes, int | None, int]:
    whole = gzip.compress(b"\n".join(good) + b"\n", mtime=0)
    return ".jsonl.gz", whole[: len(whole) // 2], 1, 0


_WHOLE: dict[str, Whole] = {
    "nothing": lambda _good: (".jsonl", b"", None, 0),
    "blank lines alone": lambda _good: (".jsonl", b"\n \r\n\t\n", None, 0),
    "a byte-order mark": lambda good: (".jsonl", b"\xef\xbb\xbf" + b"\n".join(good), None, len(good)),
    "no line end at the end": lambda good: (".jsonl", b"\r\n".join(good), None, len(good)),
    "one id twice": _twice,
    LONG: _long_line,
    "gzip cut short": _cut_gzip,
    "no gzip at all": lambda good: (".jsonl.gz", b"\n".join(good), 1, 0),
    "zero bytes": lambda _good: (".jsonl", bytes(1000), 1, 0),
    "a picture": lambda _good: (".jsonl", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, 1, 0),
}
"""Kinds of damage to a whole file; some are none, and every row must be read."""
