"""The proof's parts: its data is what it says, its table and gates say what the figures say; in `slow` a short run."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.testing.chains import wrong_steps

FOLDER = Path(__file__).parent


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The proof's modules."""
    monkeypatch.syspath_prepend(FOLDER)  # pyright: ignore[reportUnknownMemberType]
    import models
    import table
    import unit
    import world

    return SimpleNamespace(models=models, table=table, unit=unit, world=world)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_data_is_what_it_says(proof: Any, tmp_path: Path) -> None:
    sizes = proof.world.Sizes(problems=15, samples=6, pools=6, pool=4, measured=20)
    world = proof.world.World(1, sizes=sizes)
    world.write(tmp_path)
    found = {path.stem: rows(path) for path in tmp_path.glob("*.jsonl")}
    counts = {name: len(found[name]) for name in ("outcomes", "oracle", "critiques", "pools", "steps")}
    assert counts == {"outcomes": 90, "oracle": 90, "critiques": 90, "pools": 24, "steps": 20}
    problems: list[set[str]] = [
        {row["prompt"] for row in found["outcomes"]},
        {row["problem"] for row in found["pools"]},
        {row["problem"] for row in found["steps"]},
    ]
    assert len(problems[0] | problems[1] | problems[2]) == sum(map(len, problems)) == 15 + 6 + 20
    for row in found["oracle"]:
        wrong = wrong_steps(row["prompt"], row["completions"])
        assert [index for index, right in enumerate(row["labels"]) if not right] == wrong
    for row in found["pairs"]:
        assert row["chosen"] != row["rejected"]
    for name, column in (("oracle", "labels"), ("outcomes", "label")):
        plain, dealt = ([json.dumps(row[column]) for row in found[kind]] for kind in (name, f"permuted-{name}"))
        assert sorted(plain) == sorted(dealt)
        assert plain != dealt
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.jsonl")}
    world.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.jsonl")} == before


def unit(proof: Any, plan: Any, name: str, seed: int, f1: float | None, scores: list[tuple[float, bool]]) -> None:
    """A finished unit: six pools of these (score, right) samples, whose right answer is r and whose wrong ones w."""
    pool = [
        {"problem": f"p{n}", "correct": right, "answer": "wr"[right], "length": 9 + n, "value": v, "steps": [v, 1.0]}
        for n in range(6)
        for v, right in scores
    ]
    facts = {"f1": f1, "error_accuracy": [f1, 0.0, 1.0], "correct_accuracy": [1.0, 0.9, 1.0], "step_auc": 0.9}
    result = plan.result(name, seed)
    result.parent.mkdir(parents=True)
    costs = {"updates": 900, "tokens": 1000.0, "train_s": 60.0, "measure_s": 5.0}
    result.write_text(json.dumps({"model": name, "seed": seed, **costs, "first_error": facts, "pool": pool}))


def test_the_table_and_its_gates(proof: Any, tmp_path: Path) -> None:
    plan = proof.unit.Plan(tmp_path, (1, 2), 900)
    # Sixteen samples, seven right: majority is wrong, a scorer that sees through it is right.
    seeing = [(0.9, True)] * 7 + [(0.1, False)] * 9
    blind = [(0.5, True)] * 7 + [(0.5, False)] * 9
    fooled = [(0.2, True)] * 7 + [(0.3, False)] * 8 + [(0.99, False)]
    for seed in (1, 2):
        unit(proof, plan, "step-oracle", seed, 0.84 + 0.04 * seed, seeing)
        unit(proof, plan, "implicit-ce", seed, 0.5, seeing)
        unit(proof, plan, "outcome-end", seed, None, blind)
        unit(proof, plan, "outcome-steps", seed, 0.2, fooled)
    unit(proof, plan, "untrained", 1, 0.1, blind)
    found = proof.table.figures(plan)
    held = proof.table.gates(found, long=False)
    gates = {gate.sentence: gate for gate in held}
    failed = {sentence for sentence, gate in gates.items() if not gate.holds}
    assert failed == {"first-error F1 of 'implicit, cross-entropy' at least 90%"}
    assert gates["weighted vote of 16 of 'step head, oracle labels' beats majority by 10 points"].found == "+1.000"
    (flag,) = (gate for sentence, gate in gates.items() if sentence.startswith("over-optimisation"))
    assert "every step" in flag.sentence
    assert flag.holds
    page = proof.table.table(found, held)
    assert "| step head, oracle labels | 2 | 90.0 [88.0, 92.0] |" in page
    assert "| outcome, at the end | 2 | not defined |" in page
    assert "argmax falls" in next(line for line in page.splitlines() if "every step's end" in line and "argmax" in line)
    assert "| digits | 12 | 0.438 [" in page


def test_a_long_run_has_a_higher_bar(proof: Any, tmp_path: Path) -> None:
    plan = proof.unit.Plan(tmp_path, (1,), 2500)
    unit(proof, plan, "step-oracle", 1, 0.9, [(0.9, True)] * 7 + [(0.1, False)] * 9)
    failed = [gate.sentence for gate in proof.table.gates(proof.table.figures(plan), long=True) if not gate.holds]
    assert failed == ["first-error F1 of 'step head, oracle labels' at least 95%"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_short_proof_holds(tmp_path: Path) -> None:
    """The oracle step head and the implicit model from outcomes alone, one seed, 900 updates."""
    command = [sys.executable, str(FOLDER), "--out", str(tmp_path), "--seeds", "1", "--updates", "900"]
    command += ["--models", "step-oracle", "implicit-ce", "untrained"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    # Once more: everything is there, and nothing is trained again.
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert "step-oracle, seed 1" not in again.stdout
