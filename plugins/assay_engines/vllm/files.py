"""What is in a folder of safetensors, by its headers alone; checked before a server is paused to take it.

A reload that fails half-way leaves vLLM's model unusable while its health route still says that all is well.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assay.errors import EngineError

Shapes = Mapping[str, tuple[int, ...]]
_LARGEST_HEADER = 100 << 20
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""What safetensors and torch call a type."""


class Entry(NamedTuple):
    """One tensor of a folder."""

    file: str
    name: str
    dtype: str
    """As torch calls it."""
    shape: tuple[int, ...]


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor in the folder's safetensors; empty where there are none.

    Raises:
        EngineError: a file is cut short or is no safetensors file.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, entry in _header(file).items():
            shapes[name] = tuple(int(size) for size in entry["shape"])
    return shapes


def read_entries(folder: Path, files: Sequence[str]) -> list[Entry]:
    """Every tensor of these files, file after file.

    Raises:
        EngineError: a tensor of a type that weights do not have.
    """
    entries: list[Entry] = []
    for file in files:
        for name, entry in _header(folder / file).items():
            dtype = _DTYPES.get(entry["dtype"])
            if dtype is None:
                known = ", ".join(_DTYPES)
                raise EngineError(f"push_weights: {name} in {folder / file} is {entry['dtype']}; can send {known}")
            entries.append(Entry(file, name, dtype, tuple(int(size) for size in entry["shape"])))
    return entries


def check_weights(folder: Path, expected: Shapes) -> list[str]:
    """Names of the files of new weights, once their tensors are those that the server knows.

    An output layer that is tied to the embeddings may be named or left out. `expected` empty: nothing to compare with.

    Raises:
        EngineError: no files, a broken file, or tensors that do not fit; nothing has been touched then.
    """
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"push_weights: no safetensors in {folder}; publish the weights there first")
    found = read_shapes(folder)
    if not expected:
        return files
    tied = {name for name in {*found, *expected} if name.endswith("lm_head.weight")} if _is_tied(folder) else set[str]()
    unknown = sorted(set(found) - set(expected) - tied)
    missing = sorted(name for name in set(expected) - set(found) - tied if not name.endswith(".inv_freq"))
    if unknown or missing:
        raise EngineError(
            f"push_weights: the tensors in {folder} are not those of the served model; unknown {unknown[:3]}, missing "
            f"{missing[:3]}; the server would not know how to load them"
        )
    for name, shape in found.items():
        if name in expected and expected[name] != shape:
            raise EngineError(
                f"push_weights: {name} in {folder} has the shape {list(shape)}; the served model's has "
                f"{list(expected[name])}"
            )
    return files


def _header(file: Path) -> dict[str, dict[str, Any]]:
    size = file.stat().st_size
    with file.open("rb") as handle:
        start = handle.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            raise EngineError(f"push_weights: {file} is no whole safetensors file ({size:,} bytes); write it again")
        try:
            header: dict[str, dict[str, Any]] = json.loads(handle.read(length))
        except ValueError as error:
            raise EngineError(f"push_weights: {file} is no safetensors file: {error}") from error
    header.pop("__metadata__", None)
    needed = 8 + length + max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    if size != needed:
        raise EngineError(f"push_weights: {file} has {size:,} bytes and should have {needed:,}; write it again")
    return header


def _is_tied(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and bool(json.loads(config.read_text(encoding="utf-8")).get("tie_word_embeddings"))
