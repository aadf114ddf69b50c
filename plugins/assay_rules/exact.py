"""`exact`: the answer is the reference, letter for letter after the rewrites that the task allows."""

import unicodedata
from dataclasses import dataclass

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.answer import AnswerOptions, find_answer
from assay_rules.text import shown

_ARTICLES = ("a ", "an ", "the ")


class ExactOptions(Options):
    """What counts as the same text."""

    answer: AnswerOptions = AnswerOptions()
    """Where in the response the answer is."""
    ignore_case: bool = False
    """Compare case-folded."""
    ignore_space: bool = True
    """Read any run of white space as one blank; blanks at the ends never count."""
    ignore_article: bool = False
    """Drop a leading a, an or the."""
    ignore_final_point: bool = True
    """Drop one final full stop."""


@dataclass(frozen=True)
class Exact:
    """1 where the answer equals the reference (or one of a list of references), else 0."""

    options: ExactOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        golds = references(task)
        if not golds:
            return Verdict.abstain("gold_empty", fault="ours", evidence=self.check_task(task) or "")
        found = find_answer(rollout.text, self.options.answer)
        if found is None:
            return Verdict.abstain("no_answer", evidence="no answer found in the response")
        answer = self.normal(found.text)
        same = any(answer == self.normal(gold) for gold in golds)
        relation = "equals" if same else "differs from"
        summary = f"{shown(found.text)} ({found.rule}) {relation} {shown(golds[0])}"
        if len(golds) > 1:
            summary += f" or {len(golds) - 1} other references"
        return Verdict.score(float(same), evidence=Evidence(kind="answer", summary=summary, data=found.as_data()))

    def check_task(self, task: Task) -> str | None:
        """One sentence when the reference is no text that can be compared."""
        return None if references(task) else f"the reference is empty or no text: {task.reference!r}"

    def normal(self, text: str) -> str:
        """`text` after the allowed rewrites; Unicode composition never matters."""
        text = unicodedata.normalize("NFC", text).strip()
        if self.options.ignore_final_point:
            text = text.removesuffix(".").rstrip()
        if self.options.ignore_space:
            text = " ".join(text.split())
        if self.options.ignore_case:
            text = text.casefold()
        if self.options.ignore_article:
            folded = text.casefold()
            article = next((word for word in _ARTICLES if folded.startswith(word)), "")
            text = text[len(article) :]
        return text


def references(task: Task) -> list[str]:
    """The task's reference, or references, as texts; empty where there is none that is usable."""
    reference = task.reference
    listed = reference if isinstance(reference, list) else [reference]
    texts = [str(item) for item in listed if isinstance(item, str | int | float) and not isinstance(item, bool)]
    return [text for text in texts if text.strip()] if len(texts) == len(listed) else []
