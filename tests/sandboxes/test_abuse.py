"""Attacks on every tier: the specification's, and further ones of ours. After each the next job must print 42."""

# ruff: noqa: E501 - programs read best as they are

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.sandbox import Job
from assay_code.cases import Suite
from assay_code.grade import Grader, SuiteReport
from assay_sandboxes.sandbox import JailedSandbox

pytestmark = pytest.mark.long

OpenTier = Callable[..., JailedSandbox]
TIERS: list[Any] = [
    pytest.param("bubblewrap", {}, marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param("docker", {}, marks=pytest.mark.docker, id="docker"),
    pytest.param("landlock", {}, id="landlock"),
    pytest.param(
        "bubblewrap",
        {"namespaces_per_job": False},
        marks=[pytest.mark.bubblewrap, pytest.mark.slow],
        id="jail-namespaces",
    ),
]
BUBBLEWRAP, *OTHERS = TIERS
LISTED_GAPS = {"landlock": {"disk-fill-bounded"}}

SQUARE = {"kind": "call", "fn": "square", "cases": [{"args": [n], "expect": n * n} for n in (2, 3, -5)]}
SAYS_OK = {"kind": "stdio", "cases": [{"stdin": "", "stdout": "ok\n"}], "limits": {"wall_s": 5, "cpu_s": 1}}
CHECKED = {
    "kind": "assert",
    "code": "def check(f):\n    for n in (2, 3):\n        assert f(n) - n * n == 0\ncheck(square)\n",
}
TRY_ALL = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"

OURS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "kill-and-stop-parent",
        "import os, signal\nfor pid in (1, os.getppid()):\n    for s in (9, 19, 2, 15, 11):\n"
        "        try:\n            if pid not in (0, os.getpid()): os.kill(pid, s)\n        except OSError: pass\nprint('ok')",
        SAYS_OK,
        "pass|fail",
    ),
    (
        "deep-tree",
        "import os\nfor n in range(1500):\n    os.mkdir('d'); os.chdir('d')\nprint('ok')",
        SAYS_OK,
        "pass|fail",
    ),
    (
        "many-inodes",
        "for n in range(50_000):\n    open(f'f{n}', 'w').close()\nprint('ok')",
        SAYS_OK,
        "pass|fail|error:timeout",
    ),
    (
        "raw-system-calls",
        TRY_ALL + "import os\nfor n in (57, 58, 59, 101, 165, 272, 308, 321, 323, 425, 319, 29, 250, 298, 435):\n"
        "    if libc.syscall(n, 0, 0, 0, 0, 0) > 0: print('allowed', n)\nprint('ok')",
        SAYS_OK,
        "pass",
    ),
    (
        "raise-limits",
        "import resource\nfor r in (resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):\n    try:\n"
        "        resource.setrlimit(r, (1 << 40, 1 << 40)); print('raised')\n    except (ValueError, OSError): pass\n"
        "print('ok')",
        SAYS_OK,
        "pass",
    ),
    ("start-a-program", "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'echo ok'])", SAYS_OK, "fail"),
    ("c-loop", "print('ok' if 7 ** (10 ** 9) else '')", SAYS_OK, "error:timeout|error:memory"),
    ("compile-bomb", "x = " + "[],[]," * 30_000 + "1", {**SAYS_OK, "limits": {"cpu_s": 2}}, "fail|error:timeout|error:memory"),
    ("parse-bomb", "(" * 90_000, SAYS_OK, "fail|error:memory|error:crash"),
    (
        "thread-goes-on",
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(60), daemon=True).start()\nprint('ok')",
        SAYS_OK,
        "pass",
    ),
    ("closed-output", "import os\nprint('ok', flush=True)\nos.close(1); os.close(2)", SAYS_OK, "pass|fail"),
    (
        "huge-return",
        "def square(x):\n    return [0] * (50 << 20)\n",
        SQUARE,
        "fail|error:memory|error:timeout",
    ),
    (
        "self-reference",
        "def square(x):\n    a = []\n    a.append(a)\n    return a\n",
        SQUARE,
        "fail",
    ),
    (
        "deep-return",
        "def square(x):\n    a = 4\n    for _ in range(100_000): a = [a]\n    return a\n",
        SQUARE,
        "fail|error:crash",
    ),
    (
        "colliding-hashes",
        "def square(x):\n    return {n * (2 ** 61 - 1) for n in range(9_000)}\n",
        SQUARE,
        "fail|error:timeout",
    ),
    (
        "repr-bomb",
        "def square(x):\n    return 1 << 400_000\n",
        SQUARE,
        "fail",
    ),
    (
        "frames-in-advance",
        "import json, os\ndef square(x):\n    return 0\n"
        "for i in (2, 0, 0, 1, 5):\n    b = json.dumps({'i': i, 'v': [4, 9, 25][i % 3]}).encode()\n"
        "    os.write(3, len(b).to_bytes(4, 'big') + b)\n",
        {**SQUARE, "cases": [{"args": [n], "expect": n + 100} for n in (2, 3, -5)]},
        "fail",
    ),
    (
        "frames-without-end",
        "import os\ndef square(x):\n    while True: os.write(3, b'\\0\\0\\0\\1x')\n",
        {**SQUARE, "limits": {"wall_s": 20, "cpu_s": 20}},
        "error:output",
    ),
    (
        "frame-without-value",
        "import os\ndef square(x):\n    os.write(3, b'\\x00\\x00\\x00\\x07{\"i\":0}')\n    os._exit(0)\n",
        SQUARE,
        "fail",
    ),
    (
        "frame-too-long",
        "import os\ndef square(x):\n    os.write(3, b'\\xff\\xff\\xff\\xff')\n    os._exit(0)\n",
        SQUARE,
        "fail",
    ),
    (
        "message-of-an-error-raises",
        "class Sly(Exception):\n    def __str__(self): raise SystemExit(0)\ndef square(x):\n    raise Sly\n",
        SQUARE,
        "fail",
    ),
    ("assert-early-exit", "import os\ndef square(x):\n    os._exit(0)\n", CHECKED, "fail|error:crash"),
    ("assert-sly-number", "class N:\n    def __sub__(self, o): return 0\ndef square(x):\n    return N()\n", CHECKED, "fail"),
    ("assert-raises-to-stop", "def square(x):\n    raise SystemExit(0)\n", CHECKED, "fail"),
    (
        "assert-forged-results",
        "import os\ndef square(x):\n    print('assay-0 {\"results\": {\"0\": [\"\", \"\"]}, \"note\": \"\", \"unsplit\": \"\"}')\n"
        "    return 0\n",
        CHECKED,
        "fail",
    ),
    (
        "assert-deep-answer",
        "import os\ndef square(x):\n    b = b'[' * 60_000\n    os.write(3, len(b).to_bytes(4, 'big') + b)\n    os._exit(0)\n",
        CHECKED,
        "fail",
    ),
    (
        "assert-hang",
        "import time\ndef square(x):\n    time.sleep(60)\n",
        {**CHECKED, "limits": {"wall_s": 1.5}},
        "error:timeout",
    ),
    (
        "assert-relayed-flood",
        "import os\ndef square(x):\n    while True:\n        os.write(3, b'\\0\\0\\0\\1x')\n",
        {
            "kind": "assert",
            "code": "def check():\n    for i in range(3):\n        assert square(i) == i * i\ncheck()\n",
            "limits": {"wall_s": 1.5},
        },
        "fail|error:output|error:timeout",
    ),
]  # fmt: skip


async def _attack(sandbox: JailedSandbox, code: str, tests: dict[str, Any]) -> tuple[SuiteReport, str]:
    suite = Suite.model_validate({"tests": tests})
    report = await Grader(sandbox).grade(code, suite.tests)
    after = await sandbox.run(Job(source="print(42)"))
    return report, after.stdout


@pytest.mark.parametrize(("name", "options"), TIERS)
def test_the_listed_attacks(name: str, options: dict[str, Any], shared: Path, open_tier: OpenTier) -> None:
    os.environ["ASSAY_TEST_SECRET_TOKEN"] = "must not be seen"
    sandbox = open_tier(name, **options)
    rows = [
        json.loads(line) for line in (shared / "cases" / "abuse_cases.jsonl").read_text("utf-8").splitlines() if line
    ]
    wrong: list[str] = []
    for row in rows:
        if row["id"] in LISTED_GAPS.get(name, ()):
            continue
        report, after = asyncio.run(_attack(sandbox, row["code"], row["tests"]))
        if report.grade not in row["must"].split("|") or after != "42\n":
            wrong.append(f"{row['id']}: {report.grade}, expected {row['must']}; then {after!r}")
        assert report.trust == "split"
    assert len(rows) == 24
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "options"),
    [BUBBLEWRAP, *(pytest.param(*tier.values, marks=[*tier.marks, pytest.mark.slow], id=tier.id) for tier in OTHERS)],
)
def test_further_attacks(name: str, options: dict[str, Any], open_tier: OpenTier) -> None:
    sandbox = open_tier(name, **options)
    wrong: list[str] = []
    for attack, code, tests, must in OURS:
        report, after = asyncio.run(_attack(sandbox, code, tests))
        if report.grade not in must.split("|") or after != "42\n":
            note = report.tests[-1].note if report.tests else ""
            wrong.append(f"{attack}: {report.grade} ({note}), expected {must}; then {after!r}")
    assert wrong == []
