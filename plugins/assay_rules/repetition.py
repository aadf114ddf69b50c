"""`repetition`: a penalty on text that says the same again."""

import re
from dataclasses import dataclass

from pydantic import Field

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict

# Scripts without blanks between words count character by character.
_UNIT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]|\w+|[^\w\s]")


class RepetitionOptions(Options):
    """What counts as a repetition."""

    ngram: int = Field(default=4, ge=1, le=64)
    """Words (and marks) in a row that count as one piece."""
    max_penalty: float = Field(default=1.0, gt=0)
    """The penalty of a text that is all repetition."""
    free_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of repeated pieces that costs nothing, since all prose repeats a little."""


@dataclass(frozen=True)
class Repetition:
    """In [-max_penalty, 0]: the share of repeated n-grams beyond the free share, scaled to 1, times -max_penalty.

    The share is 1 - unique / total, as in Yeo et al. 2025 (arXiv 2502.03373, appendix); they have no free share.
    """

    options: RepetitionOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        share = repeated_share(rollout.text, self.options.ngram)
        free = self.options.free_share
        value = -self.options.max_penalty * max(0.0, share - free) / (1.0 - free)
        summary = f"{share:.1%} of the {self.options.ngram}-grams are repeated; {free:.0%} are free"
        return Verdict.score(value + 0.0, evidence=Evidence(kind="repetition", summary=summary, data=round(share, 6)))

    def check_task(self, task: Task) -> str | None:
        """Nothing of the task is needed."""
        return None


def repeated_share(text: str, ngram: int) -> float:
    """1 - unique n-grams / all n-grams of `text`, in [0, 1); 0 for a text shorter than two n-grams."""
    units = _UNIT.findall(text.casefold())
    total = len(units) - ngram + 1
    if total < 2:
        return 0.0
    return 1.0 - len({tuple(units[at : at + ngram]) for at in range(total)}) / total
