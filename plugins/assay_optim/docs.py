"""The generated tables of this folder's README: `python -m assay_optim.docs README.md` writes them in place."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from assay.component import Part
from assay_optim.plugin import assay_objectives, assay_optimizer_parts, assay_policy_optimizers
from assay_optim.table import COLUMNS

MARK = "<!-- {0}: generated -->\n{1}<!-- {0}: end -->"


def composition_table() -> str:
    """One row per optimizer, as `assay plugins --kind optimizer` prints it."""
    rows = [
        [component.name, *[component.facts[column] for column in COLUMNS]] for component in assay_policy_optimizers()
    ]
    return table(["method", *COLUMNS], rows)


def parts_table() -> str:
    """One row per part: axis, name, options with defaults, what it is."""
    rows = [[part.axis, f"`{part.name}`", options_of(part), part.summary] for part in assay_optimizer_parts()]
    return table(["axis", "name", "options", "what it is"], rows)


def objectives_table() -> str:
    """One row per objective."""
    rows = [[f"`{found.name}`", found.facts["kind"], found.summary] for found in assay_objectives()]
    return table(["objective", "kind", "what it is"], rows)


def options_of(part: Part) -> str:
    """The options of a part with their defaults."""
    fields = part.config.model_fields
    return ", ".join(f"`{name} = {field.get_default(call_default_factory=True)!r}`" for name, field in fields.items())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def filled(text: str) -> str:
    """`text` with every generated section made anew."""
    sections = {"compositions": composition_table(), "parts": parts_table(), "objectives": objectives_table()}
    for name, body in sections.items():
        pattern = re.compile(MARK.format(re.escape(name), "@").replace("@", ".*?"), re.DOTALL)
        text = pattern.sub(lambda _, name=name, body=body: MARK.format(name, body), text)
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
