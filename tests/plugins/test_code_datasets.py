"""HumanEval and MBPP: every reference passes, in split mode nearly always, and planted mistakes fail."""

import ast
import asyncio
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from assay.component import BuildContext
from assay.contracts import Task
from assay.contracts.sandbox import Job, JobLimits
from assay.errors import ConfigError
from assay_code.cases import AssertTests, read
from assay_code.datasets import DatasetOptions, build_humaneval, build_mbpp
from assay_code.grade import Grader, SuiteReport
from assay_code.verify import assemble
from assay_sandboxes.sandbox import JailedSandbox

OpenTier = Callable[..., JailedSandbox]
pytestmark = pytest.mark.bubblewrap


def _humaneval(shared: Path) -> list[Task]:
    path = shared / "data" / "humaneval" / "HumanEval.jsonl.gz"
    return list(build_humaneval(DatasetOptions(path=path), BuildContext()).tasks())


def _mbpp(shared: Path) -> list[Task]:
    path = shared / "data" / "mbpp" / "mbpp.jsonl"
    return list(build_mbpp(DatasetOptions(path=path), BuildContext()).tasks())


def _reference(task: Task) -> str:
    return assemble(str(task.reference), read(task))


async def _grade_all(sandbox: JailedSandbox, tasks: Sequence[Task], programs: Sequence[str]) -> list[SuiteReport]:
    grader = Grader(sandbox)
    free = asyncio.Semaphore(4)

    async def one(task: Task, program: str) -> SuiteReport:
        async with free:
            suite = read(task)
            return await grader.grade(program, suite.tests, entry_point=suite.entry_point)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(*pair)) for pair in zip(tasks, programs, strict=True)]
    return [each.result() for each in running]


def _check_references(sandbox: JailedSandbox, tasks: Sequence[Task]) -> list[SuiteReport]:
    reports = asyncio.run(_grade_all(sandbox, tasks, [_reference(task) for task in tasks]))
    failed = [
        f"{task.id}: {report.grade}: {report.tests[-1].note}"
        for task, report in zip(tasks, reports, strict=True)
        if report.grade != "pass"
    ]
    assert failed == []
    return reports


def test_a_sample_of_the_references_passes(shared: Path, open_tier: OpenTier) -> None:
    tasks = [*_humaneval(shared)[::8], *_mbpp(shared)[::12]]
    reports = _check_references(open_tier("bubblewrap"), tasks)
    assert sum(report.trust == "split" for report in reports) >= 0.99 * len(reports)


@pytest.mark.slow
def test_every_reference_passes(shared: Path, open_tier: OpenTier) -> None:
    humaneval, mbpp = _humaneval(shared), _mbpp(shared)
    assert (len(humaneval), len(mbpp)) == (164, 974)
    for tasks in (humaneval, mbpp):
        reports = _check_references(open_tier("bubblewrap"), tasks)
        assert sum(report.trust == "split" for report in reports) >= 0.99 * len(tasks)


@pytest.mark.slow
def test_a_planted_mistake_fails_wherever_the_official_tests_fail_it(shared: Path, open_tier: OpenTier) -> None:
    tasks = [*_humaneval(shared), *_mbpp(shared)]
    mutants = [_mutate(_reference(task), seed) for seed, task in enumerate(tasks)]
    pairs = [(task, mutant) for task, mutant in zip(tasks, mutants, strict=True) if mutant is not None]
    assert len(pairs) >= 0.95 * len(tasks)
    sandbox = open_tier("bubblewrap")
    official = asyncio.run(_official(sandbox, [task for task, _ in pairs], [mutant for _, mutant in pairs]))
    reports = asyncio.run(_grade_all(sandbox, [task for task, _ in pairs], [mutant for _, mutant in pairs]))
    passed_anyway = [
        task.id
        for (task, _), held, report in zip(pairs, official, reports, strict=True)
        if not held and report.grade == "pass"
    ]
    failed_wrongly = [
        f"{task.id}: {report.grade} {report.tests[-1].note}"
        for (task, _), held, report in zip(pairs, official, reports, strict=True)
        if held and report.grade != "pass"
    ]
    assert passed_anyway == []
    assert failed_wrongly == []
    assert sum(not held for held in official) >= 0.8 * len(pairs)


async def _official(sandbox: JailedSandbox, tasks: Sequence[Task], programs: Sequence[str]) -> list[bool]:
    """Whether plain Python gets through program and tests in one process."""

    async def one(task: Task, program: str) -> bool:
        tests = read(task).tests
        assert isinstance(tests, AssertTests)
        source = f"{program}\n{tests.setup}\n{tests.code}\nprint('held to the end')\n"
        result = await sandbox.run(Job(source=source, limits=JobLimits(cpu_s=10, wall_s=50)))
        return result.stdout.endswith("held to the end\n") and result.exit_code == 0

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(*pair)) for pair in zip(tasks, programs, strict=True)]
    return [each.result() for each in running]


FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def _mutate(source: str, seed: int) -> str | None:
    """The program with a changed constant, a flipped comparison or a dropped return; None where it has none of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    spots: list[ast.AST] = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            spots += [
                node
                for node in ast.walk(function)
                if (isinstance(node, ast.Constant) and type(node.value) is int)
                or (isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED)
                or (isinstance(node, ast.Return) and node.value is not None)
            ]
    if not spots:
        return None
    spot = random.Random(seed).choice(spots)
    if isinstance(spot, ast.Constant):
        spot.value = int(str(spot.value)) + 1
    elif isinstance(spot, ast.Compare):
        spot.ops[0] = FLIPPED[type(spot.ops[0])]()
    elif isinstance(spot, ast.Return):
        spot.value = None
    return ast.unparse(tree)


def test_a_missing_or_wrong_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mbpp\.path: there is no file"):
        build_mbpp(DatasetOptions(path=Path("nowhere.jsonl")), BuildContext(base_dir=tmp_path))
    (tmp_path / "bad.jsonl").write_text('{"task_id": 1}\n', "utf-8")
    with pytest.raises(ConfigError, match=r"bad\.jsonl:1: not a row of humaneval: KeyError"):
        build_humaneval(DatasetOptions(path=tmp_path / "bad.jsonl"), BuildContext())
