"""What the readers of all formats share: their options, and checked columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import Field

from assay.component import Options
from assay.errors import ConfigError

Row = Mapping[str, Any]
TAG = "ки"
"""What Math-Shepherd and OpenRLHF put behind each step."""


class FormatOptions(Options):
    """How rows with steps are read."""

    format: str = "auto"
    """A name of `assay_prms.formats.FORMATS`, or `auto`: told by the row's columns."""
    after_first_error: Literal["null", "zero", "keep"] = "null"
    """What the labels after the first wrong step become: unknown (null), wrong (zero), or what the data says."""
    neutral: Literal["good", "bad", "null"] = "good"
    """PRM800K: what the rating 0 means."""
    zero_in_solution: Literal["bad", "good"] = "bad"
    """VersaPRM: what the label 0 means in a solution (PRM800K's part says 1, 0, -1)."""
    zero_in_augmentation: Literal["good", "bad"] = "good"
    """VersaPRM: what the type 0 means in an augmented step."""
    tag: str = Field(default=TAG, min_length=1)
    """Math-Shepherd, OpenRLHF: the text that stands behind each step."""
    alternatives: bool = True
    """PRM800K, VersaPRM, Math-APS trees: also read the alternatives of a step, as rows that share the prefix."""


def text_of(row: Row, name: str) -> str:
    """A column's text; raises `ConfigError` for anything else."""
    value = row[name]
    if not isinstance(value, str):
        raise ConfigError(f"column {name!r}: a text is expected; found {type(value).__name__}")
    return value


def list_of(row: Row, name: str) -> list[Any]:
    """A column's list; raises `ConfigError` for anything else."""
    value = row.get(name)
    if not isinstance(value, list):
        raise ConfigError(f"column {name!r}: a list is expected; found {type(value).__name__}")
    return cast("list[Any]", value)
