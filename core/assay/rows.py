"""Reads JSON-lines and Parquet files that anybody may have written: every mistake is one sentence with its place."""

import datetime
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

from assay.errors import ConfigError, did_you_mean

MAX_LINE_BYTES = 64 << 20
MAX_DEPTH = 200
MAX_DIGITS = 4300
"""Longest integer; Python itself refuses longer ones, whose reading takes quadratic time."""
STDIN = "/dev/stdin"
"""What `-` means where a command takes data."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN|-?\d[\d.eE+-]*')


class Row(NamedTuple):
    """One object of a file."""

    line: int
    """Number of its line (in Parquet: of its row), from 1."""
    data: dict[str, Any]


class BadRowError(ConfigError):
    """A row that cannot be used; `line` says which."""

    def __init__(self, message: str, line: int) -> None:
        """A message that already names the place."""
        super().__init__(message)
        self.line = line


def read_rows(path: str | Path) -> Iterator[Row | BadRowError]:
    """Every row in order, a `BadRowError` in place of each that is no JSON object; blank lines are skipped.

    Accepts a byte-order mark, CRLF, gzip (by the suffix `.gz`) and Parquet (by the suffix `.parquet`). Raises
    `ConfigError` for a file that cannot be opened.
    """
    try:
        if Path(path).suffix == ".parquet":
            yield from _parquet_rows(path)
            return
        with _open(Path(path)) as stream:
            yield from _rows(stream, str(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def is_data(name: str | Path) -> bool:
    """Whether rows can be read from what has this name: a file, a pipe or standard input, and no folder."""
    return str(name) == STDIN or (Path(name).exists() and not Path(name).is_dir())


def stem(path: str) -> str:
    """The path of a data file without its suffix; what comes on standard input has a name in the current folder."""
    path = Path(path).name if path == STDIN else path
    return path.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json").removesuffix(".parquet")


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _rows(stream: IO[bytes], path: str) -> Iterator[Row | BadRowError]:
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(MAX_LINE_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield BadRowError(f"{path}:{number}: the compressed file is damaged or cut short: {error}", number)
            return
        if not raw:
            return
        if len(raw) > MAX_LINE_BYTES:
            yield BadRowError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES >> 20} MiB", number)
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(MAX_LINE_BYTES)
            continue
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if raw.strip():
            yield _row(raw, path, number)


def _row(raw: bytes, path: str, number: int) -> Row | BadRowError:
    where = f"{path}:{number}"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadRowError(f"{where}:{error.start + 1}: not UTF-8: byte 0x{raw[error.start]:02x}", number)
    try:
        data = json.loads(text, parse_constant=_refused, parse_float=_finite, parse_int=_bounded)
    except json.JSONDecodeError as error:
        return BadRowError(f"{where}:{error.colno}: not JSON: {error.msg.removesuffix(' at')}", number)
    except RecursionError:
        return BadRowError(f"{where}: nested deeper than {MAX_DEPTH} levels", number)
    except _NumberError as error:
        return BadRowError(f"{where}:{_place(text, error.token)}: {error}", number)
    if not isinstance(data, dict):
        return BadRowError(f"{where}: expected an object; found {type(data).__name__}", number)
    if _depth(cast("dict[str, Any]", data)) > MAX_DEPTH:
        return BadRowError(f"{where}: nested deeper than {MAX_DEPTH} levels", number)
    if "\\ud" in text.casefold():
        # Escapes of lone surrogates are JSON but no text that can be stored or sent; they become U+FFFD.
        whole = json.dumps(data, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return Row(number, json.loads(whole))
    return Row(number, data)  # pyright: ignore[reportUnknownArgumentType]  (keys of JSON objects are text)


def arrow_rows(batches: Iterable[Any], path: str | Path) -> Iterator[Row | BadRowError]:
    """Every row of Arrow tables or record batches; times become ISO text, columns of bytes are left out.

    A number that is not finite, or a value that JSON has no word for, gives a `BadRowError` in place of the row.
    """
    number = 0
    for batch in batches:
        names = [field.name for field in batch.schema if "binary" not in str(field.type)]
        for data in batch.select(names).to_pylist():
            number += 1
            try:
                yield Row(number, {name: _plain(value, name) for name, value in data.items()})
            except ValueError as error:
                yield BadRowError(f"{path}:{number}: {error}", number)


def _parquet_rows(path: str | Path) -> Iterator[Row | BadRowError]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path}: Parquet needs the package 'pyarrow', which is not installed; "
            'install it with: python -m pip install "assay[data]"'
        ) from error
    try:
        with parquet.ParquetFile(path) as file:  # pyright: ignore[reportUnknownMemberType]
            yield from arrow_rows(file.iter_batches(batch_size=1024), path)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    except ValueError as error:  # ArrowInvalid is one
        raise ConfigError(f"{path}: not a Parquet file, or damaged: {' '.join(str(error).split())[:200]}") from error


def _plain(value: Any, name: str) -> Any:
    """The value as JSON has it; raises `ValueError` for one that it has not."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"column {name!r}: {value} is not a JSON number")
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _plain(item, name) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in cast("list[Any]", value)]
    raise ValueError(f"column {name!r} holds a {type(value).__name__}, which is not JSON; make it text or a number")


def column(row: Row, name: str, *, path: str | Path) -> Any:
    """The value of a column; raises `BadRowError` that names the columns there are."""
    if name not in row.data:
        have = ", ".join(row.data)
        raise BadRowError(
            f"{path}:{row.line}: column {name!r} is missing; this row has {have or 'no columns'}."
            f"{did_you_mean(name, row.data)}",
            row.line,
        )
    return row.data[name]


def text_column(row: Row, name: str, *, path: str | Path) -> str:
    """The value of a column that must be text; raises `BadRowError` otherwise."""
    value = column(row, name, path=path)
    if not isinstance(value, str):
        raise BadRowError(
            f"{path}:{row.line}: column {name!r} must be text; found {type(value).__name__} {value!r}"[:300], row.line
        )
    return value


def first_known(data: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of `names` that is a column of `data`."""
    return next((name for name in names if name in data), None)


OnBadRow = Literal["stop", "skip"]


class _NumberError(ValueError):
    """A number that no row may hold; `token` is how it is written."""

    def __init__(self, message: str, token: str) -> None:
        super().__init__(message)
        self.token = token


def _refused(name: str) -> float:
    raise _NumberError(f"{name} is not a JSON number", name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError(f"the number {text[:40]} is too large", text)
    return value


def _bounded(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _NumberError(
            f"an integer of {len(text.lstrip('-')):,} digits; at most {MAX_DIGITS:,} can be read: write it as text",
            text,
        )
    return int(text)


def _place(text: str, token: str) -> str:
    """Where a number stands that is refused: its column in the line and, where it is a field's value, the field."""
    field = ""
    for found in _TOKENS.finditer(text):
        if found[0] == token:
            return f"{found.start() + 1}{f': column {field}' if field else ''}"
        if found[0].startswith('"'):
            field = repr(found[0][1:-1])
    return "1"


def _depth(data: object) -> int:
    """Nesting depth, counted without recursion."""
    deepest, stack = 0, [(data, 1)]
    while stack:
        item, depth = stack.pop()
        deepest = max(deepest, depth)
        if depth > MAX_DEPTH:
            return depth
        if isinstance(item, dict):
            stack.extend((value, depth + 1) for value in item.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif isinstance(item, list):
            stack.extend((value, depth + 1) for value in item)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return deepest


def finite(value: object) -> float | None:
    """A number as a float; None for anything else, for what is not finite and for integers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
