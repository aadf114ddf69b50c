"""The conformance page: `python tests/conformance/page.py` writes README.md from the golden tables beside it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
INTRODUCTION = """# Conformance

One row per number or comparison. Every row is a test in this folder: *equal* means that it passes within its tolerance
against its origin under the same definition; *deviates* means that it passes too, and that our default differs from the
origin's on purpose, for the reason given. The tables in `golden/` hold inputs and expected values.

This page is generated: `python tests/conformance/page.py`.
"""
COMPARISON = "1e-5 x max(1, max abs reference), fp32, three random batches"


def page() -> str:
    """The text of the page."""
    parts = [INTRODUCTION]
    for title, name in (
        ("On-policy methods: golden numbers", "on_policy"),
        ("On-policy methods as a whole", "whole"),
        ("Objectives: golden numbers", "preference"),
        ("Reward models: golden numbers", "reward"),
        ("Inference: golden numbers", "inference"),
    ):
        rows = [[row["method"], row["check"], row["origin"], f"{row['tolerance']:g}", state(row)] for row in read(name)]
        parts.append(f"\n## {title}\n\n" + table(["method", "quantity", "origin", "tolerance", "state"], rows))
    for title, name in (
        ("On-policy methods beside TRL 1.16.0", "trl_on_policy"),
        ("Objectives beside TRL 1.16.0", "trl_preference"),
        ("Reward models beside TRL 1.16.0", "trl_reward"),
    ):
        rows = [
            [row["method"], ", ".join(row.get("compared", ["loss", "gradient"])), row["oracle"], state(row)]
            for row in read(name)
        ]
        head = table(["method", "compared", "called", "state"], rows)
        parts.append(f"\n## {title}\n\nTolerance: {COMPARISON}.\n\n{head}")
    return "".join(parts)


def read(name: str) -> list[dict[str, Any]]:
    """The rows of one golden table."""
    return tomllib.loads((FOLDER / "golden" / f"{name}.toml").read_text(encoding="utf-8"))["row"]


def state(row: dict[str, Any]) -> str:
    """Green, or deviating with the reason."""
    reason = row.get("deviation")
    return f"deviates: {reason.removeprefix('deliberate: ')}" if reason else "equal"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
