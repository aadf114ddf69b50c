"""The language table: how a program of each language is built and run inside a jail."""

from dataclasses import dataclass
from typing import Any

from assay.contracts.sandbox import Job
from assay_sandboxes.options import Language, SandboxOptions

KNOWN: dict[str, Language] = {
    "cpp": Language(
        file="main.cpp",
        build=("/usr/bin/g++", "-O2", "-std=c++17", "-pipe", "-o", "{program}", "{source}"),
        run=("./{program}",),
        version=("/usr/bin/g++", "--version"),
    ),
    "c": Language(
        file="main.c",
        build=("/usr/bin/gcc", "-O2", "-std=c17", "-pipe", "-o", "{program}", "{source}", "-lm"),
        run=("./{program}",),
        version=("/usr/bin/gcc", "--version"),
    ),
    "javascript": Language(
        file="main.js",
        run=("/usr/bin/node", "--max-old-space-size={memory_mib}", "--single-threaded", "{source}"),
        version=("/usr/bin/node", "--version"),
        variables={"OPENSSL_CONF": "/dev/null"},
        sparse=True,
    ),
    "bash": Language(file="main.sh", run=("/bin/bash", "{source}"), version=("/bin/bash", "--version")),
}
ALIASES = {"c++": "cpp", "js": "javascript", "node": "javascript", "py": "python", "python3": "python", "sh": "bash"}
PYTHON = "python"
PROGRAM = "program"
STDIN_FILE = ".stdin"


@dataclass(frozen=True)
class Plan:
    """The messages that make a zygote ready to run one program."""

    program: dict[str, Any]
    """The program as it is run."""
    build: dict[str, Any] | None = None
    """The program of the build step, where there is one."""


def language_of(name: str, options: SandboxOptions) -> str:
    """The table's own name of a language."""
    name = name.lower()
    return name if name in options.languages else ALIASES.get(name, name)


def find(name: str, options: SandboxOptions) -> Language | None:
    """The table's row of a language, or None where it has none (Python has none: the zygote runs it itself)."""
    name = language_of(name, options)
    return options.languages.get(name) or KNOWN.get(name)


def plan(job: Job, options: SandboxOptions) -> Plan:
    """How `job`'s program is built and run."""
    row = find(job.language, options)
    if row is None:
        stdin_file = STDIN_FILE if "/dev/stdin" in job.source else ""
        message = {"source": job.source, "path": "main.py", "files": job.files, "stdin_file": stdin_file}
        return Plan({"op": "program", **message})
    words = {"source": row.file, "program": PROGRAM, "memory_mib": str(job.limits.memory_mib)}

    def line(parts: tuple[str, ...]) -> list[str]:
        return [part.format_map(words) if "{" in part else part for part in parts]

    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    variables |= row.variables
    files = {**job.files, row.file: job.source}
    run = {"argv": line(row.run), "variables": variables, "stdin_file": STDIN_FILE, "sparse": row.sparse}
    if not row.build:
        return Plan({"op": "program", "files": files, **run})
    build = {"argv": line(row.build), "variables": variables, "files": files}
    return Plan({"op": "program", "files": job.files, **run}, build)
