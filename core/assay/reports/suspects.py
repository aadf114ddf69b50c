"""Rewards of a run that deserve a look: a list of suspects, each with the rule that named it; no alarm.

High reward for next to nothing, for the question sent back, for text that repeats itself, for hidden characters or a
cut-off answer; groups that are all one text; lengths that drift; a training reward that rises while a held-out source
falls.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from assay.contracts import Reward, Rollout, Task
from assay.reports.page import Section, section_rows
from assay.reports.text import one_line

_WORD = re.compile(r"\w+")
_EXAMPLES = 50
_DRIFT = 1.5


class Judged(NamedTuple):
    """One rollout of a run with its reward."""

    step: int
    task: Task
    rollout: Rollout
    reward: Reward | None


class Suspect(NamedTuple):
    """One rollout, and the rule that names it."""

    rule: str
    judged: Judged
    detail: str


def find_suspects(entries: Iterable[Judged], *, high: float | None = None) -> list[Suspect]:
    """Suspects among the rollouts with a high reward: at least `high`, or else the best quarter of distinct values."""
    rewarded = [entry for entry in entries if entry.reward is not None and entry.reward.value is not None]
    if not rewarded:
        return []
    values = sorted(_value(entry) for entry in rewarded)
    bound = high if high is not None else values[0] + 0.75 * (values[-1] - values[0])
    best = [entry for entry in rewarded if _value(entry) >= bound and (values[0] < values[-1] or high is not None)]
    found = [Suspect(rule, entry, detail) for entry in best for rule, detail in _texts(entry)]
    return found + _copies(best)


def suspect_sections(
    entries: Sequence[Judged], evaluations: Sequence[Mapping[str, Any]], *, high: float | None = None
) -> list[Section]:
    """The suspects by rule, the rollouts themselves, and what drifts over the run."""
    suspects = find_suspects(entries, high=high)
    counts = Counter(suspect.rule for suspect in suspects)
    rows = [
        (s.rule, s.judged.step, s.judged.rollout.id, f"{_value(s.judged):g}", s.detail, one_line(s.judged.rollout.text))
        for s in suspects[:_EXAMPLES]
    ]
    more = (f"{len(suspects) - _EXAMPLES} more are not shown.",) if len(suspects) > _EXAMPLES else ()
    return [
        Section("suspects by rule", ("rule", "rollouts"), section_rows(counts.most_common())),
        Section(
            "suspects",
            ("rule", "step", "rollout", "reward", "detail", "answer"),
            section_rows(rows),
            more or (() if suspects else ("none",)),
        ),
        Section("drift", notes=tuple(drift(entries, evaluations)) or ("none found",)),
    ]


def drift(entries: Sequence[Judged], evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on what changed from the first fifth of the steps to the last."""
    steps = sorted({entry.step for entry in entries})
    if len(steps) < 5:
        return []
    fifth = len(steps) // 5
    early, late = set(steps[:fifth]), set(steps[-fifth:])
    lengths = [_mean(len(e.rollout.text) for e in entries if e.step in part) for part in (early, late)]
    rewards = [_mean(_value(e) for e in entries if e.step in part and _has_value(e)) for part in (early, late)]
    found: list[str] = []
    if lengths[0] and lengths[1] and not 1 / _DRIFT <= lengths[1] / lengths[0] <= _DRIFT:
        found.append(f"answers went from {lengths[0]:.0f} to {lengths[1]:.0f} characters in the mean")
    if rewards[0] is None or rewards[1] is None or rewards[1] <= rewards[0] or len(evaluations) < 2:
        return found
    for name in evaluations[0]:
        first, last = _share(evaluations[0].get(name)), _share(evaluations[-1].get(name))
        if first is not None and last is not None and last < first:
            rose = f"training reward rose from {rewards[0]:.3f} to {rewards[1]:.3f}"
            found.append(f"{rose} while held-out {name!r} fell from {first:.1%} to {last:.1%}")
    return found


def _texts(entry: Judged) -> list[tuple[str, str]]:
    text, prompt = entry.rollout.text, entry.task.prompt
    words = _WORD.findall(text.casefold())
    found: list[tuple[str, str]] = []
    if len("".join(text.split())) < 2 and not _is_short_gold(entry):
        found.append(("almost empty", f"{len(text)} characters"))
    asked = _WORD.findall(prompt.casefold())
    if len(asked) >= 8 and (share := _shared(asked, words)) > 0.8:
        found.append(("question sent back", f"{share:.0%} of the question's 4-grams"))
    if (share := repeated(words)) > 0.5:
        found.append(("repeats itself", f"{share:.0%} of its 4-grams are repeated"))
    hidden = sum(unicodedata.category(character) in ("Cf", "Co") for character in text)
    if hidden:
        found.append(("hidden characters", f"{hidden} of them"))
    if entry.rollout.truncated:
        found.append(("cut off", f"finish {entry.rollout.finish}"))
    return found


def repeated(words: Sequence[str], ngram: int = 4) -> float:
    """Share of repeated n-grams among all of a text of at least 20 words, in [0, 1)."""
    if len(words) < 20:
        return 0.0
    grams = [tuple(words[at : at + ngram]) for at in range(len(words) - ngram + 1)]
    return 1.0 - len(set(grams)) / len(grams)


def _shared(asked: Sequence[str], words: Sequence[str], ngram: int = 4) -> float:
    grams = {tuple(asked[at : at + ngram]) for at in range(len(asked) - ngram + 1)}
    said = {tuple(words[at : at + ngram]) for at in range(len(words) - ngram + 1)}
    return len(grams & said) / len(grams) if grams else 0.0


def _copies(best: Sequence[Judged]) -> list[Suspect]:
    groups: dict[tuple[int, str], list[Judged]] = {}
    for entry in best:
        groups.setdefault((entry.step, entry.rollout.group_id), []).append(entry)
    found: list[Suspect] = []
    for members in groups.values():
        text = members[0].rollout.text
        if len(members) >= 4 and len(text) > 40 and all(entry.rollout.text == text for entry in members):
            found.append(Suspect("one text in a group", members[0], f"{len(members)} equal answers"))
    return found


def _is_short_gold(entry: Judged) -> bool:
    return len(str(entry.task.reference)) <= 2


def _has_value(entry: Judged) -> bool:
    return entry.reward is not None and entry.reward.value is not None


def _value(entry: Judged) -> float:
    assert entry.reward is not None
    assert entry.reward.value is not None
    return entry.reward.value


def _mean(numbers: Iterable[float]) -> float | None:
    listed = list(numbers)
    return sum(listed) / len(listed) if listed else None


def _share(facts: Any) -> float | None:
    """The share of right answers of one source in a line of evaluations.jsonl."""
    if isinstance(facts, Mapping) and "interval" in facts:
        return float(facts["interval"][0])  # pyright: ignore[reportUnknownArgumentType]  # JSON
    return None
