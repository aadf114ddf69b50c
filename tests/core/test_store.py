"""The run's log: what is written comes back, one writer, resume, and the export."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from assay.contracts import Judgement, Reward, Rollout, RunInfo, Verdict
from assay.errors import StoreError
from assay.store import RunStore, export_jsonl, export_parquet, unjudged, used_at
from assay.testing.fakes import make_rollout, make_task

TASK = make_task("t1", prompt="2 + 2?", reference="4")


def info(folder: Path) -> RunInfo:
    return RunInfo(id=folder.name, name="test", kind="rlvr", folder=str(folder), seed=7)


def judgement(rollout: Rollout, verdict: Verdict, source: str = "math") -> Judgement:
    return Judgement(
        rollout_id=rollout.id,
        task_id=rollout.task_id,
        source=source,
        version="1.0",
        options_hash="o",
        input_hash="i",
        verdict=verdict,
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        latency_s=0.25,
    )


def fill(store: RunStore, *, groups: int = 3, size: int = 4) -> list[Rollout]:
    """Groups `g0`, `g1`, ... of one step each; the second rollout of every group is abstained on, the third failed."""
    made: list[Rollout] = []
    for group in range(groups):
        for sample in range(size):
            rollout = make_rollout(f"answer {sample}", f"r{group}-{sample}", task_id="t1", group_id=f"g{group}")
            store.add_rollout(rollout, step=group + 1, task=TASK)
            verdict = Verdict.score(1.0, evidence="equal")
            if sample == 1:
                verdict = Verdict.abstain("no answer")
            if sample == 2:
                verdict = Verdict(status="failed", reason="timed out", fault="ours")
            store.add_judgement(judgement(rollout, verdict))
            reward = Reward(rollout_id=rollout.id, value=verdict.value, reason=verdict.reason)
            store.add_reward(reward, step=group + 1, group_id=rollout.group_id)
            made.append(rollout)
    store.flush()
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """A new store, closed afterwards."""
    with RunStore.create(tmp_path / "run", info(tmp_path / "run")) as made:
        yield made


def test_a_rollout_comes_back_with_task_reward_and_judgements(store: RunStore) -> None:
    rollouts = fill(store)
    entry = store.rollout("r1-1")
    assert entry.rollout == rollouts[5]
    assert entry.task == TASK
    assert entry.step == 2
    assert entry.reward is not None
    assert (entry.reward.value, entry.reward.reason) == (None, "no answer")
    assert entry.judgements == (judgement(rollouts[5], Verdict.abstain("no answer")),)
    assert store.info.seed == 7
    assert (store.count_rollouts(), store.count_judgements()) == (12, 12)
    assert (store.steps(), store.groups(2)) == ([1, 2, 3], ["g1"])


def test_a_unique_beginning_is_enough(store: RunStore) -> None:
    fill(store)
    assert store.rollout("r2-3").rollout.id == "r2-3"
    with pytest.raises(StoreError, match="'r2' is the beginning of several rollouts: r2-0, r2-1, r2-2, \\.\\.\\."):
        store.rollout("r2")
    with pytest.raises(StoreError, match="no rollout 'q'; list some with: assay show run"):
        store.rollout("q")


def test_filters_follow_step_status_and_source(store: RunStore) -> None:
    rollouts = fill(store)
    store.add_judgement(judgement(rollouts[0], Verdict.abstain("x"), source="judge"))
    store.flush()
    assert [e.rollout.id for e in store.rollouts(step=2)] == ["r1-0", "r1-1", "r1-2", "r1-3"]
    assert [e.rollout.id for e in store.rollouts(status="failed")] == ["r0-2", "r1-2", "r2-2"]
    assert [e.rollout.id for e in store.rollouts(status="failed", limit=1)] == ["r0-2"]
    assert [e.rollout.id for e in store.rollouts(source="judge")] == ["r0-0"]
    assert [e.rollout.id for e in store.rollouts(status="abstained", source="judge")] == ["r0-0"]
    assert [e.rollout.id for e in store.rollouts(status="scored", step=3)] == ["r2-0", "r2-3"]
    assert [e.rollout.id for e in store.rollouts(group_id="g1", limit=2)] == ["r1-0", "r1-1"]


def test_pages_join_without_gap_or_repetition(store: RunStore) -> None:
    fill(store, groups=300, size=4)
    assert [e.rollout.id for e in store.rollouts()] == [
        f"r{group}-{sample}" for group in range(300) for sample in range(4)
    ]


def test_what_is_judged_again_replaces_what_was_said_before(store: RunStore) -> None:
    rollout = fill(store, groups=1)[0]
    store.add_judgement(judgement(rollout, Verdict.score(0.5)))
    store.add_reward(Reward(rollout_id=rollout.id, value=0.5), step=1, group_id="g0")
    store.flush()
    entry = store.rollout(rollout.id)
    assert [j.value for j in entry.judgements] == [0.5]
    assert entry.reward is not None
    assert entry.reward.value == 0.5


def test_resume_keeps_what_the_checkpoint_has_not_seen(store: RunStore) -> None:
    rollouts = fill(store)
    pending = make_rollout("late", "r9-0", task_id="t1", group_id="g9")
    store.add_rollout(pending, step=4, task=TASK)
    store.mark_group(1, "g0", "keep", "")
    store.mark_group(2, "g1", "keep", "")
    store.mark_group(2, "g2", "drop", "all_equal")
    store.flush()
    after_first = store.unfinished_groups(after_step=1)
    assert set(after_first) == {"g1", "g2", "g9"}
    rollout, reward = after_first["g1"]["r1-0"]
    assert rollout == rollouts[4]
    assert reward is not None
    assert reward.value == 1.0
    assert after_first["g9"] == {"r9-0": (pending, None)}
    assert set(store.unfinished_groups(after_step=2)) == {"g9"}
    assert unjudged(store) == ["r9-0"]
    assert used_at(store) == {"g0": 1, "g1": 2}
    assert [(mark.group_id, mark.action, mark.reason) for mark in store.marks(2)] == [
        ("g1", "keep", ""),
        ("g2", "drop", "all_equal"),
    ]


def test_a_second_writer_is_refused_with_the_pid(store: RunStore) -> None:
    with pytest.raises(StoreError, match=rf"run: in use by pid {os.getpid()} since \d\d:\d\d\. Look at it with: assay"):
        RunStore.open(store.folder)
    with RunStore.open(store.folder, read_only=True) as reader:
        assert reader.count_rollouts() == 0
        with pytest.raises(StoreError, match="opened for reading only"):
            reader.mark_group(1, "g", "keep", "")


def test_a_reader_sees_what_a_writer_has_committed(store: RunStore) -> None:
    with RunStore.open(store.folder, read_only=True) as reader:
        fill(store)
        assert reader.count_rollouts() == 12


def test_a_log_is_not_overwritten(store: RunStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="there is a log here already"):
        RunStore.create(store.folder, info(store.folder))
    with pytest.raises(StoreError, match=r"there is no log here; is .*elsewhere a run folder\?"):
        RunStore.open(store.folder / "elsewhere")


def test_everything_is_there_after_closing_and_opening_again(store: RunStore) -> None:
    rollouts = fill(store)
    store.close()
    with RunStore.open(store.folder) as again:
        assert [entry.rollout for entry in again.rollouts()] == rollouts
        again.mark_group(1, "g0", "keep", "")
    with RunStore.open(store.folder, read_only=True) as reader:
        assert used_at(reader) == {"g0": 1}


def test_exports_hold_a_row_per_rollout(store: RunStore, tmp_path: Path) -> None:
    fill(store)
    store.mark_group(1, "g0", "keep", "")
    store.flush()
    assert export_jsonl(store, tmp_path / "out.jsonl") == 12
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["reward"] for row in rows[:4]] == [1.0, None, None, 1.0]
    assert (rows[0]["trained_at"], rows[4]["trained_at"]) == (1, None)
    assert rows[2]["judgements"][0]["verdict"]["reason"] == "timed out"
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export_parquet(store, tmp_path / "out.parquet") == 12
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 12


def test_judgements_survive_kill_9_one_second_after_they_came(tmp_path: Path) -> None:
    lost: dict[float, int] = {}
    for after_s in (1.0, 4.0, 16.0):  # a busy disk may need more
        due, kept, added = killed(tmp_path / f"{after_s}", after_s)
        assert due > 0
        assert 0 < kept <= added + 1
        lost[after_s] = due - kept
        if due <= kept:
            break
    assert min(lost.values()) <= 0, lost


def killed(folder: Path, after_s: float) -> tuple[int, int, int]:
    """How many judgements were `after_s` seconds old when their process was killed, are in the log, were added."""
    code = f"""
import sys, time
from pathlib import Path
from datetime import UTC, datetime
from assay.contracts import Judgement, RunInfo, Verdict
from assay.store import RunStore
folder = Path({str(folder)!r})
store = RunStore.create(folder, RunInfo(id="run", name="n", kind="rlvr", folder=str(folder), seed=1))
for index in range(100000):
    store.add_judgement(Judgement(rollout_id=f"r{{index}}", task_id="t", source="s", version="1", options_hash="o",
        input_hash="i", verdict=Verdict.score(1.0), started_at=datetime.now(UTC), latency_s=0.0))
    print(index, time.time(), flush=True)
    time.sleep(0.001)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    time.sleep(after_s + 1.5)
    killed_at = time.time()
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    added = [line.split() for line in lines if len(line.split()) == 2]
    due = sum(float(at) < killed_at - after_s for _, at in added)
    with RunStore.open(folder) as store:
        return due, store.count_judgements(), len(added)
