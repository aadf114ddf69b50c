"""`assay audit`: is a verifier right, on data, against labels, beside another one; and suspects of a run."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from assay import runs
from assay.cli.data_file import DataFile
from assay.cli.output import emit, note, say, table, target_file
from assay.config.rewards import JudgingConfig, RewardEntry, SourceEntry
from assay.config.run import ScoreData
from assay.config.validation import validate
from assay.contracts import Message, Task
from assay.errors import ConfigError
from assay.preflight import check_rewards, make_context
from assay.registry import Registry
from assay.reports.audit import Bench, as_label, audit_against, audit_data, audit_labels
from assay.reports.differences import Answer, recorded_differences
from assay.reports.page import Page, Section, write_page
from assay.reports.suspects import Judged, suspect_sections
from assay.rows import BadRowError, Row, column, first_known, is_data, read_rows, stem, text_column
from assay.scoring import PROMPTS, REFERENCES, RESPONSES, parse_reward
from assay.store import RunStore

T = TypeVar("T")
LABELS = ("label", "correct", "is_correct", "expected")


def audit(
    data: DataFile,
    /,
    *,
    reward: Annotated[str | None, Parameter(name=["-r", "--reward"])] = None,
    against: str | None = None,
    sample: int | None = None,
    prompt: str | None = None,
    response: str | None = None,
    reference: str | None = None,
    label: str | None = None,
    kind: str = "kind",
    workers: int = 2,
    timeout_s: float | None = None,
    seed: int = 0,
    report: Path | None = None,
    runs_dir: Path = Path("runs"),
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Try a verifier on data with golds or labels, compare two, or look for suspects in a run.

    Args:
        data: A JSONL file (`-` is standard input), or a run (folder, name, short id, or `latest`).
        reward: The reward source under audit, NAME or FILE.py:FUNCTION. Of a run it is asked about the run's own
            answers; without it the run is looked at as it was judged.
        against: A second source; where both differ is listed, the largest difference first.
        sample: Look at so many rows (1 or more), drawn by the seed; default all.
        prompt: Column of the prompt.
        response: Column of the response; without responses only the golds are tried.
        reference: Column of the gold.
        label: Column that says whether the response is right.
        kind: Column by which the rates are listed apart.
        workers: Candidates that may be judged at once in worker processes.
        timeout_s: Wall time of one candidate.
        seed: Seed of the sample.
        report: Where the page goes; default `audit.html` beside the data or in the run folder.
        runs_dir: Where run folders are looked for.
        json_: The whole result as one JSON object on stdout.
    """
    given = {"workers": workers, "timeout_s": timeout_s}
    judging = validate(JudgingConfig, given, where="assay audit: judging")
    if sample is not None and sample < 1:
        raise ConfigError(f"assay audit: --sample {sample}: at least one row must be looked at; give 1 or more")
    if report is not None:
        target_file(report, data, flag="--report")
    if not is_data(data) and (Path(data).is_dir() or Path(data).suffix not in (".jsonl", ".json", ".gz")):
        page, target = _run_page(data, runs_dir, reward, against, sample, judging, seed)
    else:
        if reward is None:
            raise ConfigError(f"assay audit: no reward source is named; write: assay audit {data} -r NAME")
        columns = ScoreData(path=data, prompt=prompt, response=response, reference=reference)
        answers, golds_only = read_labelled(columns, label=label, kind=kind)
        answers = _sampled(answers, sample, seed)
        page = asyncio.run(_data_page(data, answers, golds_only, reward, against, judging, seed))
        target = Path(f"{stem(data)}.audit.html")
    written = write_page(page, report or target)
    if json_:
        emit(page.to_dict())
    else:
        _print(page)
        say(f"wrote {written}")
    return 0 if page.good else 3


def read_labelled(data: ScoreData, *, label: str | None, kind: str) -> tuple[list[Answer], bool]:
    """The rows of a file as answers, and whether there are golds alone; raises `ConfigError` for a bad row."""
    answers: list[Answer] = []
    columns: dict[str, str | None] | None = None
    for row in read_rows(data.path):
        if isinstance(row, BadRowError):
            raise row
        if columns is None:
            columns = {
                "prompt": data.prompt or first_known(row.data, PROMPTS),
                "response": data.response or first_known(row.data, RESPONSES),
                "reference": data.reference or first_known(row.data, REFERENCES),
                "label": label or first_known(row.data, LABELS),
            }
        answers.append(_answer(row, columns, data.path, kind, required=label is not None))
    if columns is None:
        raise ConfigError(f"{data.path}: no row to audit")
    if columns["response"] is None and columns["reference"] is None:
        raise ConfigError(f"{data.path}: no column holds a gold or a response; name one with --reference or --response")
    return answers, columns["response"] is None


def _answer(row: Row, columns: dict[str, str | None], path: str, kind: str, *, required: bool) -> Answer:
    prompt, response = columns["prompt"], columns["response"]
    reference, label = columns["reference"], columns["label"]
    asked = text_column(row, prompt, path=path) if prompt is not None else ""
    used = {prompt, response, reference, label, "id", "tags"}
    task = Task(
        id=str(row.data.get("id", row.line)),
        messages=(Message(role="user", content=asked),),
        reference=column(row, reference, path=path) if reference is not None else None,
        facts={key: value for key, value in row.data.items() if key not in used},
        tags=tuple(str(tag) for tag in _listed(row.data.get("tags"))),
    )
    found = as_label(column(row, label, path=path)) if label is not None else None
    if required and found is None:
        raise BadRowError(f"{path}:{row.line}: column {label!r} is no label; expected true or false", row.line)
    text = text_column(row, response, path=path) if response is not None else ""
    return Answer(task, text, found, str(row.data.get(kind, "")))


def _content(task: Task) -> str:
    """What makes a task the same as another, so that a file with many answers to it tries its gold once."""
    return task.model_dump_json(exclude={"id"})


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType]  # JSON


async def _data_page(
    data: str,
    answers: Sequence[Answer],
    golds_only: bool,
    reward: str,
    against: str | None,
    judging: JudgingConfig,
    seed: int,
) -> Page:
    registry = Registry.load()
    for problem in registry.problems:
        note(f"! {problem}")
    context = make_context(registry, base_dir=Path.cwd(), seed=seed)
    entries: list[RewardEntry] = [
        SourceEntry.model_validate(parse_reward(name)) for name in (reward, against) if name is not None
    ]
    check_rewards(registry, entries, where="assay audit")
    sections: list[Section] = []
    with_gold = list({_content(a.task): a.task for a in reversed(answers) if a.task.reference is not None}.values())
    labelled = [answer for answer in answers if answer.label is not None]
    async with Bench(entries[0], registry=registry, context=context, judging=judging) as bench:
        if with_gold:
            sections += await audit_data(bench, with_gold[::-1])
        if labelled and not golds_only:
            sections += await audit_labels(bench, labelled)
        if against is not None and not golds_only:
            async with Bench(entries[1], registry=registry, context=context, judging=judging) as other:
                sections += await audit_against(bench, other, answers)
    origin = registry.origin("reward_source", entries[0].use) if isinstance(entries[0], SourceEntry) else None
    facts = {"source": reward, "data": data, "rows": f"{len(answers):,}"}
    facts |= {"different golds": f"{len(with_gold):,}", "labelled": f"{len(labelled):,}"}
    if origin is not None:
        facts["version"] = f"{origin.distribution} {origin.version}"
    return Page(f"audit of {reward} on {data}", tuple(sections), facts)


def _sampled(rows: list[T], sample: int | None, seed: int) -> list[T]:
    """So many of the rows in their order, drawn by the seed; all of them without a number."""
    if sample is None or sample >= len(rows):
        return rows
    chosen = random.Random(seed).sample(range(len(rows)), sample)  # noqa: S311 # a sample, not a secret
    return [rows[index] for index in sorted(chosen)]


def _run_page(
    name: str,
    runs_dir: Path,
    reward: str | None,
    against: str | None,
    sample: int | None,
    judging: JudgingConfig,
    seed: int,
) -> tuple[Page, Path]:
    """Suspects and differences of a run as it was judged; with `reward`, that source on the run's tasks and answers."""
    if against is not None and reward is None:
        raise ConfigError(f"assay audit: --against {against} needs a first source; write: -r NAME --against {against}")
    folder = runs.find_run(name, runs_dir)
    with RunStore.open(folder, read_only=True) as store:
        entries = _sampled(list(store.rollouts()), sample, seed)
        info = store.info
    answers = [Answer(e.task, e.rollout.text, rollout=e.rollout.id) for e in entries]
    judged = [Judged(entry.step, entry.task, entry.rollout, entry.reward) for entry in entries]
    sections = recorded_differences(answers, [entry.judgements for entry in entries])
    sections += suspect_sections(judged, list(runs.read_lines(folder / runs.EVALUATIONS)))
    facts = {"run": info.id, "kind": info.kind, "rollouts": f"{len(entries):,}"}
    if reward is not None and answers:
        page = asyncio.run(_data_page(info.id, answers, False, reward, against, judging, seed))
        sections, facts = [*page.sections, *sections], {**facts, **page.facts}
    return Page(f"audit of run {info.id}", tuple(sections), facts), folder / "audit.html"


def _print(page: Page) -> None:
    say(f"{page.title}: " + ", ".join(f"{name} {value}" for name, value in page.facts.items()))
    for section in page.sections:
        mark = {True: ": holds", False: ": DOES NOT HOLD", None: ""}[section.good]
        say(f"\n{section.title}{mark}")
        if section.rows:
            table(section.columns, section.rows)
        for line in section.notes:
            say(f"  {line}")
