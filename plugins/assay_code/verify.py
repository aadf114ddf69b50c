"""The reward source `code`: take the program out of the answer, run it against the task's tests, score what holds."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from assay.component import BuildContext, Options
from assay.contracts.batch import Candidate
from assay.contracts.limits import Limits
from assay.contracts.sandbox import JobLimits
from assay.contracts.task import Task
from assay.contracts.verdict import Evidence, Verdict
from assay.errors import ConfigError, SandboxError
from assay.protocols import ProgramSandbox, Sandbox
from assay_code.asserts import plan
from assay_code.cases import AssertTests, CasesError, Suite, read
from assay_code.extract import extract
from assay_code.grade import Defaults, Grader, SuiteReport, TestReport


class CodeOptions(Options):
    """Options of `code`."""

    sandbox: str | None = None
    """Name of the sandbox; by default the best that works here. One that is named and does not work is an error."""
    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the sandbox."""
    language: str = "python"
    """Language of programs where the task's facts do not name one."""
    languages: tuple[str, ...] = ()
    """Languages that the tasks use; a missing compiler is then found before the run starts."""
    scoring: Literal["all", "fraction"] = "all"
    """1 for passing every test and 0 otherwise, or the share of all tests that is passed."""
    max_tests: int = Field(default=1000, ge=1)
    """Most tests that a task may have; a task with more is refused, never cut short silently."""
    cpu_s: float = Field(default=4.0, gt=0)
    """CPU time of one test where the task gives no limit and no reference time."""
    wall_factor: float = Field(default=5.0, ge=1)
    """Wall time of one test as a multiple of its CPU time: the backstop, for a loaded machine."""
    total_s: float = Field(default=60.0, gt=0)
    """Wall time of all calls of one program together."""
    memory_mib: int = Field(default=512, gt=0)
    """Memory of one test where the task gives none."""
    disk_mib: int = Field(default=32, gt=0)
    """Disk of one test where the task gives none."""
    output_kib: int = Field(default=256, gt=0)
    """Output of one test where the task gives none."""
    shared_process: bool = True
    """Whether tests that cannot be split from the candidate are run in its process (marked so in the evidence)."""
    max_program_kib: int = Field(default=256, ge=1)
    """Longest program; a longer one fails its tests unread."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Wall time of one answer with all its tests, as the run's guard sees it."""
    concurrency: int = Field(default=8, ge=1)
    """Answers judged at once; the sandbox's slots decide how many really run."""
    max_evidence: int = Field(default=20, ge=1)
    """Tests that are written into the verdict one by one, those not passed first."""


class CodeSource:
    """Judges answers that are programs."""

    def __init__(self, sandbox: Sandbox, options: CodeOptions) -> None:
        """Judge in `sandbox`, which is closed with the source."""
        self._sandbox = sandbox
        self._options = options
        self._grader = Grader(
            sandbox,
            defaults=Defaults(
                cpu_s=options.cpu_s,
                wall_factor=options.wall_factor,
                memory_mib=options.memory_mib,
                disk_mib=options.disk_mib,
                output_kib=options.output_kib,
                total_s=options.total_s,
            ),
            shared_process=options.shared_process,
        )
        self._limits = Limits(
            max_batch=1,
            max_wait_s=0.0,
            concurrency=options.concurrency,
            timeout_s=options.timeout_s,
            deterministic=False,
        )

    @property
    def limits(self) -> Limits:
        """One answer a call, several calls at once. Programs may be random or time-bound: verdicts are not cached."""
        return self._limits

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order; raises `SandboxError` where the sandbox or a special judge is broken."""
        return [await self._judge(candidate) for candidate in batch]

    async def _judge(self, candidate: Candidate) -> Verdict:
        options = self._options
        try:
            suite = read(candidate.task)
            self._check_size(candidate, suite)
        except CasesError as error:
            return Verdict.abstain(str(error), fault="ours")
        language = suite.language or options.language
        code = extract(candidate.rollout.text, language, continues=suite.head is not None)
        if code is None:
            return Verdict.abstain(f"no {language} program in the answer", fault="candidate")
        if len(code) > options.max_program_kib << 10:
            note = f"a program of {len(code) / 1024:.0f} KiB; at most {options.max_program_kib} KiB are run"
            return Verdict.score(0.0, evidence=Evidence(kind="program", summary=note, data={"verdict": "fail"}))
        if isinstance(self._sandbox, ProgramSandbox):
            try:
                self._sandbox.require([language])
            except SandboxError as error:
                return Verdict.abstain(str(error), fault="ours")
        stop = options.scoring == "all"
        program = assemble(code, suite)
        try:
            report = await self._grader.grade(
                program, suite.tests, language=language, stop=stop, entry_point=suite.entry_point
            )
        except CasesError as error:
            return Verdict.abstain(f"task {candidate.task.id!r}: {error}", fault="ours")
        return _verdict(report, options, language, code)

    def _check_size(self, candidate: Candidate, suite: Suite) -> None:
        cases = getattr(suite.tests, "cases", ())
        if len(cases) > self._options.max_tests:
            raise CasesError(
                f"task {candidate.task.id!r}: facts.tests.cases: {len(cases)} tests, more than max_tests = "
                f"{self._options.max_tests}; raise max_tests, or give the task fewer"
            )

    def check_task(self, task: Task) -> str | None:
        """What is wrong with a task's tests, in one sentence, or None: asked before a run, without running anything."""
        try:
            tests = read(task).tests
            if isinstance(tests, AssertTests):
                plan(tests.code, setup=tests.setup)
        except CasesError as error:
            return str(error)
        return None

    async def aclose(self) -> None:
        """Close the sandbox."""
        await self._sandbox.aclose()


def build(options: CodeOptions, context: BuildContext) -> CodeSource:
    """The source `code` with a sandbox that works here; raises before the first answer where something is missing."""
    if context.open_sandbox is None:
        raise ConfigError("code: there is no sandbox to run programs in; build it through a registry that offers one")
    JobLimits(cpu_s=options.cpu_s, wall_s=options.cpu_s * options.wall_factor, memory_mib=options.memory_mib)
    sandbox = context.open_sandbox(options.sandbox, dict(options.sandbox_options))
    languages = {options.language, *options.languages}
    if isinstance(sandbox, ProgramSandbox):
        try:
            sandbox.require(sorted(languages))
        except SandboxError as error:
            raise ConfigError(f"code.languages: {error}") from error
    elif languages != {"python"}:
        raise ConfigError(f"code.sandbox: it runs Python only; languages asked for: {', '.join(sorted(languages))}")
    return CodeSource(sandbox, options)


def assemble(code: str, suite: Suite) -> str:
    """The whole program: the answer alone, or with the head that the task gave for it to continue."""
    if suite.head is None:
        return code
    name = re.escape(suite.entry_point or "")
    begins = re.compile(rf"^(?:async[ \t]+)?def[ \t]+{name}\b", re.MULTILINE)
    if not suite.entry_point or not begins.search(code):
        return f"{suite.head}{'' if suite.head.endswith(chr(10)) else chr(10)}{code}"
    # The answer writes the function itself: keep the imports and helpers that came before it.
    starts = list(begins.finditer(suite.head))
    head = suite.head[: starts[-1].start()] if starts else suite.head
    return f"{head}\n{code}"


def _verdict(report: SuiteReport, options: CodeOptions, language: str, code: str) -> Verdict:
    total = report.total or len(report.tests)
    passed = report.passed
    if options.scoring == "all":
        value = 1.0 if passed == total else 0.0
        # A special judge's part scores count where there is nothing else to lose.
        if total == 1 and report.tests and report.tests[0].grade == "pass":
            value = report.tests[0].score
    else:
        value = sum(test.score for test in report.tests) / total
    summary = f"{passed} of {total} tests passed" if options.scoring == "fraction" else f"{report.grade}"
    if options.scoring == "all" and value != 1.0:
        summary += f": test {len(report.tests)} of {total}"
    data: dict[str, Any] = {
        "verdict": report.grade,
        "passed": passed,
        "run": len(report.tests),
        "total": total,
        "language": language,
        "tool": report.tool,
        "tier": report.tier,
        "trust": report.trust,
        "notes": list(report.notes),
        "program": code[:4000],
        "compiler": report.build_log[:2000],
    }
    shown = sorted(range(len(report.tests)), key=lambda index: (report.tests[index].passed, index))[
        : options.max_evidence
    ]
    evidence = [Evidence(kind="program", summary=summary, data=data)]
    evidence += [_evidence(index, report.tests[index]) for index in sorted(shown)]
    return Verdict.score(value, evidence=tuple(evidence))


def _evidence(index: int, test: TestReport) -> Evidence:
    note = f": {test.note}" if test.note else ""
    return Evidence(
        kind="test",
        summary=f"{test.name}: {test.grade}{note}"[:300].replace("\n", " "),
        data={
            "index": index,
            "name": test.name,
            "verdict": test.grade,
            "score": test.score,
            "note": test.note,
            "expected": test.expected,
            "found": test.found,
            "wall_s": round(test.wall_s, 6),
            "cpu_s": round(test.cpu_s, 6),
            "peak_memory_mib": round(test.peak_memory_mib, 3),
        },
    )
