r"""`choice`: a multiple-choice answer, as one letter or as the option's own text.

The last statement of an answer decides: an `<answer>` block, a `\boxed{}`, a phrase such as "answer: B", or a closing
line that is nothing but a choice. The article "a", "None of the above" and "don't know" are no letters; several
letters are no single choice, also if one of them is right.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pydantic import Field

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.answer import AnswerOptions, find_answer
from assay_rules.text import answer_zone, shown

_PHRASE = re.compile(
    r"\b(?:answer|choice|option)(?:s\b|\b)\s+(?:is|are|must be|should be|would be|has to be)\b\s*:?"
    r"|\b(?:answer|choice|option)\b[*_ \t]*[:=]"
    r"|\bI(?:\s+would|'d)?\s+(?:choose|pick|select|go with)\b(?:\s+(?:option|answer|choice)\b)?",
    re.IGNORECASE,
)
_STATEMENTS = 100  # so many statements are looked at, from the end; a text with more unreadable ones states nothing
_LINE = 500  # characters of a last line that may conclude something
_TAIL = 5000  # characters at the end in which options may be gone through, one a line
_BOX = re.compile(r"\\boxed\s*\{|\\fbox\s*\{")
_DECORATION = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|mbox|rm|bf)\b\s*|[*$`\"'\u201c\u201d{}]|\\[(),!\[\]]")
_DENIAL = re.compile(r"(?:not|none|neither|no|unknown|unclear|undecided|impossible|i do|i don|don)\b", re.IGNORECASE)
_DOUBT = re.compile(
    r"^\W*(?:or|and)\b|\b(?:wait|actually|sorry|instead|maybe|perhaps|possibly|alternatively"
    r"|(?:could|might|may)\s+(?:(?:also|well)\s+)*be)\b",
    re.IGNORECASE,
)
_JOIN = re.compile(r"\s*(?:,|/|;|&|\bor\b|\band\b)\s*(?:(?:or|and)\b\s*)?", re.IGNORECASE)
_CLOSING = re.compile(
    r"\b(?:so|therefore|thus|hence|which is|it is|it's|it must be)\s*,?\s*(?=\S{1,12}\s*\Z)", re.IGNORECASE
)
_HEDGE = re.compile(r"\b(?:not|whether|if|or|unsure|maybe|perhaps|might|could)\b|n't\b", re.IGNORECASE)
_LIST = re.compile(r"\}[\s$,;]*(?:(?:and|or)\b[\s$,;]*)*\Z", re.IGNORECASE)
_EDGES = " .:,;()[]-\u2013\u2014"
_OPERATOR = re.compile(r" *([-+*/=^<>|]) *")
_ARTICLE = re.compile(r"^(?:a|an|the)\s+", re.IGNORECASE)


class ChoiceOptions(Options):
    """Which options there are."""

    labels: str = Field(default="ABCDEFGHIJ", min_length=2)
    """The letters, where the task has no fact `options` (a table from letter to text, or a list of texts)."""


class Reading(NamedTuple):
    """What one statement chooses; several labels are no single choice."""

    labels: frozenset[str]
    text: str


@dataclass(frozen=True)
class Choice:
    """1 where exactly the reference's option (or options) is chosen, else 0."""

    options: ChoiceOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.check_task(task)
        if problem is not None:
            reason = "gold_empty" if task.reference in (None, "", []) else "gold_not_an_option"
            return Verdict.abstain(reason, fault="ours", evidence=problem)
        choices = Choices(self._table(task))
        golds = self._golds(task, choices)
        zone = answer_zone(rollout.text)
        if zone is None:
            return Verdict.abstain("no_answer", evidence="the reasoning never ends")
        reading = choices.stated(zone)
        if reading is None:
            mentioned = choices.mentioned(zone)
            if len(mentioned) > 1:
                return Verdict.score(0.0, evidence=f"names {', '.join(sorted(mentioned))} and chooses none of them")
            return Verdict.abstain("no_answer", evidence=f"no choice is stated in {shown(zone.strip())}")
        chosen, wanted = ", ".join(sorted(reading.labels)), ", ".join(sorted(golds))
        summary = f"chooses {chosen} in {shown(reading.text)}; the reference is {wanted}"
        value = float(reading.labels == golds)
        return Verdict.score(value, evidence=Evidence(kind="answer", summary=summary, data=chosen))

    def check_task(self, task: Task) -> str | None:
        """One sentence when the reference names none of the options."""
        table = self._table(task)
        if len(table) < 2:
            return f"the fact 'options' is no table or list of at least two texts: {task.facts.get('options')!r}"
        if not self._golds(task, Choices(table)):
            return f"the reference {task.reference!r} is none of the options {', '.join(table)}"
        return None

    def _table(self, task: Task) -> dict[str, str]:
        options = task.facts.get("options")
        if options is None:
            return dict.fromkeys(self.options.labels, "")
        if isinstance(options, dict):
            return {key.strip(): str(value) for key, value in options.items() if key.strip()}
        if isinstance(options, list):
            return {self.options.labels[index : index + 1]: str(value) for index, value in enumerate(options)}
        return {}

    def _golds(self, task: Task, choices: "Choices") -> frozenset[str]:
        listed = task.reference if isinstance(task.reference, list) else [task.reference]
        found = [choices.label(item) for item in listed if isinstance(item, str | int)]
        labels = [label for label in found if label is not None]
        return frozenset(labels) if len(labels) == len(listed) else frozenset()


class Choices:
    """The options of one task, and how texts are read against them."""

    def __init__(self, table: Mapping[str, str]) -> None:
        """Prepare the options `table`, from label to text."""
        self._labels = {label.casefold(): label for label in table}
        by_text: dict[str, list[str]] = {}
        for label, text in table.items():
            if normal := _normal(text):
                by_text.setdefault(normal, []).append(label)
        self._texts = {text: labels[0] for text, labels in by_text.items() if len(labels) == 1}
        self._label, self._right = _label_patterns(tuple(table))

    def label(self, gold: str | int) -> str | None:
        """The label that a reference names, by letter or by the option's text; None where it names none."""
        text = str(gold).strip().strip("().:").strip()
        return self._labels.get(text.casefold()) or self._texts.get(_normal(str(gold)))

    def stated(self, zone: str) -> Reading | None:
        """The last statement of a choice in `zone`, or None."""
        for content, is_phrase in _statements(zone):
            reading = self.read(content)
            if reading is not None:
                return None if is_phrase and self._goes_on(zone, content, reading) else reading
            if is_phrase and _DENIAL.match(_plain(content)):
                break
        # Without a statement, a closing line counts only if it is a choice and nothing else, or ends as a conclusion.
        last = zone.rstrip().rpartition("\n")[2]
        whole = self.read(last, alone=True) if len(last) <= _LINE else None
        if whole is not None:
            return None if self._echoes(zone, whole) else whole
        return self._concluded(last[-_LINE:])

    def _echoes(self, zone: str, last: Reading) -> bool:
        """Whether the closing lines go through several options, one a line, and the last is chosen no second time."""
        before: set[frozenset[str]] = set()
        lines = [line for line in zone[-_TAIL:].split("\n") if line.strip()]
        for line in reversed(lines[:-1]):
            reading = self.read(line, alone=True) if len(line) <= _LINE else None
            if reading is None:
                break
            before.add(reading.labels)
        return bool(before) and last.labels not in before

    def _goes_on(self, zone: str, content: str, reading: Reading) -> bool:
        """Whether nothing but other options, one a line, follows the stated `content` to the end."""
        after = zone[zone.rfind(content) + len(content) :]
        lines = [line for line in after.split("\n") if line.strip()] if len(after) <= _TAIL else []
        readings = [self.read(line, alone=True) for line in lines]
        return bool(readings) and all(each is not None and each.labels != reading.labels for each in readings)

    def read(self, content: str, *, alone: bool = False) -> Reading | None:
        """What the text of one statement chooses; with `alone`, nothing may stand beside the choice."""
        plain = _plain(content)
        if label := self._by_text(plain, alone):
            return Reading(frozenset([label]), plain)
        first = self._label.match(plain)
        if first is None:
            return None
        labels, at = {self._labels[first["label"].casefold()]}, first.end()
        while joined := _JOIN.match(plain, at):
            following = self._label.match(plain, joined.end())
            if following is None:
                break
            labels.add(self._labels[following["label"].casefold()])
            at = following.end()
        rest = plain[at:]
        if not self._ends(first, rest, len(labels) > 1):
            return None
        if len(labels) == 1:
            labels |= self._contradicted(rest)
        tail = _normal(rest.strip(_EDGES))
        if alone and tail and self._texts.get(tail) not in labels:
            return None
        return Reading(frozenset(labels), plain)

    def _concluded(self, line: str) -> Reading | None:
        """What the end of the last line concludes: "Option B is correct.", "..., so B."."""
        sentence = re.split(r"(?<=[.!?])\s+", line.strip())[-1]
        if _HEDGE.search(sentence):
            return None
        right = self._right.search(sentence)
        if right is not None:
            return Reading(frozenset([self._labels[right["label"].casefold()]]), sentence)
        closing = _CLOSING.search(sentence)
        return self.read(sentence[closing.end() :], alone=True) if closing is not None else None

    def mentioned(self, zone: str) -> set[str]:
        """Labels that stand alone as capital words in `zone`, and options whose text occurs."""
        words = {word for word in re.findall(r"\w+", zone) if self._labels.get(word.casefold()) == word}
        normal = f" {_normal(zone)} "
        return words | {label for text, label in self._texts.items() if f" {text} " in normal}

    def _by_text(self, plain: str, alone: bool) -> str | None:
        whole = self._texts.get(_normal(plain))
        if whole is not None or alone:
            return whole
        sentence = re.split(r"[.,;]\s|\n", plain, maxsplit=1)
        label = self._texts.get(_normal(sentence[0])) if len(sentence) > 1 else None
        # "Quito, or Lima" begins with an option's text and is still no single choice.
        return None if label is not None and _DOUBT.search(sentence[1]) else label

    def _ends(self, label: re.Match[str], rest: str, listed: bool) -> bool:
        """Whether what looks like a label ends as one, and is no article or pronoun before a word."""
        if not rest or label["bracket"] or rest[0] in ".):,;\n-" or listed:
            return True
        if not rest[0].isspace():
            return False
        own = self._texts.get(_normal(rest))
        is_word = label["label"] in ("A", "I", "a", "i") or label["label"].islower()
        return own is not None or not is_word or not rest.strip()[:1].isalnum()

    def _contradicted(self, rest: str) -> set[str]:
        """Other labels that the words after a label choose as well, by text or in doubt."""
        other = self._texts.get(_normal(rest.strip(_EDGES)))
        if other is not None:
            return {other}
        # "A) Lima B) Quito C) La Paz" goes through the options and chooses none of them.
        listed = {label for label in re.findall(r"(?<!\w)\(?(\w+)[.):]", rest) if label in self._labels.values()}
        return self.mentioned(rest) if len(listed) > 1 or _DOUBT.search(rest) else set()


def _statements(zone: str) -> Iterator[tuple[str, bool]]:
    """The texts of boxes, answer blocks and answer phrases, the last first; True marks a phrase."""
    marks = [(match.end(), _line) for match in _PHRASE.finditer(zone)]
    marks += [(match.end(), _box) for match in _BOX.finditer(zone)]
    tag = find_answer(zone, AnswerOptions(rules=("tag",), think=False))
    skipped = len(zone)
    for start, content in sorted(marks, key=lambda mark: -mark[0])[:_STATEMENTS]:
        if content is _box and start >= skipped:
            continue
        if tag is not None and tag.start > start:
            yield tag.text, False
            tag = None
        if content is _box:
            skipped, text = _boxes(zone, start)
            yield text, False
        else:
            yield _line(zone, start), True
    if tag is not None:
        yield tag.text, False


def _line(zone: str, start: int) -> str:
    return zone[start : start + 500].lstrip(" \t*_").lstrip("\n").partition("\n")[0]


def _box(zone: str, start: int) -> str:
    return zone[start : _closing(zone, start)]


def _boxes(zone: str, start: int) -> tuple[int, str]:
    """Where a list of boxes that ends with the one at `start` begins, and what is in all of them.

    Boxes joined only by commas, "and", "or" or blanks are one list.
    """
    texts = [_box(zone, start)]
    while len(texts) < _STATEMENTS:
        mark = max(zone.rfind("\\boxed", 0, start), zone.rfind("\\fbox", 0, start))
        before = _LIST.search(zone, max(0, mark - 600), mark) if mark >= 0 else None
        if before is None:
            break
        opened = next(
            (found.end() for found in _BOX.finditer(zone, max(0, before.start() - 520), before.start())), None
        )
        if opened is None:
            break
        start = opened
        texts.insert(0, _box(zone, start))
    return start, ", ".join(texts)


def _closing(zone: str, start: int, limit: int = 500) -> int:
    """Index of the brace that closes the box opened before `start`, or `start` where none does within the limit."""
    depth = 1
    for at in range(start, min(len(zone), start + limit)):
        depth += (zone[at] == "{") - (zone[at] == "}")
        if depth == 0:
            return at
    return start


@lru_cache(maxsize=128)
def _label_patterns(labels: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What begins with a label, and "B is correct" at the end of a sentence."""
    listed = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    first = re.compile(
        rf"\s*(?:(?:option|choice|answer)\s+)?(?P<bracket>[(\[])?\s*(?P<label>{listed})(?!\w)(?(bracket)\s*[)\]])",
        re.IGNORECASE,
    )
    right = re.compile(
        rf"(?:\b(?i:option|choice)\s+|\A\W*)\W{{0,3}}(?P<label>{listed})(?!\w)\W{{0,3}}(?:\s*\S.{{0,80}})?"
        r"\s+is\s+(?:the\s+)?(?:correct|right|best)(?:\s+(?:one|answer|choice|option))?\W*\Z"
    )
    return first, right


def _plain(text: str) -> str:
    """`text` without mark-up around letters, and full-width forms as ASCII."""
    return _DECORATION.sub("", unicodedata.normalize("NFKC", text)).strip()


def _normal(text: str) -> str:
    """`text` as options are compared: case, articles, mark-up, blanks and a final point ignored."""
    plain = " ".join(_plain(text).casefold().split()).strip(" .")
    return _ARTICLE.sub("", _OPERATOR.sub(r"\1", plain))
