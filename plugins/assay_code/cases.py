"""What a task's facts say about its tests, checked before anything runs.

`facts["tests"]` is an object with `kind` and what that kind needs; `facts["language"]` names the language. Everything
wrong with it is a `CasesError` in one sentence: whoever wrote the task is at fault, never the candidate.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from assay.contracts.task import Task
from assay_code.compare import Mode, OutputRule, ValueRule


class CasesError(ValueError):
    """The tests of a task cannot be used as they are written."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class TestLimits(_Part):
    """Bounds of one test; what is left out comes from the source's options."""

    __test__ = False

    wall_s: float | None = Field(default=None, gt=0)
    cpu_s: float | None = Field(default=None, gt=0)
    reference_s: float | None = Field(default=None, gt=0)
    """CPU time of a reference solution; twice that, and at least one second, is then the bound."""
    mem_mb: int | None = Field(default=None, gt=0)
    disk_mb: int | None = Field(default=None, gt=0)
    out_kb: int | None = Field(default=None, gt=0)
    procs: int | None = Field(default=None, gt=0)


class Compare(_Part):
    """How an output or a value is compared."""

    mode: Mode = "tokens"
    abs: float = Field(default=1e-6, ge=0)
    rel: float = Field(default=1e-6, ge=0)
    by: Literal["lines", "tokens"] = "lines"
    tuple_is_list: bool = False
    float_tol: float | None = Field(default=None, ge=0)
    unordered: bool = False
    as_set: bool = False
    checker: str | None = None
    """For mode `checker`: Python that defines `check(input, output)` or `check(input, output, reference)` and returns
    a bool, a score in [0, 1], or a pair of a score and a message."""

    @property
    def output_rule(self) -> OutputRule:
        """The rule for outputs."""
        return OutputRule(self.mode, self.abs, self.rel, self.by)

    @property
    def value_rule(self) -> ValueRule:
        """The rule for values."""
        return ValueRule(self.tuple_is_list, self.float_tol, self.unordered, self.as_set)


class StdioCase(_Part):
    """One input and its output."""

    stdin: str = ""
    stdout: str
    """The output; with mode `checker` only a reference that the checker may look at, and empty where there is none."""


class CallCase(_Part):
    """One call and its value."""

    args: list[JsonValue] = Field(default_factory=list[JsonValue])
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    expect: JsonValue
    """The value, never left out: a case without one would ask for None."""


class StdioTests(_Part):
    """Programs that read standard input and write standard output; each case is a fresh process."""

    kind: Literal["stdio"]
    cases: list[StdioCase] = Field(min_length=1)
    compare: Compare = Compare()
    limits: TestLimits = TestLimits()


class CallTests(_Part):
    """A function, `Class.method` or `Class().method` and its values; one process for all cases."""

    kind: Literal["call"]
    fn: str = Field(pattern=r"^\w+(\(\))?(\.\w+)?$")
    cases: list[CallCase] = Field(min_length=1)
    tagged: bool = False
    """Whether arguments and values are written in the tagged form (tuples, sets, ...) instead of plain JSON."""
    compare: Compare = Compare()
    limits: TestLimits = TestLimits()


class AssertTests(_Part):
    """Python asserts that call the candidate's functions."""

    kind: Literal["assert"]
    code: str = Field(min_length=1)
    setup: str = ""
    """Code that runs before the tests, in their process."""
    limits: TestLimits = TestLimits()


Tests = Annotated[StdioTests | CallTests | AssertTests, Field(discriminator="kind")]


class Suite(_Part):
    """All that is known of a task's tests."""

    tests: Tests
    language: str | None = None
    entry_point: str | None = None
    """The function that the prompt asks for, where `head` begins it."""
    head: str | None = None
    """Code that the answer may continue: imports, helpers, and the beginning of the entry point."""


def read(task: Task) -> Suite:
    """The suite in `task.facts`; raises `CasesError` where it is missing or wrong."""
    facts: dict[str, Any] = task.facts
    if "tests" not in facts:
        found = ", ".join(sorted(facts)) or "none"
        raise CasesError(f"task {task.id!r}: facts['tests'] is missing; found: {found}; add the tests of this task")
    given = {name: facts[name] for name in ("tests", "language", "entry_point", "head") if name in facts}
    try:
        return Suite.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("stdio", "call", "assert"))
        found = repr(first.get("input"))
        raise CasesError(
            f"task {task.id!r}: facts.{place}: {first['msg']}; found {found[:80]}; correct the task's tests"
        ) from None
