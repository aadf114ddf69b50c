"""Runs a program against a suite and says, test by test, what came of it. The only place that knows expected values."""

import ast
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from assay.contracts.sandbox import Job, JobLimits, RunResult
from assay.contracts.tagged import TaggedError, decode, restore, tag
from assay.errors import SandboxError
from assay.protocols import ProgramSandbox, Sandbox
from assay_code import asserts, harness
from assay_code.cases import AssertTests, CallTests, StdioTests, TestLimits, Tests
from assay_code.compare import ValueRule, same_output, same_value

Grade = Literal["pass", "fail", "error:timeout", "error:memory", "error:output", "error:crash"]
_GRADES: dict[str, Grade] = {
    "timed_out": "error:timeout",
    "out_of_memory": "error:memory",
    "output_limit": "error:output",
    "crashed": "error:crash",
    "build_failed": "fail",
}
HEAD = 400
CALL_OVERHEAD_S = 0.05


@dataclass
class TestReport:
    """One test: what was asked, what came of it, and what it cost."""

    __test__ = False

    name: str
    grade: Grade
    score: float = 0.0
    """1 for a pass; a special judge may give a part."""
    note: str = ""
    expected: str = ""
    found: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mib: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the test is passed in full."""
        return self.grade == "pass" and self.score >= 1.0


@dataclass
class SuiteReport:
    """All tests of one program, those that were not run included."""

    tests: list[TestReport] = field(default_factory=list[TestReport])
    total: int = 0
    trust: Literal["split", "shared-process"] = "split"
    tier: str = ""
    tool: str = ""
    build_log: str = ""
    notes: list[str] = field(default_factory=list[str])

    @property
    def grade(self) -> Grade:
        """The first test's grade that is not a pass, or pass."""
        if not self.tests:
            return "fail"
        first: list[Grade] = [test.grade for test in self.tests if not test.passed]
        return first[0] if first else "pass"

    @property
    def passed(self) -> int:
        """Number of tests passed."""
        return sum(test.passed for test in self.tests)

    def saw(self, result: RunResult) -> None:
        """Remember where the program ran and with what."""
        self.tier = result.tier or self.tier
        self.tool = result.tool or self.tool
        self.build_log = result.build_log or self.build_log


@dataclass(frozen=True)
class Defaults:
    """Bounds of one test where the task says nothing."""

    cpu_s: float = 4.0
    wall_factor: float = 5.0
    memory_mib: int = 512
    disk_mib: int = 32
    output_kib: int = 256
    processes: int = 16
    total_s: float = 60.0
    """Wall time of all calls of one program together."""


def limits_of(given: TestLimits, defaults: Defaults) -> JobLimits:
    """Bounds of one test: CPU decides, wall time is the backstop."""
    cpu_s = given.cpu_s
    if cpu_s is None and given.reference_s is not None:
        cpu_s = max(1.0, 2 * given.reference_s)
    if cpu_s is None:
        cpu_s = defaults.cpu_s if given.wall_s is None else max(defaults.cpu_s, given.wall_s)
    wall_s = given.wall_s if given.wall_s is not None else cpu_s * defaults.wall_factor
    return JobLimits(
        wall_s=wall_s,
        cpu_s=cpu_s,
        memory_mib=given.mem_mb or defaults.memory_mib,
        disk_mib=given.disk_mb or defaults.disk_mib,
        output_kib=given.out_kb or defaults.output_kib,
        processes=given.procs or defaults.processes,
    )


class Grader:
    """Grades programs in one sandbox."""

    def __init__(self, sandbox: Sandbox, *, defaults: Defaults | None = None, shared_process: bool = True) -> None:
        """Use `sandbox`; `shared_process` says whether tests that cannot be split are run at all."""
        self._sandbox = sandbox
        self._defaults = defaults or Defaults()
        self._shared_process = shared_process

    async def grade(
        self, program: str, tests: Tests, *, language: str = "python", stop: bool = True, entry_point: str | None = None
    ) -> SuiteReport:
        """The report of `program` on `tests`; with `stop`, tests after the first that is not passed are left out.

        Raises `CasesError` for unusable tests, `SandboxError` for the sandbox's or the checker's own failure.
        """
        match tests:
            case StdioTests():
                return await self._stdio(program, tests, language, stop)
            case CallTests():
                self._python_only(language, "call")
                calls = [_call(tests, number) for number in range(len(tests.cases))]
                expected = [restore(case.expect) if tests.tagged else case.expect for case in tests.cases]
                names = [f"{tests.fn} {number}" for number in range(len(calls))]
                rules = tests.compare.value_rule
                return await self._calls(program, names, calls, expected, rules, tests.limits, stop)
            case AssertTests():
                self._python_only(language, "assert")
                return await self._asserts(program, tests, stop, entry_point)

    def _python_only(self, language: str, kind: str) -> None:
        from assay_code.cases import CasesError

        if language != "python":
            raise CasesError(
                f"facts.tests.kind: {kind!r} tests are for Python; the language is {language!r}; use stdio"
            )

    # ---- standard input and output ----------------------------------------------------------------------------------

    async def _stdio(self, program: str, tests: StdioTests, language: str, stop: bool) -> SuiteReport:
        report = SuiteReport(total=len(tests.cases))
        limits = limits_of(tests.limits, self._defaults)
        jobs = [Job(language=language, source=program, stdin=case.stdin, limits=limits) for case in tests.cases]
        async with contextlib.aclosing(self._each(jobs)) as results:
            number = 0
            async for result in results:
                report.saw(result)
                report.tests.append(await self._stdio_test(tests, number, result))
                number += 1
                if result.outcome == "build_failed" or (stop and not report.tests[-1].passed):
                    break
        return report

    async def _each(self, jobs: Sequence[Job]) -> AsyncGenerator[RunResult, None]:
        if isinstance(self._sandbox, ProgramSandbox):
            async with contextlib.aclosing(self._sandbox.run_each(jobs)) as results:
                async for result in results:
                    yield result
        else:
            for job in jobs:
                yield await self._sandbox.run(job)

    async def _stdio_test(self, tests: StdioTests, number: int, result: RunResult) -> TestReport:
        case = tests.cases[number]
        test = _report(f"stdio {number}", result)
        test.expected, test.found = case.stdout[:HEAD], result.stdout[:HEAD]
        if test.grade != "pass":
            return test
        if tests.compare.mode == "checker":
            test.score, test.note = await self._special(
                tests.compare.checker or "", case.stdin, result.stdout, case.stdout
            )
        else:
            test.score = float(same_output(case.stdout, result.stdout, tests.compare.output_rule))
            test.note = "" if test.score else f"another output than expected ({tests.compare.mode})"
        if test.score <= 0:
            test.grade = "fail"
        return test

    async def _special(self, checker: str, stdin: str, output: str, reference: str) -> tuple[float, str]:
        """Score and message of a special judge, which runs in a jail of its own; its failure is ours."""
        values = [stdin, output, reference][: _parameters(checker)]
        call = json.dumps({"fn": "check", "args": values})
        limits = JobLimits(wall_s=20, cpu_s=4, memory_mib=1024)
        result = await self._sandbox.run(Job(source=checker, calls=(call,), limits=limits, trusted=True))
        where = "the special judge"
        if result.outcome != "exited" or not result.returns:
            raise SandboxError(
                f"infra: {where} ended as {result.outcome} ({result.detail or result.stderr.strip()[-200:]})"
            )
        answer = json.loads(result.returns[0])
        if "e" in answer:
            raise SandboxError(
                f"infra: {where} raised {answer['e']}: {answer.get('m', '')}; correct facts.tests.compare.checker"
            )
        value: Any = decode(json.dumps(answer["v"]))
        message = ""
        if isinstance(value, (list, tuple)) and len(cast("list[Any]", value)) == 2:
            value, message = cast("list[Any]", value)
        if isinstance(value, bool):
            value = float(value)
        if not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise SandboxError(f"infra: {where} returned {value!r}; it must return a bool or a score in [0, 1]")
        return float(value), str(message)[:HEAD]

    # ---- calls ------------------------------------------------------------------------------------------------------

    async def _calls(
        self,
        program: str,
        names: list[str],
        calls: list[dict[str, Any]],
        expected: list[Any],
        rule: ValueRule,
        given: TestLimits,
        stop: bool,
    ) -> SuiteReport:
        """Run all calls in one process; one that ends early is started again after the call that ended it."""
        report = SuiteReport(total=len(calls))
        each = limits_of(given, self._defaults)
        left_s = max(each.wall_s, self._defaults.total_s)
        while len(report.tests) < len(calls):
            first = len(report.tests)
            count = len(calls) - first
            limits = each.model_copy(
                update={
                    "wall_s": min(left_s, each.wall_s * count),
                    "cpu_s": min(left_s, each.cpu_s * count),
                    "call_wall_s": each.wall_s,
                    "call_cpu_s": each.cpu_s,
                }
            )
            job = Job(source=program, calls=tuple(json.dumps(call) for call in calls[first:]), limits=limits)
            result = await self._sandbox.run(job)
            report.saw(result)
            left_s -= result.wall_s
            for offset, reply in enumerate(result.returns[:count]):
                number = first + offset
                test = _call_report(names[number], reply, expected[number], rule)
                report.tests.append(test)
                if stop and not test.passed:
                    return _costs(report, result)
            if len(report.tests) < len(calls):
                ended = _report(names[len(report.tests)], result, early=True)
                report.tests.append(ended)
                if stop or result.detail.startswith(("SystemExit", "SyntaxError")) or result.outcome == "build_failed":
                    return _costs(report, result)
                if left_s <= each.wall_s / 10:
                    report.notes.append(f"{len(calls) - len(report.tests)} tests not run: no time left")
                    return _costs(report, result)
            _costs(report, result)
        return report

    # ---- asserts ----------------------------------------------------------------------------------------------------

    async def _asserts(self, program: str, tests: AssertTests, stop: bool, entry_point: str | None) -> SuiteReport:
        plan = asserts.plan(tests.code, setup=tests.setup, entry_point=entry_point)
        if plan.way == "direct":
            names = [case.text[:200] for case in plan.direct]
            calls = [case.call for case in plan.direct]
            expected = [case.expected for case in plan.direct]
            return await self._calls(program, names, calls, expected, ValueRule(python=True), tests.limits, stop)
        if plan.way == "pair" and isinstance(self._sandbox, ProgramSandbox):
            report = await self._pair(self._sandbox, program, plan, tests, stop)
            if report is not None:
                return report
        return await self._shared(program, plan, tests, stop)

    async def _pair(
        self, sandbox: ProgramSandbox, program: str, plan: asserts.AssertPlan, tests: AssertTests, stop: bool
    ) -> SuiteReport | None:
        """Tests in a jail of ours, the candidate in its own; None where the tests turn out not to be separable."""
        each = limits_of(tests.limits, self._defaults)
        total = min(max(self._defaults.total_s, each.wall_s), each.wall_s * max(2, len(plan.texts)))
        mark = f"assay-{secrets.token_hex(8)} "
        given = {"code": plan.code, "functions": plan.functions, "stop": stop, "mark": mark}
        files = {"tests.json": json.dumps(given), "tagged.py": harness.TAGGED.read_text("utf-8")}
        ours = JobLimits(wall_s=total + 1, cpu_s=total, memory_mib=1024, output_kib=1024)
        asking = Job(source=harness.ASKING, files=files, limits=ours, trusted=True)
        theirs = each.model_copy(
            update={"wall_s": total, "cpu_s": total, "call_wall_s": each.wall_s, "call_cpu_s": each.cpu_s}
        )
        asked, answered = await sandbox.run_pair(asking, Job(source=program, limits=theirs))
        report = SuiteReport(total=len(plan.texts))
        report.saw(answered)
        text = asked.stdout.rpartition(mark)[2] if mark in asked.stdout else ""
        if not text:
            if answered.outcome == "exited" and asked.outcome not in ("timed_out", "out_of_memory"):
                raise SandboxError(f"infra: the tests ended as {asked.outcome}: {asked.detail or asked.stderr[-300:]}")
            text = '{"results": {}, "note": "the tests did not end in time", "unsplit": ""}'
        answer = json.loads(text)
        if answer["unsplit"]:
            return None
        return _costs(_assert_reports(report, plan, answer, answered, stop), answered)

    async def _shared(self, program: str, plan: asserts.AssertPlan, tests: AssertTests, stop: bool) -> SuiteReport:
        """Tests and candidate in one process: the last resort, marked so."""
        from assay_code.cases import CasesError

        if not self._shared_process:
            raise CasesError(
                "facts.tests.code: these tests need the candidate's own objects and `shared_process` is false; "
                "write them as calls, or allow it"
            )
        each = limits_of(tests.limits, self._defaults)
        given = {"code": plan.code, "setup": tests.setup, "program": program, "stop": stop}
        files = {"tests.json": json.dumps(given)}
        call = json.dumps({"fn": "run_tests"})
        result = await self._sandbox.run(Job(source=harness.SHARED, files=files, calls=(call,), limits=each))
        report = SuiteReport(total=len(plan.texts), trust="shared-process")
        report.saw(result)
        answer: dict[str, Any] = {"results": {}, "note": ""}
        if result.returns:
            reply = json.loads(result.returns[0])
            with contextlib.suppress(TypeError, ValueError):
                answer = (
                    json.loads(reply["v"]) if "v" in reply else {"results": {}, "note": f"{reply['e']}: {reply['m']}"}
                )
        return _costs(_assert_reports(report, plan, answer, result, stop), result)


def _assert_reports(
    report: SuiteReport, plan: asserts.AssertPlan, answer: dict[str, Any], result: RunResult, stop: bool
) -> SuiteReport:
    results: dict[str, list[str]] = answer.get("results") or {}
    note = str(answer.get("note") or result.detail)
    for number, text in enumerate(plan.texts):
        found = results.get(str(number))
        if found is not None:
            passed = found[0] == ""
            report.tests.append(
                TestReport(text, "pass" if passed else "fail", float(passed), note=str(found[1])[:HEAD])
            )
        else:
            ended = _GRADES.get(result.outcome, "fail")
            report.tests.append(TestReport(text, ended, note=(note or "it was never reached")[:HEAD]))
        if stop and not report.tests[-1].passed:
            break
    return report


def _report(name: str, result: RunResult, *, early: bool = False) -> TestReport:
    """What a result means before anything is compared; `early` where an answer is missing."""
    grade: Grade = _GRADES.get(result.outcome, "pass")
    note = result.detail
    if result.outcome == "build_failed":
        note = result.detail or f"it does not compile: {result.build_log.strip()[:HEAD]}"
    elif grade == "pass" and (early or result.exit_code != 0):
        grade = "fail"
        last = result.stderr.strip().rpartition("\n")[2][:HEAD]
        note = result.detail or last or f"it ended with status {result.exit_code} before it answered"
    elif grade == "error:crash":
        note = result.detail or f"signal {result.signal}"
    return TestReport(
        name,
        grade,
        note=note,
        found=result.stdout[:HEAD],
        wall_s=result.wall_s,
        cpu_s=result.cpu_s,
        peak_memory_mib=result.peak_memory_mib,
    )


def _call(tests: CallTests, number: int) -> dict[str, Any]:
    case = tests.cases[number]
    if tests.tagged:
        return {"fn": tests.fn, "args": case.args, "kwargs": case.kwargs}
    named = {name: tag(value) for name, value in case.kwargs.items()}
    return {"fn": tests.fn, "args": [tag(value) for value in case.args], "kwargs": named}


def _call_report(name: str, reply: str, expected: Any, rule: ValueRule) -> TestReport:
    test = TestReport(name, "fail", expected=_show(expected))
    try:
        answer = json.loads(reply)
        if "e" in answer:
            test.note = f"{answer['e']}: {answer.get('m', '')}"[:HEAD]
            if answer["e"] == "MemoryError":
                test.grade = "error:memory"
            return test
        value = restore(answer["v"])
    except (TaggedError, ValueError, KeyError, TypeError, RecursionError) as error:
        test.note = f"an answer that cannot be read: {error}"[:HEAD]
        return test
    test.found = _show(value)
    if same_value(expected, value, rule):
        test.grade, test.score = "pass", 1.0
    else:
        test.note = "another value than expected"
    return test


def _show(value: Any) -> str:
    try:
        return repr(value)[:HEAD]
    except ValueError:  # an integer with more digits than Python converts
        return "a number that is too long to show"


def _costs(report: SuiteReport, result: RunResult) -> SuiteReport:
    """Write what one process cost to the last test that it ran."""
    if report.tests:
        last = report.tests[-1]
        last.wall_s, last.cpu_s, last.peak_memory_mib = result.wall_s, result.cpu_s, result.peak_memory_mib
        last.found = last.found or result.stdout[:HEAD]
    return report


def _parameters(checker: str) -> int:
    """Number of arguments that the judge's `check` takes: 2 or 3."""
    from assay_code.cases import CasesError

    try:
        tree = asserts.parse(checker)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CasesError(f"facts.tests.compare.checker: not Python: {error}; correct the task's tests") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            count = len(node.args.posonlyargs) + len(node.args.args)
            return 3 if count >= 3 or node.args.vararg else 2
    raise CasesError(
        "facts.tests.compare.checker: it defines no function `check(input, output)`; correct the task's tests"
    )
