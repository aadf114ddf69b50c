"""The math verifier: a gold that was read once, a response, and a verdict that says what it rests on."""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from pydantic import JsonValue, ValidationError

from assay.component import BuildContext, Workers
from assay.contracts import Candidate, Evidence, Limits, ResourceLimits, Task, Verdict
from assay_math import algebra
from assay_math.choices import chosen, gold_letter, option_texts
from assay_math.decimals import rounds
from assay_math.decisions import Decision
from assay_math.equivalence import compare
from assay_math.expression import Node
from assay_math.extract import extract, offered
from assay_math.forms import allowed, is_echo, is_unevaluated
from assay_math.found import Extraction, Missing
from assay_math.options import MathPolicy
from assay_math.polynomials import TooCostlyError, UndefinedError
from assay_math.reading import Answer, read, text_form

_ARITHMETIC = frozenset({"number", "add", "multiply", "negate", "divide", "power", "mixed", "percent", "constant"})
_SOLUTION_MARKS = ("\\boxed", "####")
_MAX_GOLDS = 65_536
_MAX_GOLD_BITS = 13_000  # some 3,900 digits: what a reference may have by default, and what Python writes out
_PERCENT = re.compile(r"\b(?:what|which|how many|the|a)\s+(?:\w+\s+)?(?:percent|percentage|per cent)\b", re.IGNORECASE)
_ASKS_LIST = re.compile(
    r"\b(?:separated\s+by\s+(?:a\s+)?commas?|comma[- ]separated"
    r"|(?:all|the)\s+(?:(?:possible|real|complex|integer|positive|negative|distinct|different)\s+)*"
    r"(?:solutions|roots|zeros|zeroes|values|answers|numbers|integers)|list\s+(?:all|the|every))\b",
    re.IGNORECASE,
)
"""Questions whose answer may be several numbers."""
DEEP = "assay_math.deep:equivalent"


class Gold(NamedTuple):
    """A gold answer that was read, once, before any response."""

    answer: Answer
    letter: str | None = None
    """The letter, where it is a choice."""
    options: tuple[tuple[str, str], ...] = ()
    """Letters and texts of the options, where the task has them."""
    policy: MathPolicy = MathPolicy()
    prompt: str = ""


class BadGold(NamedTuple):
    """A gold that no response can be compared with."""

    reason: str
    """`gold_empty`, `gold_unparseable`, `gold_not_checkable_by_rule`, `gold_wrong_type` or `gold_policy`."""
    detail: str

    @property
    def sentence(self) -> str:
        """One line for a person."""
        return f"{self.reason}: {self.detail}"


def read_gold(reference: JsonValue, policy: MathPolicy | None = None, *, task: Task | None = None) -> Gold | BadGold:
    """The gold in `reference`, read strictly; `task` adds its declared policy, its options and its prompt.

    A string is the answer, a worked solution (the last box, or what stands behind `####`), or LaTeX in dollars; a
    number is itself; a list of strings or numbers is one answer with several parts.
    """
    policy = policy or MathPolicy()
    options: dict[str, str] = {}
    if task is not None:
        try:
            policy = policy.for_task(task.facts)
        except (ValidationError, ValueError) as error:
            return BadGold("gold_policy", " ".join(str(error).split())[:300])
        options = option_texts(task.facts)
    text = _as_text(reference)
    if isinstance(text, BadGold):
        return text
    if not text.strip(" $"):
        return BadGold("gold_empty", "the reference is empty")
    answer = read(text, max_chars=policy.max_answer_chars)
    if answer.node is None:
        return BadGold("gold_unparseable", f"{text[:80]!r}: {answer.problem}")
    if (undefined := _without_value(answer.node)) is not None:
        return BadGold("gold_unparseable", f"{text[:80]!r} has no value: {undefined}")
    words = len(answer.text.split())
    if answer.node.op == "text" and words > policy.max_text_words:
        return BadGold(
            "gold_not_checkable_by_rule",
            f"{text[:80]!r} is prose of {words} words; at most {policy.max_text_words} can be compared",
        )
    letter = gold_letter(answer.text)
    if letter is None and options:
        same = [each for each, option in options.items() if option and text_form(option) == text_form(answer.text)]
        letter = same[0] if len(same) == 1 else None
    prompt = task.prompt if task is not None else ""
    if answer.lists and (policy.answers or 1) < 2 and _ASKS_LIST.search(prompt) is None:
        answer = answer._replace(lists=())  # digits in groups of three are one number
    if policy.percent == "auto":
        policy = policy.model_copy(update={"percent": "bare" if _asks_percent(answer, prompt) else "value"})
    return Gold(answer, letter, tuple(options.items()), policy, prompt)


def _without_value(node: Node) -> str | None:
    """Why a single number has no value (`1/0`), or None."""
    if any(part.op not in _ARITHMETIC for part in node.walk()):
        return None
    try:
        algebra.form(node)
    except UndefinedError as error:
        return str(error)
    except TooCostlyError:
        return None
    return None


def _asks_percent(answer: Answer, prompt: str) -> bool:
    """Whether the question asks for a percentage and the gold is one, with or without its sign."""
    if answer.node is None or _PERCENT.search(prompt) is None:
        return False
    node = answer.node
    return node.op == "percent" or (node.op == "number" and abs(node.number) > 1)


def _as_text(reference: JsonValue) -> str | BadGold:
    if isinstance(reference, bool) or reference is None or isinstance(reference, dict):
        if reference is None:
            return BadGold("gold_empty", "the task has no reference")
        return BadGold("gold_wrong_type", f"a string, a number or a list is needed; found {type(reference).__name__}")
    if isinstance(reference, list):
        parts = [_as_text(part) for part in reference]
        bad = next((part for part in parts if isinstance(part, BadGold)), None)
        return bad or ", ".join(cast("list[str]", parts))
    if isinstance(reference, int):
        if reference.bit_length() > _MAX_GOLD_BITS:
            return BadGold("gold_unparseable", f"an integer of {reference.bit_length()} bits")
        return str(reference)
    if isinstance(reference, float):
        if not math.isfinite(reference):
            return BadGold("gold_unparseable", f"{reference!r} is no finite number")
        return str(int(reference)) if reference.is_integer() else repr(reference)
    if any(mark in reference for mark in _SOLUTION_MARKS):
        found = extract(reference, MathPolicy(rules=("boxed", "hashes")))
        return found.text if isinstance(found, Extraction) else reference
    return reference


class Pending(NamedTuple):
    """What the exact layers could not decide, for the worker."""

    extraction: Extraction
    decision: Decision


def judge_text(gold: Gold, response: str) -> Verdict | Pending:
    """The verdict of the exact layers, or what is left for the worker."""
    policy = gold.policy
    found = extract(response, policy, prompt=gold.prompt, choices=bool(gold.options and gold.letter))
    if isinstance(found, Missing):
        return _abstain("no_answer", found.reason)
    if gold.letter is not None:
        decision = _choice(gold, found)
        if decision is not None:
            return _scored(gold, found, decision)
    answer = read(found.text, max_chars=policy.max_answer_chars)
    if answer.node is None:
        return _unread(found, answer.problem)
    if policy.forms or policy.answers is not None:
        refusal = allowed(answer.node, policy)
        if refusal:
            return _scored(gold, found, Decision("different", refusal))
    if not policy.unevaluated and is_unevaluated(answer.node) and not is_unevaluated(gold.answer.node):
        return _abstain("unevaluated", "it leaves an integral, a sum, a product or a limit to be worked out", found)
    decision = _compared(gold, answer, found, response)
    if decision.outcome == "costly":
        return _abstain("too_costly", decision.rule, found)
    if decision.outcome == "undefined":
        return _unread(found, f"it has no value: {decision.rule}")
    if decision.outcome == "unknown":
        return Pending(found, decision)
    return _scored(gold, found, decision)


def _compared(gold: Gold, answer: Answer, found: Extraction, response: str) -> Decision:
    """The exact layers' decision, unless the answer is an echo or one of several."""
    decision = compare(gold.answer, answer, gold.policy)
    if decision.outcome != "equal":
        return decision
    if not gold.policy.echoes and is_echo(gold.answer, answer, gold.prompt):
        return Decision("different", "an echo of the question, not its answer")
    if _offers_another(gold, answer, found, response):
        return Decision("different", "another answer is offered behind it")
    return decision


def _offers_another(gold: Gold, answer: Answer, found: Extraction, response: str) -> bool:
    """Whether a number of another value stands behind the answer as an alternative; its rounding does not."""
    text = offered(response, found)
    other = read(text) if text is not None else None
    if other is None or other.node is None or answer.node is None:
        return False
    return not rounds(answer.node, other.node) and compare(gold.answer, other, gold.policy).outcome != "equal"


def _choice(gold: Gold, found: Extraction) -> Decision | None:
    letter = chosen(found.text, dict(gold.options))
    if letter is None:
        return Decision("different", "no single letter is chosen") if gold.options else None
    if letter == gold.letter:
        return Decision("equal", "the same letter")
    return Decision("different", "another letter") if gold.options or letter != found.text else None


def verify(gold: Gold, response: str) -> Verdict:
    """The verdict of the exact layers alone; what they cannot decide is abstained on."""
    result = judge_text(gold, response)
    return result if isinstance(result, Verdict) else undecided(result)


def undecided(pending: Pending, detail: str = "") -> Verdict:
    """The abstention for what no layer could decide."""
    return _abstain("undecided", detail or pending.decision.rule, pending.extraction)


# ---- verdicts -------------------------------------------------------------------------------------------------------


def _scored(gold: Gold, found: Extraction, decision: Decision) -> Verdict:
    right = decision.outcome == "equal"
    return _trusted(
        status="scored",
        value=1.0 if right else 0.0,
        reason=None,
        fault=None,
        summary=f"{'equal' if right else 'different'}: {decision.rule}",
        data={
            "answer": found.text[:500],
            "rule": found.rule,
            "span": [found.start, found.end],
            "gold": gold.answer.source[:500],
            "compared": decision.rule,
        },
    )


def _unread(found: Extraction, problem: str) -> Verdict:
    return _abstain("answer_unreadable", problem, found)


def _abstain(reason: str, detail: str, found: Extraction | None = None) -> Verdict:
    data: dict[str, JsonValue] = {"detail": detail}
    if found is not None:
        data |= {"answer": found.text[:500], "rule": found.rule, "span": [found.start, found.end]}
    return _trusted(
        status="abstained", value=None, reason=reason, fault="candidate", summary=f"{reason}: {detail}", data=data
    )


def _trusted(
    *, status: str, value: float | None, reason: str | None, fault: str | None, summary: str, data: dict[str, JsonValue]
) -> Verdict:
    """A verdict without validation, which would cost more than the exact layers; every field is set here."""
    summary, data = _printable(summary), {key: _printable(v) if isinstance(v, str) else v for key, v in data.items()}
    evidence = Evidence.model_construct(kind="answer", summary=summary, data=data)
    return Verdict.model_construct(
        status=status, value=value, steps=(), evidence=(evidence,), reason=reason, fault=fault, confidence=None
    )  # fmt: skip


def _printable(text: str) -> str:
    """`text` as it can be stored: lone surrogates and NUL become their escapes."""
    if text.isprintable() or (text.isascii() and "\0" not in text):
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def bad_gold_verdict(gold: BadGold) -> Verdict:
    """The abstention for a gold that cannot be read: ours, not the candidate's."""
    return Verdict.abstain(gold.reason, fault="ours", evidence=Evidence(kind="gold", summary=gold.sentence))


# ---- the source -----------------------------------------------------------------------------------------------------


class MathSource:
    """The reward source `math`: exact layers in place, sympy in a killable worker, then abstention."""

    def __init__(self, policy: MathPolicy, context: BuildContext) -> None:
        """A verifier under `policy`; `context.workers` is where the deep path runs, and without it nothing does."""
        self.policy = policy
        self.workers: Workers | None = context.workers
        self.limits = Limits(
            max_batch=1,
            max_wait_s=0.0,
            concurrency=16,
            timeout_s=30.0 + 10 * policy.deep_cpu_s,
            limit_fault="candidate",
        )
        self._golds: dict[str, tuple[Task, Gold | BadGold]] = {}

    def check_task(self, task: Task) -> str | None:
        """Why the task's gold cannot be read, in a sentence, or None when it can; called before a run."""
        gold = self._gold(task)
        return gold.sentence if isinstance(gold, BadGold) else None

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        results = [self._exact(candidate) for candidate in batch]
        async with asyncio.TaskGroup() as group:
            waiting = {
                place: group.create_task(self._deep(*result))
                for place, result in enumerate(results)
                if not isinstance(result, Verdict)
            }
        return [
            result if isinstance(result, Verdict) else waiting[place].result() for place, result in enumerate(results)
        ]

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def _gold(self, task: Task) -> Gold | BadGold:
        """The task's gold, read once; a task of the same name with another content is read anew."""
        known = self._golds.get(task.id)
        if known is not None and (known[0] is task or known[0] == task):
            return known[1]
        if len(self._golds) >= _MAX_GOLDS:
            self._golds.clear()
        gold = read_gold(task.reference, self.policy, task=task)
        self._golds[task.id] = (task, gold)
        return gold

    def _exact(self, candidate: Candidate) -> Verdict | tuple[Gold, Pending]:
        gold = self._gold(candidate.task)
        if isinstance(gold, BadGold):
            return bad_gold_verdict(gold)
        result = judge_text(gold, candidate.rollout.text)
        return result if isinstance(result, Verdict) else (gold, result)

    async def _deep(self, gold: Gold, pending: Pending) -> Verdict:
        if self.workers is None or not gold.policy.deep:
            return undecided(pending) if not gold.policy.deep else self._no_workers(pending)
        payload: JsonValue = {"gold": gold.answer.text, "answer": pending.extraction.text}
        limits = ResourceLimits(
            wall_s=gold.policy.deep_cpu_s * 10, cpu_s=gold.policy.deep_cpu_s, memory_mib=gold.policy.deep_memory_mib
        )
        answer = await self.workers.call(DEEP, payload, limits=limits)
        if answer.status != "ok":
            if answer.status == "raised":
                return undecided(pending, f"the worker raised: {answer.detail}")
            return _abstain("limit", f"{answer.status}: {answer.detail}", pending.extraction)
        value = answer.value
        outcome, rule = (value.get("outcome"), value.get("rule")) if isinstance(value, dict) else (None, None)
        if outcome in ("equal", "different"):
            return _scored(gold, pending.extraction, Decision(cast("str", outcome), str(rule)))  # type: ignore[arg-type]
        return undecided(pending, str(rule or pending.decision.rule))

    @staticmethod
    def _no_workers(pending: Pending) -> Verdict:
        verdict = undecided(pending, "no worker pool was given to decide it")
        return verdict.model_copy(update={"fault": "ours", "reason": "no_workers"})
