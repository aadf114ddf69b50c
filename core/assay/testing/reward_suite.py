"""The conformance suite of a reward source, ours or anybody's: `assay check NAME`, or one line in a test file.

    from assay.testing import reward_suite
    test_castling = reward_suite("castling", cases="cases.jsonl")

A source must accept its golds, reject its listed cheats, abstain on blank text, answer as many candidates as it was
asked and in their order, say the same again (in another thread, another batch, another process with another hash
seed), stay inside its declared range, give evidence, and bear hostile text in bounded time. What cannot be checked is
skipped with a reason and never counted as passed.
"""

import asyncio
import inspect
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pydantic import JsonValue

from assay.component import BuildContext, Component
from assay.config.rewards import JudgingConfig, SourceEntry
from assay.config.validation import validate
from assay.contracts import Candidate, Judgement, Limits, Verdict
from assay.errors import ConfigError, PluginError
from assay.judging import open_panel
from assay.judging.answers import ContractError, checked_verdict
from assay.judging.worker import describe
from assay.judging.workers import WorkerPool
from assay.preflight import make_context
from assay.protocols import RewardSource
from assay.registry import Registry, component_from
from assay.testing.cases import Case, LowerBound, UpperBound, candidate, read_cases
from assay.testing.hostile import hostile_texts

SLACK_S = 0.5
"""How much longer than its own limit a source may take: what a busy machine may add."""
_TOLERANCE = 1e-9
_EXAMPLES = 3


class CheckResult(NamedTuple):
    """What one check of the suite found."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    detail: str


@dataclass
class Suite:
    """One source under test: how it is built, and its cases."""

    name: str
    component: Component[Any, RewardSource]
    cases: Sequence[Case]
    options: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    context: BuildContext = field(default_factory=BuildContext)
    module: str | None = None
    """The plugin's module, for the check in another process; None skips it."""
    registry: Registry | None = None
    """Where the guard finds the source again, for hostile texts in a worker process."""
    _limits: dict[str, Limits] = field(default_factory=dict[str, Limits])

    def build(self, options: Mapping[str, JsonValue]) -> RewardSource:
        """A fresh source with the suite's options and those of a case above them."""
        return self.component.build(self.component.config(**{**self.options, **options}), self.context)

    def limits(self, case: Case) -> Limits:
        """What the source of this case declares."""
        key = json.dumps(case.options, sort_keys=True)
        if key not in self._limits:
            self._limits[key] = self.build(case.options).limits
        return self._limits[key]

    def judge(self, options: Mapping[str, JsonValue], batch: Sequence[Candidate]) -> list[Verdict]:
        """The verdicts of a fresh source on a batch, in an event loop of its own."""

        async def run() -> list[Verdict]:
            source = self.build(options)
            try:
                return _verdicts(await source.judge(batch))
            finally:
                await source.aclose()

        return asyncio.run(run())

    def verdict(self, case: Case, text: str) -> Verdict:
        """The verdict on one text as the answer to the task of a case."""
        answers = self.judge(case.options, [candidate(case.task, text)])
        if len(answers) != 1:
            raise ContractError(f"returned {len(answers)} verdicts for 1 candidate")
        return answers[0]

    def verdicts(self) -> list[Verdict]:
        """One verdict per case, each judged alone."""
        return [self.verdict(case, case.text) for case in self.cases]


def run_reward_suite(
    name: str,
    *,
    cases: str | Path | Sequence[Case] | None = None,
    options: Mapping[str, JsonValue] | None = None,
    component: Component[Any, RewardSource] | None = None,
    context: BuildContext | None = None,
    registry: Registry | None = None,
    other_process: bool = True,
    huge: int = 1_000_000,
) -> list[CheckResult]:
    """The result of every check of the source `name`, in a fixed order.

    `cases` is a JSONL file (see `Case`) or a list; None takes `cases/NAME.jsonl` or `cases.jsonl` of the plugin's own
    package. `component` tests one that is not installed. `other_process` starts one Python with another hash seed.

    Raises:
        ConfigError: there is no such source, an option is missing or wrong, the source judges whole groups, there are
            no cases, or a case cannot be read.
    """
    module = None
    if component is None:
        registry = registry or Registry.load()
        component = registry.component("reward_source", name)
        module = registry.origin("reward_source", name).module
    if cases is None or isinstance(cases, str | Path):
        cases = read_cases(_path(cases, name, module))
    for case in cases:
        validate(component.config, {**(options or {}), **case.options}, where=f"{name}: options")
    with _context(context, registry) as usable:
        suite = Suite(name, component, list(cases), dict(options or {}), usable, module, registry)
        return _checks(suite, other_process, huge)


def _checks(suite: Suite, other_process: bool, huge: int) -> list[CheckResult]:
    try:
        if any(suite.limits(case).scope == "group" for case in suite.cases):
            raise ConfigError(f"{suite.name}: it judges whole groups, which the suite, answer by answer, cannot check")
        first = suite.verdicts()
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a source may raise anything; here that is the finding
        return [CheckResult("judges its cases", "failed", _raised(error))]

    def expects(check: str, chosen: Callable[[Case], bool]) -> CheckResult:
        return _tried(check, lambda: _expectations(suite, first, check, chosen))

    return [
        expects("accepts golds", lambda case: case.expect == "accept"),
        expects("rejects cheats", lambda case: case.expect == "reject" or _is_bound(case)),
        expects("gives listed values", lambda case: isinstance(case.expect, int | float | LowerBound)),
        expects("abstains where listed", lambda case: case.expect == "abstain"),
        _tried("abstains on blank text", lambda: _blank(suite)),
        _tried("values are in range", lambda: _in_range(suite, first)),
        _tried("gives evidence", lambda: _evidence(suite, first)),
        _tried("keeps order and length", lambda: _order_and_length(suite, first)),
        _tried("same again and in a thread", lambda: _same_again(suite, first)),
        _other_process(suite, first, asked=other_process),
        _guarded(suite, huge) if suite.component.isolation == "process" and suite.registry else _bounded(suite, huge),
    ]


def _tried(check: str, run: Callable[[], CheckResult]) -> CheckResult:
    """The result of a check; what the source raises meanwhile is its finding."""
    try:
        return run()
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return CheckResult(check, "failed", _raised(error))


def _raised(error: BaseException) -> str:
    return str(error) if isinstance(error, ContractError) else f"raised {describe(error)}"


def _verdicts(answer: object) -> list[Verdict]:
    """The verdicts of an answer; raises `ContractError` where something else is among them."""
    found: list[Any] = list(cast("Sequence[Any]", answer))
    return [
        one if isinstance(one, Verdict) and one.status == "failed" else checked_verdict(one)  # told by `_in_range`
        for one in found
    ]


@contextmanager
def _context(context: BuildContext | None, registry: Registry | None) -> Generator[BuildContext, None, None]:
    """The given context, or one with workers, sandboxes and engines that ends with the suite."""
    if context is not None:
        yield context
        return
    made = BuildContext() if registry is None else make_context(registry, base_dir=Path.cwd(), seed=0)
    pool = WorkerPool(2)
    made.workers = pool
    try:
        yield made
    finally:
        pool.close()


def reward_suite(name: str, *, cases: str | Path | Sequence[Case] | None = None, **settings: Any) -> Callable[[], None]:
    """A pytest test that runs the suite of `name`; further settings are those of `run_reward_suite`.

    A relative path of cases is looked up beside the test file, then in the folders above it.
    """
    if isinstance(cases, str | Path):
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        cases = _near(Path(cases), Path(caller.f_code.co_filename) if caller is not None else Path())

    def test_reward_source() -> None:
        results = run_reward_suite(name, cases=cases, **settings)
        failed = [f"{result.check}: {result.detail}" for result in results if result.status == "failed"]
        assert not failed, f"{name}: " + "; ".join(failed)

    test_reward_source.__doc__ = f"The conformance suite of the reward source {name!r}."
    return test_reward_source


def meets(case: Case, verdict: Verdict, value_range: tuple[float, float]) -> bool:
    """Whether a verdict is what the case expects of a source with this range."""
    low, high = value_range
    value, expect = verdict.value, case.expect
    if expect == "abstain":
        as_listed = case.reason in (None, verdict.reason) and case.fault in (None, verdict.fault)
        return verdict.status == "abstained" and as_listed
    if expect == "reject":
        return abs(value - low) <= _TOLERANCE if value is not None else verdict.fault == "candidate"
    if isinstance(expect, UpperBound | LowerBound):
        if value is None:
            masked = expect.or_masked and verdict.status == "abstained"
            return masked or (isinstance(expect, UpperBound) and verdict.fault == "candidate")
        if isinstance(expect, UpperBound):
            return value <= expect.at_most + _TOLERANCE
        return value >= expect.at_least - _TOLERANCE
    wanted = high if expect == "accept" else float(expect)
    return value is not None and abs(value - wanted) <= 1e-6


def _expectations(suite: Suite, verdicts: Sequence[Verdict], check: str, chosen: Callable[[Case], bool]) -> CheckResult:
    pairs = [(case, verdict) for case, verdict in zip(suite.cases, verdicts, strict=True) if chosen(case)]
    wrong = [
        f"{case.kind or 'case'} {case.text[:60]!r}: {_said(verdict)}, expected {_expected(case)}"
        for case, verdict in pairs
        if not meets(case, verdict, suite.limits(case).value_range)
    ]
    return _result(check, wrong, len(pairs), "no such case is listed")


def _blank(suite: Suite) -> CheckResult:
    """Blank texts against every task; cases with blank texts of their own say it instead."""
    listed = any(not case.text.strip() for case in suite.cases)
    tasks = {_task_key(case): case for case in suite.cases if case.fault != "ours" and not listed}
    asked = [(case, text) for case in tasks.values() for text in ("", " \n\t")]
    wrong: list[str] = []
    for case, text in asked:
        verdict = suite.verdict(case, text)
        if verdict.status != "abstained" or verdict.fault != "candidate":
            wrong.append(f"{text!r}: {_said(verdict)}, expected abstained by the candidate's fault")
    return _result("abstains on blank text", wrong, len(asked), "the cases list blank texts of their own")


def _in_range(suite: Suite, verdicts: Sequence[Verdict]) -> CheckResult:
    wrong: list[str] = []
    for case, verdict in zip(suite.cases, verdicts, strict=True):
        low, high = suite.limits(case).value_range
        values = [verdict.value] if verdict.value is not None else []
        values += [step.value for step in verdict.steps]
        wrong += [f"{value} is outside [{low}, {high}]" for value in values if not low <= value <= high]
        if verdict.status == "failed":
            wrong.append("the source wrote 'failed'; only the core may, a source raises")
    return _result("values are in range", wrong, len(suite.cases), "no case")


def _evidence(suite: Suite, verdicts: Sequence[Verdict]) -> CheckResult:
    wrong = [
        f"{case.text[:60]!r}: a score without evidence"
        for case, verdict in zip(suite.cases, verdicts, strict=True)
        if verdict.status == "scored" and not verdict.evidence
    ]
    return _result("gives evidence", wrong, len(suite.cases), "no case")


def _order_and_length(suite: Suite, verdicts: Sequence[Verdict]) -> CheckResult:
    wrong: list[str] = []
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(suite.cases):
        groups.setdefault(json.dumps(case.options, sort_keys=True), []).append(index)
    for indices in groups.values():
        options = suite.cases[indices[0]].options
        for order in (indices, indices[::-1]):
            batch = [candidate(suite.cases[index].task, suite.cases[index].text) for index in order]
            answers = suite.judge(options, batch)
            if len(answers) != len(batch):
                wrong.append(f"{len(answers)} verdicts for {len(batch)} candidates")
            elif any(_decision(a) != _decision(verdicts[index]) for a, index in zip(answers, order, strict=True)):
                wrong.append("a batch is judged otherwise than its candidates alone, or in another order")
        if suite.judge(options, []):
            wrong.append("an empty batch has verdicts")
    return _result("keeps order and length", wrong, len(groups), "no case")


def _same_again(suite: Suite, verdicts: Sequence[Verdict]) -> CheckResult:
    if not suite.limits(suite.cases[0]).deterministic:
        return CheckResult("same again and in a thread", "skipped", "the source declares that it is not deterministic")
    wrong = _differing(suite, verdicts, suite.verdicts())
    with ThreadPoolExecutor(1) as pool:
        try:
            wrong += _differing(suite, verdicts, pool.submit(suite.verdicts).result())
        except BaseException as error:  # what a source raises only off the main thread is the finding
            wrong.append(f"raised {type(error).__name__} in another thread: {error}")
    return _result("same again and in a thread", wrong, len(suite.cases), "no case")


def _other_process(suite: Suite, verdicts: Sequence[Verdict], *, asked: bool) -> CheckResult:
    check = "same in another process"
    if not asked:
        return CheckResult(check, "skipped", "not asked for")
    if suite.module is None:
        return CheckResult(check, "skipped", "the component is not installed, so another process cannot find it")
    if not suite.limits(suite.cases[0]).deterministic:
        return CheckResult(check, "skipped", "the source declares that it is not deterministic")
    job = {
        "module": suite.module,
        "name": suite.name,
        "options": dict(suite.options),
        "base_dir": str(suite.context.base_dir),
        "cases": [case.model_dump(mode="json") for case in suite.cases],
    }
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-m", "assay.testing.reward_suite"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return CheckResult(check, "failed", f"the other process ended with {done.returncode}: {last[0]}")
    others = [Verdict.model_validate_json(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(others) != len(verdicts):
        return CheckResult(check, "failed", f"{len(others)} verdicts for {len(verdicts)} cases")
    return _result(check, _differing(suite, verdicts, others), len(suite.cases), "no case")


def _bounded(suite: Suite, huge: int) -> CheckResult:
    """Hostile texts, each in a thread that is given up when it is too late."""
    case = next((case for case in suite.cases if case.expect == "accept"), suite.cases[0])
    limit_s = suite.limits(case).timeout_s
    wrong: list[str] = []
    slowest, count = 0.0, 0
    for name, text in hostile_texts(huge=huge):
        found: list[Verdict | BaseException] = []
        began = time.monotonic()
        thread = threading.Thread(target=_judge_into, args=(found, suite, case, text), daemon=True)
        thread.start()
        thread.join(limit_s + SLACK_S)
        took, count = time.monotonic() - began, count + 1
        slowest = max(slowest, took)
        if not found:
            detail = f"{name}: not done after {limit_s + SLACK_S:.1f} s"
            return CheckResult("bears hostile text", "failed", detail)
        answer = found[0]
        if isinstance(answer, BaseException):
            wrong.append(f"{name}: raised {type(answer).__name__}: {str(answer)[:100]}")
        elif problem := _unstorable(answer):
            wrong.append(f"{name}: {problem}")
    result = _result("bears hostile text", wrong, count, "no text")
    return result._replace(detail=f"{result.detail}; slowest {slowest:.2f} s of {limit_s:g} s")


def _guarded(suite: Suite, huge: int) -> CheckResult:
    """Hostile texts to a source in a killable worker: being cut off in time is as good as an answer."""
    case = next((case for case in suite.cases if case.expect == "accept"), suite.cases[0])
    entry = SourceEntry.model_validate({"use": suite.name, **suite.options, **case.options})
    texts = list(hostile_texts(huge=huge))
    slowest = 0.0
    wrong: list[str] = []

    def observe(_: Candidate, judgement: Judgement) -> None:
        nonlocal slowest
        slowest = max(slowest, judgement.latency_s)
        name, limit_s = texts[int(judgement.rollout_id)][0], suite.limits(case).timeout_s
        kind = judgement.verdict.evidence[0].summary if judgement.status == "failed" else ""
        if kind and kind != "timed out":
            wrong.append(f"{name}: {judgement.reason}")
        elif judgement.latency_s > limit_s + SLACK_S:
            wrong.append(f"{name}: {judgement.latency_s:.1f} s, more than its limit of {limit_s:g} s")

    async def run() -> None:
        assert suite.registry is not None
        judging = JudgingConfig(workers=2, cache=False, on_unhealthy="mask")
        async with open_panel(
            [entry], registry=suite.registry, judging=judging, context=suite.context, observe=observe
        ) as panel:
            for index, (_, text) in enumerate(texts):
                rollout = candidate(case.task, text).rollout.model_copy(update={"id": str(index)})
                await panel.judge(case.task, rollout)

    asyncio.run(run())
    result = _result("bears hostile text", wrong, len(texts), "no text")
    return result._replace(detail=f"{result.detail}; slowest {slowest:.2f} s of {suite.limits(case).timeout_s:g} s")


def _unstorable(verdict: Verdict) -> str | None:
    """What would keep a verdict out of the log, in one line."""
    try:
        verdict.model_dump_json()
    except ValueError as error:  # evidence that was never checked, by `model_construct`
        return f"the verdict cannot be stored: {str(error)[:100]}"
    return None


def _judge_into(found: list[Verdict | BaseException], suite: Suite, case: Case, text: str) -> None:
    try:
        found.extend(suite.judge(case.options, [candidate(case.task, text)]))
    except BaseException as error:  # whatever a source raises is the finding
        found.append(error)


def _differing(suite: Suite, verdicts: Sequence[Verdict], others: Sequence[Verdict]) -> list[str]:
    """Cases whose verdicts differ; the evidence of a remote source tells of latencies, so only its decisions count."""
    remote = suite.component.isolation == "remote"
    return [
        f"{case.text[:60]!r}: {_said(other)}, before {_said(verdict)}, or with other evidence"
        for case, verdict, other in zip(suite.cases, verdicts, others, strict=True)
        if (_decision(verdict) != _decision(other) if remote else verdict != other)
    ]


def _result(check: str, wrong: Sequence[str], count: int, none: str) -> CheckResult:
    if wrong:
        more = f" (and {len(wrong) - _EXAMPLES} more)" if len(wrong) > _EXAMPLES else ""
        return CheckResult(check, "failed", "; ".join(wrong[:_EXAMPLES]) + more)
    return CheckResult(check, "passed", f"{count} checked") if count else CheckResult(check, "skipped", none)


def _is_bound(case: Case) -> bool:
    return isinstance(case.expect, UpperBound)


def _said(verdict: Verdict) -> str:
    if verdict.value is not None:
        return f"scored {verdict.value:g}"
    return f"{verdict.status} ({verdict.reason}; {verdict.fault})"


def _expected(case: Case) -> str:
    if isinstance(case.expect, UpperBound | LowerBound):
        bound = case.expect
        words = f"at most {bound.at_most:g}" if isinstance(bound, UpperBound) else f"at least {bound.at_least:g}"
        return f"{words}, or an abstention" if bound.or_masked else words
    wanted = ", ".join(part for part in (case.reason, case.fault) if part)
    return f"{case.expect} ({wanted})" if wanted else f"{case.expect}"


def _decision(verdict: Verdict) -> tuple[str, float | None, str | None]:
    return verdict.status, verdict.value, verdict.reason


def _task_key(case: Case) -> str:
    return json.dumps([case.reference, case.facts, case.prompt, case.options], sort_keys=True)


def _path(cases: str | Path | None, name: str, module: str | None) -> Path:
    if cases is not None:
        return Path(cases)
    package = sys.modules.get(module or "")
    folders = [Path(folder) for folder in getattr(package, "__path__", [])]
    tried = [place for folder in folders for place in (folder / "cases" / f"{name}.jsonl", folder / "cases.jsonl")]
    for place in [*tried, Path("cases.jsonl")]:
        if place.is_file():
            return place
    raise ConfigError(f"{name}: no cases found; looked for cases/{name}.jsonl in its package. Give --cases FILE.")


def _near(path: Path, test_file: Path) -> Path:
    """`path`, looked up beside the test file and in the two folders above it."""
    folders = list(test_file.resolve().parents)[:3]
    return next((folder / path for folder in folders if (folder / path).is_file()), path)


def _replay() -> int:
    """Judge the cases on standard input in this process, and print one verdict a line."""
    job = json.load(sys.stdin)
    component = component_from(job["module"], "reward_source", job["name"])
    cases = [Case.model_validate(case) for case in job["cases"]]
    with _context(None, Registry.load()) as context:
        context.base_dir = Path(job["base_dir"])
        try:
            verdicts = Suite(job["name"], component, cases, job["options"], context).verdicts()
        except PluginError as error:
            sys.stderr.write(f"{error}\n")
            return 2
    sys.stdout.write("".join(f"{verdict.model_dump_json()}\n" for verdict in verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(_replay())
