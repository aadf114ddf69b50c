"""`assay label` from the command line: killed and gone on with, its files, and its mistakes in one sentence."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main
from assay.testing.chains import Chains

pytestmark = pytest.mark.long

PLUGIN = '''
from assay import Verdict
from assay.component import Component, Options
from assay.contracts import Limits
from assay.hookspecs import hookimpl
from assay.testing.chains import Chains, answer_of
from assay.testing.scripted import ScriptedEngine


class ChainsOptions(Options):
    """The scripted policy of the chains."""

    seed: int = 1
    """Which policy."""
    delay_s: float = 0.0
    """Seconds for each answer."""
    model: str = "none"
    """Nothing; a name that runs are told apart by."""


class Ends:
    """1 for the right answer."""

    limits = Limits()

    async def judge(self, batch):
        found = [answer_of(candidate.rollout.text) for candidate in batch]
        return [
            Verdict.abstain("no answer") if answer is None else Verdict.score(float(answer == c.task.reference))
            for answer, c in zip(found, batch, strict=True)
        ]

    async def aclose(self):
        pass


@hookimpl
def assay_rollout_engines():
    return [
        Component(
            "chains",
            ChainsOptions,
            lambda o, c: ScriptedEngine(Chains(seed=o.seed).answer, delay_s=o.delay_s, concurrency=8),
        )
    ]


@hookimpl
def assay_reward_sources():
    return [Component("ends", Options, lambda o, c: Ends(), isolation="inline")]
'''


@pytest.fixture
def data(tmp_path: Path, install: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `given.jsonl`, and the plugin."""
    install("chains", PLUGIN)
    monkeypatch.chdir(tmp_path)
    chains = Chains(seed=1)
    with (tmp_path / "given.jsonl").open("w", encoding="utf-8") as file:
        for number in range(30):
            task = chains.task(number)
            for sample in range(4):
                text = chains.continued(task.prompt, "", 100 * number + sample)
                row = {"id": f"{number}-{sample}", "problem": task.prompt, "response": text, "answer": task.reference}
                file.write(json.dumps(row) + "\n")
    return tmp_path


def label(*more: str) -> int:
    return main(["label", "given.jsonl", "-r", "ends", "--engine", "chains", "--split", "line", *more])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def drawn(path: Path) -> list[tuple[str, int]]:
    """Node and attempt of every whole line."""
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
    return [(row["node"], row["attempt"]) for row in map(json.loads, whole) if "node" in row]


def test_killed_and_gone_on_with_it_ends_as_if_it_was_not(data: Path) -> None:
    assert label("--out", "whole.jsonl") == 0
    command = [sys.executable, "-m", "assay", "label", "given.jsonl", "-r", "ends", "--engine", "chains"]
    command += ["--split", "line", "--option", "delay_s=0.02", "--out", "killed.jsonl"]
    log = data / "killed.completions.jsonl"
    total = len(drawn(data / "whole.completions.jsonl"))
    for share in (0.1, 0.5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not log.is_file() or len(drawn(log)) < share * total:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (data / "killed.jsonl").exists()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "completions are there already and are used again" in done.stderr
    assert rows(data / "killed.jsonl") == rows(data / "whole.jsonl")
    assert sorted(drawn(log)) == sorted(drawn(data / "whole.completions.jsonl"))
    assert len(set(drawn(log))) == len(drawn(log))


def test_what_is_printed_and_written(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert label("--outcomes", "outcomes.jsonl", "--audit", "1") == 0
    out, err = capsys.readouterr()
    assert out.startswith("given.jsonl: 120 solutions of ")
    assert "x fewer than naive" in out
    assert "audit: of " in out
    assert "120/120 solutions" in err or "solutions  " in err
    found = rows(data / "given.labelled.jsonl")
    assert found[0]["provenance"]["sources"] == ["ends"]
    assert all({"problem", "steps", "outcome", "origin"} <= set(row) for row in found)
    outcomes = rows(data / "outcomes.jsonl")
    assert {row["origin"] for row in outcomes} == {"given", "completion"}
    assert {type(row["label"]) for row in outcomes} == {bool}


def test_solutions_come_from_standard_input_too(data: Path) -> None:
    assert label() == 0
    command = [sys.executable, "-m", "assay", "label", "-", "-r", "ends", "--engine", "chains", "--split", "line"]
    text = (data / "given.jsonl").read_text(encoding="utf-8")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "wrote stdin.labelled.jsonl" in done.stdout
    assert rows(data / "stdin.labelled.jsonl") == rows(data / "given.labelled.jsonl")


def test_json_and_the_other_form(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert label("--form", "trl", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["written"] == len(rows(data / "given.labelled.jsonl"))
    assert facts["cost"]["saving"] > 1
    assert set(rows(data / "given.labelled.jsonl")[0]) == {"prompt", "completions", "labels"}


def test_another_mode_uses_the_completions_that_are_there(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert label("--mode", "soft", "--samples", "4") == 0
    before = len(drawn(data / "given.labelled.completions.jsonl"))
    assert label("--mode", "hard_exact", "--samples", "4", "--audit", "0") == 0
    assert len(drawn(data / "given.labelled.completions.jsonl")) == before
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--option", "delay"], "--option delay: no '='; write it as KEY=VALUE"),
        (["--option", "speed=1"], "assay label: --engine: unknown key 'speed'"),
        (["--samples", "0"], "--samples 0: at least 1 completion"),
        (["--solved-above", "0.9", "--solved-at-most", "0.2"], "shares from 0 to 1 are expected"),
        (["--out", "given.jsonl"], "--out given.jsonl: that is the data file itself"),
        (["--out", "nowhere/x.jsonl"], "the folder nowhere does not exist"),
        (["--out", "."], "--out .: that is a folder; name a file"),
        (["--outcomes", "given.jsonl"], "--outcomes given.jsonl: that is the data file itself"),
        (["--outcomes", "nowhere/x.jsonl"], "--outcomes nowhere/x.jsonl: the folder nowhere does not exist"),
        (["--out", "x.jsonl", "--outcomes", "x.jsonl"], "this command writes something else there"),
        (["--out", "x.jsonl", "--outcomes", "x.completions.jsonl"], "this command writes something else there"),
        (["--audit", "7"], "--audit 7: a share from 0 to 1 is expected"),
        (["--audit", "nan"], "--audit nan: a share from 0 to 1 is expected"),
        (["--temperature", "-1"], "sampling.temperature: input should be greater than or equal to 0; found -1.0"),
        (["--temperature", "nan"], "sampling.temperature: input should be a finite number; found nan"),
        (["--max-new-tokens", "0"], "sampling.max_new_tokens: input should be greater than or equal to 1; found 0"),
        (["--workers", "0"], "judging.workers: input should be greater than or equal to 1; found 0"),
    ],
)
def test_mistakes_are_one_sentence(
    data: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    assert label(*more) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in data.iterdir() if path.is_file()) == ["given.jsonl"], "nothing was begun"


def test_a_source_must_be_named_and_settings_may_not_change(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label", "given.jsonl", "--engine", "chains"]) == 2
    assert "no reward source is named" in capsys.readouterr().err
    assert label() == 0
    assert label("--model", "other") == 2
    assert "its completions were made with another options" in capsys.readouterr().err
