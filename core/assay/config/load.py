"""Reads a TOML config, lays overrides over it, and checks it as a whole."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import tomli_w
from pydantic import Field, TypeAdapter

from assay.config.run import KINDS, AnyConfig
from assay.config.validation import validate
from assay.errors import ConfigError, did_you_mean


def load_config(path: str | Path, *, overrides: Mapping[str, Any] | None = None) -> AnyConfig:
    """The config in a TOML file with `overrides` (dotted keys, list indices as numbers) laid over it.

    Raises `ConfigError` in one sentence for a file that cannot be read, an unknown key or a wrong type.
    """
    return parse_config(read_toml(path), overrides=overrides, where=str(path), name=Path(path).stem)


def parse_config(
    data: dict[str, Any], *, overrides: Mapping[str, Any] | None = None, where: str = "config", name: str = "run"
) -> AnyConfig:
    """The config in `data`; see `load_config`."""
    for key, value in (overrides or {}).items():
        override(data, key, value)
    kind = data.get("kind")
    if kind is None:
        raise ConfigError(f"{where}: key 'kind' is missing; one of {', '.join(KINDS)}")
    if kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS)
        raise ConfigError(f"{where}: kind: unknown kind {kind!r}; known: {', '.join(KINDS)}.{hint}")
    data.setdefault("name", name)
    return validate(KINDS[kind], data, where=where)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; raises `ConfigError` with line and column when it is not TOML."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply to be a config") from error
    except ValueError as error:  # Python refuses integers of more than 4,300 digits
        raise ConfigError(f"{path}: not valid TOML: a number that is too long to be read") from error


def override(data: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key, for example `rewards.0.weight`, in place; text is read as a TOML value where it is one."""
    place: Any = data
    *path, last = key.split(".")
    for part in path:
        place = _step(place, part, key)
    value = _toml_value(value) if isinstance(value, str) else value
    if isinstance(place, list):
        place[_index(cast("list[Any]", place), last, key)] = value
    else:
        place[last] = value


def _step(place: Any, part: str, key: str) -> Any:
    if isinstance(place, list):
        items = cast("list[Any]", place)
        return items[_index(items, part, key)]
    if not isinstance(place.get(part, {}), dict | list):
        raise ConfigError(f"--set {key}: {part!r} is a value and has no keys; found {place[part]!r}")
    return place.setdefault(part, {})


def _index(place: list[Any], part: str, key: str) -> int:
    if not part.isdigit() or int(part) >= len(place):
        raise ConfigError(f"--set {key}: {part!r} is no index of a list of {len(place)}")
    return int(part)


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or none that can be read
        return text


def config_schema() -> dict[str, Any]:
    """The JSON Schema of config files of every kind, as editors use it to complete and check TOML.

    Options of components are not in it: `use` chooses them, and `assay plugins NAME` shows them.
    """
    kinds: TypeAdapter[AnyConfig] = TypeAdapter(Annotated[AnyConfig, Field(discriminator="kind")])
    found = kinds.json_schema()
    for kind in KINDS.values():  # a file need not say its name: it has one
        table = found["$defs"][kind.__name__]
        table["required"] = [key for key in table["required"] if key != "name"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "assay config", **found}


def dump_config(config: AnyConfig) -> str:
    """The config with all defaults as TOML; it is itself a valid config."""
    return tomli_w.dumps(_without_none(json.loads(config.model_dump_json())))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _without_none(item) for key, item in table.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in cast("list[Any]", value)]
    return value
