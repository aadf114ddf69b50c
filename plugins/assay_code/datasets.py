"""HumanEval and MBPP as tasks, from their published files."""

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from assay.component import BuildContext, Options
from assay.contracts.task import Message, Task
from assay.errors import ConfigError

HUMANEVAL_PROMPT = "Complete this Python function. Answer with the whole function in one Python code block.\n\n{prompt}"
MBPP_PROMPT = (
    "{text}\n\nYour code should pass tests like this one:\n{test}\n\nAnswer with one Python code block that holds the "
    "whole program."
)
MBPP_SLOWEST_S = 3.0
"""CPU time of MBPP's slowest reference (task 123: 2.6 s on a 2020s server core); its tests call it more than once."""
_LAST = re.compile(r"check\((\w+)\)\s*$")


class DatasetOptions(Options):
    """Options of `humaneval` and `mbpp`."""

    path: Path
    """The published file: `HumanEval.jsonl.gz` or `mbpp.jsonl` (either may be compressed)."""
    first: int = Field(default=0, ge=0)
    """Rows to leave out at the beginning."""
    limit: int | None = Field(default=None, ge=1)
    """Most tasks; by default all."""


class Rows:
    """Tasks made of the rows of a file."""

    def __init__(self, tasks: list[Task]) -> None:
        """Hold `tasks`."""
        self._tasks = tasks

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self._tasks)

    def tasks(self) -> Iterable[Task]:
        """All tasks, in the file's order."""
        return iter(self._tasks)


def humaneval(row: dict[str, Any]) -> Task:
    """The task of one HumanEval row (`task_id, prompt, canonical_solution, test, entry_point`; Chen et al. 2021)."""
    prompt, test, entry = str(row["prompt"]), str(row["test"]), str(row["entry_point"])
    code = test if _LAST.search(test) else f"{test}\n\ncheck({entry})\n"
    return Task(
        id=str(row["task_id"]),
        messages=(Message(role="user", content=HUMANEVAL_PROMPT.format(prompt=prompt)),),
        reference=str(row["canonical_solution"]),
        facts={
            "language": "python",
            "entry_point": entry,
            "head": prompt,
            "tests": {"kind": "assert", "code": code},
        },
        tags=("code", "humaneval"),
    )


def mbpp(row: dict[str, Any]) -> Task:
    """The task of one MBPP row (`task_id, text, code, test_list, test_setup_code`; Austin et al. 2021)."""
    tests = [str(test) for test in row["test_list"]]
    return Task(
        id=f"MBPP/{row['task_id']}",
        messages=(Message(role="user", content=MBPP_PROMPT.format(text=row["text"], test=tests[0])),),
        reference=str(row["code"]).replace("\r\n", "\n"),
        facts={
            "language": "python",
            "tests": {
                "kind": "assert",
                "code": "\n".join(tests) + "\n",
                "setup": str(row.get("test_setup_code") or "").replace("\r\n", "\n"),
                "limits": {"reference_s": MBPP_SLOWEST_S},
            },
        },
        tags=("code", "mbpp"),
    )


def build_humaneval(options: DatasetOptions, context: BuildContext) -> Rows:
    """HumanEval's tasks."""
    return _build("humaneval", humaneval, options, context)


def build_mbpp(options: DatasetOptions, context: BuildContext) -> Rows:
    """MBPP's tasks."""
    return _build("mbpp", mbpp, options, context)


def _build(name: str, make: Any, options: DatasetOptions, context: BuildContext) -> Rows:
    path = options.path if options.path.is_absolute() else context.base_dir / options.path
    if not path.is_file():
        raise ConfigError(f"{name}.path: there is no file {str(path)!r}; download the data set's own file and name it")
    tasks: list[Task] = []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                tasks.append(make(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{path}:{number}: not a row of {name}: {type(error).__name__}: {error}; correct the file"
                ) from error
    last = None if options.limit is None else options.first + options.limit
    return Rows(tasks[options.first : last])
