"""`language`: how much of the response is in the wanted language."""

from dataclasses import dataclass
from typing import Literal

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.prose import detect_language, known_languages, passages, script_share
from assay_rules.text import answer_zone


class LanguageOptions(Options):
    """Which language, and of which part."""

    language: str | None = None
    """ISO 639-1 code such as `en`; None takes the task's fact `language`."""
    zone: Literal["all", "answer"] = "all"
    """The whole response, reasoning included, or only what follows the reasoning."""
    score: Literal["share", "all"] = "share"
    """`share`: the share of letters in passages of that language (language consistency as in DeepSeek-R1, arXiv
    2501.12948, section 2.3.2); `all`: 1 where at least 95 % are, else 0."""


@dataclass(frozen=True)
class Language:
    """In [0, 1]: the share of the response's letters that are in the wanted language; code and formulas do not count.

    A passage is about 80 letters long, for shorter ones tell no language.
    """

    options: LanguageOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.check_task(task)
        if problem is not None:
            return Verdict.abstain("language_unknown", fault="ours", evidence=problem)
        wanted = self._wanted(task)
        zone = answer_zone(rollout.text) if self.options.zone == "answer" else rollout.text
        sizes: dict[str, int] = {}
        for passage in passages(zone or ""):
            letters = sum(character.isalpha() for character in passage)
            code = detect_language(passage).code
            right = code == wanted or (letters < 20 and script_share(passage, wanted) > 0.9)
            sizes[wanted if right else code] = sizes.get(wanted if right else code, 0) + letters
        total = sum(sizes.values())
        if total == 0:
            return Verdict.abstain("no_answer", evidence="the response has no letters")
        share = sizes.get(wanted, 0) / total
        listed = ", ".join(
            f"{code} {size / total:.0%}" for code, size in sorted(sizes.items(), key=lambda p: -p[1])[:5]
        )
        value = share if self.options.score == "share" else float(share >= 0.95)
        summary = f"letters by language: {listed}; wanted {wanted}"
        return Verdict.score(value, evidence=Evidence(kind="language", summary=summary, data=round(share, 6)))

    def check_task(self, task: Task) -> str | None:
        """One sentence when no language is named, or one that cannot be told."""
        wanted = self._wanted(task)
        if wanted in known_languages():
            return None
        return f"the language {wanted!r} cannot be told; use an ISO 639-1 code such as 'en' or 'de'"

    def _wanted(self, task: Task) -> str:
        wanted = self.options.language or task.facts.get("language")
        return wanted.casefold().partition("-")[0] if isinstance(wanted, str) else str(wanted)
