"""`pattern`: the answer matches a regular expression; runs in a killable worker, for a pattern may never end."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pydantic import field_validator

from assay.component import Options
from assay.contracts import Evidence, Limits, Rollout, Task, Verdict
from assay_rules.text import answer_zone, shown

PATTERN_LIMITS = Limits(timeout_s=1.0, memory_mib=256, limit_fault="candidate")
"""A match that takes longer than a second is cut off; the candidate's text decides the cost, so it is its doing."""


class PatternOptions(Options):
    """Which expression, and where it must match."""

    pattern: str | None = None
    """A Python regular expression; None takes the task's reference as the expression."""
    match: Literal["full", "search"] = "full"
    """`full`: the whole zone without white space around; `search`: anywhere."""
    forbid: bool = False
    """Turn the answer round: 1 where nothing matches."""
    ignore_case: bool = False
    """Ignore case."""
    dot_all: bool = False
    """Let `.` match a line end."""
    think: bool = True
    """Leave out reasoning in `<think>` tags."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return pattern


@dataclass(frozen=True)
class Pattern:
    """1 where the expression matches, else 0."""

    options: PatternOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.check_task(task)
        if problem is not None:
            return Verdict.abstain("gold_unparseable", fault="ours", evidence=problem)
        zone = answer_zone(rollout.text) if self.options.think else rollout.text
        if zone is None or not zone.strip():
            return Verdict.abstain("no_answer", evidence="the response has no text after its reasoning")
        expression = self._expression(self._source(task))
        found = expression.search(zone) if self.options.match == "search" else expression.fullmatch(zone.strip())
        value = float((found is not None) != self.options.forbid)
        summary = f"matches at {found.start()}: {shown(found.group())}" if found else f"no match in {shown(zone)}"
        return Verdict.score(value, evidence=Evidence(kind="match", summary=summary))

    def check_task(self, task: Task) -> str | None:
        """One sentence when the reference is needed and is no regular expression."""
        if self.options.pattern is not None:
            return None
        if not isinstance(task.reference, str) or not task.reference:
            return f"the reference is no regular expression: {task.reference!r}"
        try:
            self._expression(task.reference)
        except re.error as error:
            return f"the reference is no regular expression: {error}: {shown(task.reference)}"
        return None

    def _source(self, task: Task) -> str:
        return self.options.pattern if self.options.pattern is not None else str(task.reference)

    def _expression(self, source: str) -> re.Pattern[str]:
        flags = re.IGNORECASE if self.options.ignore_case else re.NOFLAG
        return _compiled(source, flags | (re.DOTALL if self.options.dot_all else re.NOFLAG))


@lru_cache(maxsize=256)
def _compiled(source: str, flags: re.RegexFlag) -> re.Pattern[str]:
    return re.compile(source, flags)
