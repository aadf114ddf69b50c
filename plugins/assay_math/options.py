"""What a task may declare about its answers; every default is the strict reading, leniency is always declared."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, JsonValue

from assay.component import Options

Rule = Literal["boxed", "phrase", "hashes", "formula"]
Form = Literal["integer", "decimal", "fraction", "lowest_terms", "mixed", "percent", "scientific"]


class MathPolicy(Options):
    """How an answer is found and when it counts as equal; `Task.facts["math"]` may override any field for one task."""

    rules: tuple[Rule, ...] = ("boxed", "phrase", "hashes", "formula")
    """Extraction rules in order; the first that finds an answer decides."""
    think_open: str = "<think>"
    """Tag that opens the reasoning, which is never an answer."""
    think_close: str = "</think>"
    """Tag that closes the reasoning; the answer zone begins after the last one."""
    tail_chars: int = Field(default=262_144, ge=256)
    """Characters at the end of the answer zone that are read; what stands before them is not."""
    max_answer_chars: int = Field(default=4_000, ge=16)
    """Longest answer that is read at all."""
    max_text_words: int = Field(default=6, ge=1)
    """Longest gold, in words, that counts as a text answer; longer prose cannot be checked by rule."""
    absolute_tolerance: float | None = Field(default=None, ge=0)
    """Largest accepted difference from a numeric gold, in the gold's unit; None for exact."""
    relative_tolerance: float | None = Field(default=None, ge=0, lt=1)
    """Largest accepted difference as a share of the gold's magnitude; None for exact."""
    decimal_digits: int = Field(default=6, ge=2)
    """Significant digits to which a written decimal must agree with a gold that does not end."""
    units: Literal["convert", "same", "required", "ignore"] = "convert"
    """`convert`: units of one dimension are converted, a missing unit is fine; `same`: written units must be the same;
    `required`: as `same`, and a unit of the gold may not be missing; `ignore`: units are not looked at."""
    percent: Literal["auto", "value", "bare"] = "auto"
    """`value`: p% is p/100 and nothing else; `bare`: p alone also counts where the other side is p%; `auto`: bare where
    the question itself asks for a percentage and the gold is larger than 1."""
    order: Literal["auto", "any", "strict"] = "auto"
    """`auto`: sets and plain lists ignore order, parenthesised tuples keep it; else the same rule for both."""
    decimal_comma: Literal["auto", "always", "never"] = "auto"
    """Whether `3,5` may be a decimal: where the gold is one, always, or never (then it is a list)."""
    forms: tuple[Form, ...] = ()
    """Forms that the answer may be written in; empty for any."""
    echoes: bool = False
    """Whether an expression that stands in the question may be the answer where the gold is written otherwise."""
    unevaluated: bool = False
    """Whether an answer may leave an integral, a sum, a product or a limit to be worked out where the gold has none."""
    answers: int | None = Field(default=None, ge=1)
    """Number of answers that must be given; None for as many as the gold has."""
    equal_strings: bool = True
    """Whether answers that are written alike are equal without being read; off only to test the reader."""
    deep: bool = True
    """Whether what the exact layers cannot decide may go to sympy in a killable worker."""
    deep_cpu_s: float = Field(default=1.0, gt=0)
    """CPU budget of one answer in the worker, in seconds; ten times as much wall time, so that load decides nothing."""
    deep_memory_mib: int = Field(default=1024, gt=0)
    """Memory that one answer may add in the worker, in MiB."""

    def for_task(self, facts: Mapping[str, JsonValue]) -> "MathPolicy":
        """This policy with what the task declares in `facts["math"]`; raises pydantic's `ValidationError` if wrong."""
        declared = facts.get("math")
        if declared is None:
            return self
        if not isinstance(declared, dict):
            raise ValueError(f"facts['math']: a table of options is needed; found {type(declared).__name__}")
        return MathPolicy.model_validate({**self.model_dump(), **declared})
