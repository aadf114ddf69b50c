"""`numeric`: the answer is one number, equal to the reference within the tolerance that the task declares."""

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from pydantic import Field, JsonValue

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.answer import AnswerOptions, find_answer
from assay_rules.text import shown

_MAX_CHARACTERS = 1000
_MAX_EXPONENT = 5000  # the largest power of ten that is expanded; a bound on cost, far beyond any measured quantity
_SIGNS = {
    **dict.fromkeys("\u2212\u2013\u2012\uff0d", "-"),
    **dict.fromkeys("\u00a0\u202f\u2009", " "),
    "\uff0e": ".",
    "\uff0c": ",",
    "\uff05": "%",
    "\u2044": "/",
}
_PLAIN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([, ])\d{3})(?:\1\d{3})*(?:\.\d*)?")
_MIXED = re.compile(r"([+-]?)(\d+) +(\d+) */ *(\d+)")
_NUMBER_LIKE = re.compile(r"\d+")


class NumericOptions(Options):
    """How the number is written, and how near it must be."""

    answer: AnswerOptions = AnswerOptions()
    """Where in the response the answer is."""
    abs_tol: float = Field(default=0.0, ge=0)
    """Largest absolute difference."""
    rel_tol: float = Field(default=0.0, ge=0)
    """Largest difference relative to the reference; the larger of both bounds counts."""
    decimal_comma: bool = False
    """Read `3,5` as three and a half and `.` as the mark of thousands."""
    units: tuple[str, ...] = ()
    """Words or signs that may stand before or after the number and are dropped; any other word is no number."""


class NotANumberError(ValueError):
    """The text is not one number that can be compared; its text is a reason code."""


@dataclass(frozen=True)
class Numeric:
    """1 where the answer's number is near enough to the reference's, else 0."""

    options: NumericOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.check_task(task)
        if problem is not None:
            reason = "gold_empty" if task.reference in (None, "") else "gold_unparseable"
            return Verdict.abstain(reason, fault="ours", evidence=problem)
        found = find_answer(rollout.text, self.options.answer)
        if found is None:
            return Verdict.abstain("no_answer", evidence="no answer found in the response")
        gold = self._gold(task.reference)
        try:
            number = read_number(found.text, decimal_comma=self.options.decimal_comma, units=self.options.units)
        except NotANumberError as error:
            if str(error) == "several_numbers":
                return Verdict.score(0.0, evidence=f"{shown(found.text)} names several numbers, not one")
            return Verdict.abstain(str(error), evidence=f"{shown(found.text)} ({found.rule}) is not one number")
        bound = max(Fraction(self.options.abs_tol), Fraction(self.options.rel_tol) * abs(gold))
        near = abs(number - gold) <= bound
        summary = f"{shown(found.text)} ({found.rule}) is {'' if near else 'not '}{shown(str(task.reference))}"
        if bound:
            summary += f" within {float(bound):g}"
        return Verdict.score(float(near), evidence=Evidence(kind="answer", summary=summary, data=found.as_data()))

    def check_task(self, task: Task) -> str | None:
        """One sentence when the reference is no number."""
        try:
            self._gold(task.reference)
        except NotANumberError:
            return f"the reference is not a number: {shown(str(task.reference))}"
        return None

    def _gold(self, reference: JsonValue) -> Fraction:
        if isinstance(reference, bool) or not isinstance(reference, str | int | float):
            raise NotANumberError("no_number")
        comma = self.options.decimal_comma and isinstance(reference, str)
        return read_number(str(reference), decimal_comma=comma, units=self.options.units)


def read_number(text: str, *, decimal_comma: bool = False, units: tuple[str, ...] = ()) -> Fraction:
    """The exact value of `text`: a decimal, a grouped or scientific number, a simple fraction, or a percentage.

    Raises:
        NotANumberError: with the reason `no_number`, `several_numbers` or `number_too_large`; nothing is expanded.
    """
    if len(text) > _MAX_CHARACTERS:
        raise NotANumberError("number_too_large")
    text = _readable_text(text).strip().removesuffix(".").rstrip()
    for unit in sorted(map(_readable_text, units), key=len, reverse=True):
        text = text.removesuffix(unit).strip() if text.endswith(unit) else text.removeprefix(unit).strip()
    percent = text.endswith("%")
    text = text.rstrip("%\\ ") if percent else text
    if mixed := _MIXED.fullmatch(text):
        sign, whole, top, bottom = mixed.groups()
        if int(bottom) == 0:
            raise NotANumberError("no_number")
        value = (int(whole) + Fraction(int(top), int(bottom))) * (-1 if sign == "-" else 1)
        return value / 100 if percent else value
    top, slash, bottom = text.partition("/")
    value = _decimal(top.strip(), decimal_comma, text)
    if slash:
        below = _decimal(bottom.strip(), decimal_comma, text)
        if below == 0:
            raise NotANumberError("no_number")
        value /= below
    return value / 100 if percent else value


def _readable(character: str) -> str:
    """Digits of any script as ASCII, vulgar fractions as ` a/b`, signs and blanks in their plain form."""
    if character.isascii():
        return character
    if character in _SIGNS:
        return _SIGNS[character]
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    if unicodedata.decomposition(character).startswith("<fraction>"):
        return " " + unicodedata.normalize("NFKC", character).replace("\u2044", "/")
    return character


def _readable_text(text: str) -> str:
    return "".join(map(_readable, text))


def _decimal(text: str, decimal_comma: bool, whole: str) -> Fraction:
    if decimal_comma:
        text = text.translate(str.maketrans({",": ".", ".": ","}))
    plain = re.sub(r"[, ]", "", text) if _GROUPED.fullmatch(text) else text
    if not _PLAIN.fullmatch(plain):
        several = len(_NUMBER_LIKE.findall(whole)) > 1
        raise NotANumberError("several_numbers" if several else "no_number")
    try:
        number = Decimal(plain)
    except InvalidOperation as error:
        raise NotANumberError("no_number") from error
    if number and abs(number.adjusted()) > _MAX_EXPONENT:
        raise NotANumberError("number_too_large")
    return Fraction(number)
