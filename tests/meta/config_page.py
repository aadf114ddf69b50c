"""The page of every config key, made of the schema: `python tests/meta/config_page.py` writes it."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.config.load import config_schema
from assay.config.run import KINDS

PAGE = Path(__file__).parents[2] / "core" / "assay" / "config" / "README.md"
INTRODUCTION = """# config: every key

A config is one TOML file. `assay train` runs the kinds {kinds}; `assay score --config` runs `score`.

* Unknown keys are errors with the nearest known name.
* `use = "name"` chooses a component, and the remaining keys of that table are the component's own options:
  `assay plugins NAME` shows them.
* Defaults hold first, then the file, then flags (`--steps`, `--set rewards.0.weight=0.5`).
* A run folder's `config.toml` has every default written out and is itself a config.
* `assay train --schema` prints the JSON Schema for an editor.

This page is generated: `python tests/meta/config_page.py`.
"""
Schema = Mapping[str, Any]


def page() -> str:
    """The text of the page."""
    schema = config_schema()
    tables: dict[str, Schema] = schema["$defs"]
    kinds = {kind.__name__: name for name, kind in KINDS.items()}
    parts = [INTRODUCTION.format(kinds=", ".join(f"`{name}`" for name in KINDS if name != "score"))]
    others = sorted(name for name in tables if name not in kinds)
    parts += [_section(f"kind `{kinds[name]}`", name, tables) for name in kinds]
    parts += [_section(name, name, tables) for name in others if "properties" in tables[name]]
    return "\n".join(parts)


def _section(title: str, name: str, tables: Mapping[str, Schema]) -> str:
    table = tables[name]
    required = set(table.get("required", ()))
    lines = [
        f"## {title}\n",
        _line(table.get("description", "")),
        "",
        "| key | value | default | meaning |",
        "|---|---|---|---|",
    ]
    for key, value in table["properties"].items():
        default = "required" if key in required else _default(value)
        cells = [f"`{key}`", _kind(value), default, _line(value.get("description") or _of_table(value, tables))]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    places = ", ".join(f"`{place}`" for place in sorted(set(_places(name, tables))))
    if places:
        lines.insert(2, f"\nStands at: {places}.")
    return "\n".join(lines) + "\n"


def _of_table(value: Schema, tables: Mapping[str, Schema]) -> str:
    """What the one table that a key holds is, where the key itself says nothing."""
    names = re.findall(r'"#/\$defs/(\w+)"', json.dumps(value))
    return tables[names[0]].get("description", "") if len(names) == 1 else ""


def _places(name: str, tables: Mapping[str, Schema]) -> Iterator[str]:
    """Keys that hold a table of this name."""
    for table in tables.values():
        for key, value in table.get("properties", {}).items():
            if f'"#/$defs/{name}"' in json.dumps(value):
                yield key


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text.partition("\n\n")[0]).strip()


def _default(value: Schema) -> str:
    if "default" not in value or value["default"] is None:
        return "none"
    if isinstance(value["default"], dict):
        return "its own defaults" if value["default"] else "`{}`"
    return f"`{json.dumps(value['default'])}`"


def _kind(value: Schema) -> str:
    """What may be written, in words."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for joint in ("anyOf", "oneOf"):
        if joint in value:
            words = [_kind(option) for option in value[joint] if option.get("type") != "null"]
            return " or ".join(dict.fromkeys(words))
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{json.dumps(option)}`" for option in value["enum"])
    kind = value.get("type", "anything")
    if kind == "array":
        inside = value.get("items") or {"anyOf": value.get("prefixItems", [{}])}
        return f"list of {_kind(inside)}"
    if kind == "object":
        return "table"
    words = {"string": "text", "boolean": "true or false"}
    bounds = [
        f"{sign} {value[word]:g}"
        for word, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
        if word in value
    ]
    return " ".join([words.get(str(kind), str(kind)), *bounds])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
