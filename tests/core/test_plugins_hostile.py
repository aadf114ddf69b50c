"""Plugins that are installed beside good ones and break their word: each costs itself, and no other verdict changes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.cli import main
from assay.contracts import Judgement

pytestmark = pytest.mark.long

FRAME = """
import builtins, math, os, sys, time
from typing import Any
from assay import BuildContext, Component, Limits, Options, RewardSource, Verdict, hookimpl
from assay.verifier import NoOptions

{before}

class Source:
    limits = Limits(max_batch=4, timeout_s={timeout_s})

    async def judge(self, batch):
{judge}

    async def aclose(self):
        pass

@hookimpl
def assay_reward_sources():
    return [Component("{name}", NoOptions, lambda options, context: Source(), isolation="{isolation}")]
"""
ONE_EACH = "return [Verdict.score(0.5) for _ in batch]"
JUDGE = {
    "nan": "return [float('nan') for _ in batch]",
    "infinite": "return [Verdict.model_construct(status='scored', value=float('inf')) for _ in batch]",
    "outside": "return [Verdict.score(1.5) for _ in batch]",
    "string": "return ['1.0' for _ in batch]",
    "few": "return [Verdict.score(1.0) for _ in batch][1:]",
    "many": "return [Verdict.score(1.0) for _ in range(len(batch) + 1)]",
    "nothing": "return None",
    "exits": "sys.exit(0)",
    "os_exits": "os._exit(0)",
    "raises": "raise BaseException('no luck')",
}
"""Name to a body of `judge` whose every verdict must be `failed`."""
CAUSES = {
    "nan": "float",
    "infinite": "finite",
    "outside": "range",
    "string": "str",
    "few": "0",
    "many": "2",
    "nothing": "None",
    "exits": "SystemExit",
    "os_exits": "exited with code 0",
    "raises": "no luck",
}
"""Name to a word of the reason that is given."""
QUIET = {
    "mutates": f"""for candidate in batch:
            candidate.task.facts.clear()
            object.__setattr__(candidate.task, 'reference', '!')
            object.__setattr__(candidate.rollout.turns[0], 'text', '!')
        {ONE_EACH}""",
    "patches_late": f"""math.isfinite = lambda value: True
        builtins.len = lambda value: 0
        {ONE_EACH}""",
    "prints": f"""print('{{"status": "scored", "value": 1.0}}' * 50, flush=True)
        os.write(1, b'\\x00\\x01garbage')
        {ONE_EACH}""",
}
"""Name to a body that answers properly and does harm beside it."""
BROKEN = {
    "at_import": ("raise RuntimeError('no luck')", "RuntimeError: no luck (p_at_import.py:7)"),
    "sleeper": ("time.sleep(60)", "did not end within"),
    "leaver": ("sys.exit(0)", "SystemExit"),
    "patcher": ("math.sqrt = lambda x: 42.0", "it changes math.sqrt at import"),
    "rebuilder": ("builtins.len = lambda x: 0", "it changes builtins.len at import"),
}
"""Name to a statement at import and the cause that is named."""


def code(
    name: str,
    judge: str = ONE_EACH,
    *,
    before: str = "",
    isolation: str = "process",
    offers: str = "",
    timeout_s: float = 60.0,
) -> str:
    body = f"        {judge}"
    return FRAME.format(name=offers or name, judge=body, before=before, isolation=isolation, timeout_s=timeout_s)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    rows = [{"prompt": "?", "response": f"{n}", "answer": f"{n % 3}", "hint": n} for n in range(6)]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def plain(judgements: list[Judgement]) -> list[tuple[Any, ...]]:
    return [(j.rollout_id, j.status, j.value, j.verdict.evidence) for j in judgements]


HONEST = ["exact", "numeric", "pattern"]


def rewards(*names: str) -> list[dict[str, Any]]:
    return [{"use": name, "pattern": r"\d"} if name == "pattern" else {"use": name} for name in names]


def test_plugins_are_listed_and_each_culprit_is_named_with_its_cause(install: Callable[[str, str], None]):
    for name, (statement, _) in BROKEN.items():
        install(name, code(name, before=statement))
    for name, judge in (JUDGE | QUIET).items():
        install(name, code(name, judge))
    install("talker", code("talker", before='print(\'{"module": "p_talker", "components": []}\', flush=True)'))
    install("thief", code("thief", offers="math"))
    done = subprocess.run([sys.executable, "-m", "assay", "plugins"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("! ") and "its import took" not in line]
    for name, (_, cause) in BROKEN.items():
        (line,) = [line for line in told if f"third-{name} 1.2: not loaded" in line]
        assert cause in line
    (clash,) = [line for line in told if "third-thief 1.2" in line]
    assert "reward source 'math' refused: the name is taken by assay" in clash
    assert len(told) == len(BROKEN) + 1
    for name in (*JUDGE, *QUIET, "talker"):
        assert f"third-{name}" in done.stdout
    broken = subprocess.run(
        [sys.executable, "-m", "assay", "plugins", "--broken"], capture_output=True, text=True, check=False
    )
    assert [f"! {line}" for line in broken.stdout.splitlines()] == told


def test_what_breaks_the_contract_is_failed_and_never_a_number(install: Callable[[str, str], None], answers: Path):
    clean = plain(assay.score(answers, rewards=rewards(*HONEST)))
    for name, judge in JUDGE.items():
        install(name, code(name, judge))
    found = assay.score(answers, rewards=rewards(*HONEST, *JUDGE), workers=2)
    assert plain([j for j in found if j.source in HONEST]) == clean
    for name, word in CAUSES.items():
        verdicts = [j for j in found if j.source == name]
        assert len(verdicts) == 6
        assert {(j.status, j.value) for j in verdicts} == {("failed", None)}, name
        assert all(word in str(j.reason) for j in verdicts), (name, verdicts[0].reason)


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_what_does_harm_beside_its_answer_changes_no_other_verdict(
    install: Callable[[str, str], None], answers: Path, isolation: str
):
    clean = plain(assay.score(answers, rewards=rewards(*HONEST)))
    # Inline, a patched interpreter is everybody's: that is why a third party's default is a process.
    names = [name for name in QUIET if isolation == "process" or name == "mutates"]
    for name in names:
        install(name, code(name, QUIET[name], isolation=isolation, timeout_s=2.0))  # one that spoils itself may hang
    found = assay.score(answers, rewards=rewards(*names, *HONEST), workers=2)
    assert plain([j for j in found if j.source in HONEST]) == clean
    # A source that spoils its own worker may fail there; what it says otherwise is what it answered.
    assert {(j.status, j.value) for j in found if j.source in names} <= {("scored", 0.5), ("failed", None)}


def test_a_plugin_that_swaps_its_verdicts_is_caught_by_the_suite(install: Callable[[str, str], None], tmp_path: Path):
    judge = "return [Verdict.score(float(c.rollout.text == c.task.reference)) for c in batch][::-1]"
    install("swaps", code("swaps", judge))
    cases = tmp_path / "cases.jsonl"
    cases.write_text(
        '{"text": "1", "reference": "1", "expect": "accept"}\n{"text": "2", "reference": "1", "expect": "reject"}\n',
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "assay", "check", "swaps", "--cases", str(cases), "--no-other-process", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    results = {row["check"]: row["status"] for row in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 3
    assert results["keeps order and length"] == "failed"


def test_a_third_party_is_left_out_by_the_environment(
    install: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
):
    install("sleeper", code("sleeper", before="time.sleep(60)"))
    monkeypatch.setenv("ASSAY_PLUGINS", "none")
    done = subprocess.run([sys.executable, "-m", "assay", "plugins"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "- plugin third-sleeper 1.2: left out by ASSAY_PLUGINS or allow" in done.stdout
    assert "! " not in done.stdout


PART = """
from assay import Options, Part, hookimpl

class Mine(Options):
    width: float = 0.3
    \"\"\"How wide it is.\"\"\"

@hookimpl
def assay_optimizer_parts():
    return [Part("trust_region", "mine", Mine, lambda options: options, summary="a part of a third party")]
"""
WATCHER = """
import time
from assay import hookimpl
until = time.monotonic() + 0.4
while time.monotonic() < until:
    pass

@hookimpl
def assay_run_started(run):
    print(run.id)
"""


def test_parts_observers_and_slow_imports_are_told(
    install: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
):
    install("part", PART)
    install("watcher", WATCHER)
    install("leaver", "import sys; sys.exit(0)")

    def told(*arguments: str) -> str:
        assert main(["plugins", *arguments]) == 0
        return capsys.readouterr().out

    listing = told()
    assert re.search(r"^mine +part: trust region +third-part +1.2 +ok +a part of a third party$", listing, re.MULTILINE)
    assert "kl_in_reward" not in listing
    assert "- plugin third-watcher 1.2: ok: observers, no component" in listing
    assert re.search(r"! plugin third-watcher 1.2: its import took \d+\.\d s, more than 0.3 s; import", listing)
    assert {"mine", "kl_in_reward"} <= {line.split()[0] for line in told("--kind", "part").splitlines()}
    assert re.search(r"^width +float +0.3 +How wide it is.$", told("mine"), re.MULTILINE)
    (broken,) = [json.loads(line) for line in told("--broken", "--json").splitlines()]
    assert (broken["package"], broken["version"], broken["state"]) == ("third-leaver", "1.2", "broken")
    assert "SystemExit" in broken["cause"]
