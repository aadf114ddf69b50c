"""A page of tables: what `assay audit` and `assay check` print, and the same facts as one HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from assay.reports.text import visible


@dataclass(frozen=True)
class Section:
    """One table with a heading, and what it comes to."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences under the table."""
    good: bool | None = None
    """Whether what was checked holds; None where the section only tells."""


@dataclass(frozen=True)
class Page:
    """Sections under one title."""

    title: str
    sections: tuple[Section, ...] = ()
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """What was looked at: source, file, version, counts."""

    @property
    def good(self) -> bool:
        """Whether no section failed."""
        return all(section.good is not False for section in self.sections)

    def to_dict(self) -> dict[str, object]:
        """The page as plain JSON."""
        sections = [
            {
                "title": section.title,
                "good": section.good,
                "rows": [dict(zip(section.columns, row, strict=True)) for row in section.rows],
                "notes": list(section.notes),
            }
            for section in self.sections
        ]
        return {"title": self.title, "good": self.good, "facts": self.facts, "sections": sections}


def write_page(page: Page, path: Path) -> Path:
    """Write the page as one self-contained HTML file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(template("page.html").render(page=page), encoding="utf-8")
    return path


def template(name: str) -> jinja2.Template:
    """A template of this package: what is filled in is escaped, and what is missing is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.reports"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["visible"] = visible
    return environment.get_template(name)


def section_rows(rows: Sequence[Sequence[object]]) -> tuple[tuple[str, ...], ...]:
    """Cells as text."""
    return tuple(tuple(str(cell) for cell in row) for row in rows)
