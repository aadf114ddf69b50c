"""A full disk and a damaged file: one sentence, nothing acknowledged lost, nothing wrong loaded."""

import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from assay.contracts import Reward, RunInfo, Verdict
from assay.errors import StoreError
from assay.store import RunStore
from assay.testing.fakes import make_rollout, make_task

TASK = make_task("t1", prompt="2 + 2?", reference="4")
WRITER = """
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from assay.contracts import Reward, RunInfo
from assay.errors import StoreError
from assay.store import RunStore
from assay.testing.fakes import make_rollout, make_task

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
task = make_task("t1")
try:
    if (folder / "log.sqlite").exists():
        store = RunStore.open(folder)
    else:
        store = RunStore.create(folder, RunInfo(id="run", name="n", kind="rlvr", folder=str(folder), seed=1))
    first = store.count_rollouts()
    for index in range(first, first + limit):
        rollout = make_rollout("x" * 1000, f"r{index:06d}", task_id="t1", group_id=f"g{index}")
        store.add_rollout(rollout, step=1, task=task)
        store.add_reward(Reward(rollout_id=rollout.id, value=1.0), step=1, group_id=rollout.group_id)
        if index % 50 == 49:
            store.flush()
            print(index + 1, flush=True)
    store.close()
except StoreError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def write(folder: Path, count: int, *, file_bytes: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Write rollouts in a process of its own, whose files may not grow beyond `file_bytes`."""

    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    command = [sys.executable, "-c", WRITER, str(folder), str(count)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)


def acknowledged(done: "subprocess.CompletedProcess[str]") -> int:
    return int((done.stdout.split() or ["0"])[-1])


def small_run(folder: Path) -> None:
    with RunStore.create(folder, RunInfo(id="run", name="n", kind="rlvr", folder=str(folder), seed=1)) as store:
        for index in range(60):
            rollout = make_rollout(f"answer {index} " * 10, f"r{index}", task_id="t1", group_id=f"g{index // 4}")
            store.add_rollout(rollout, step=index // 8, task=TASK)
            verdict = Verdict.score(1.0, evidence="equal") if index % 3 else Verdict.abstain("no answer")
            store.add_reward(Reward(rollout_id=rollout.id, value=verdict.value), step=1, group_id=rollout.group_id)
        store.mark_group(1, "g0", "keep", "")


def content(store: RunStore) -> list[object]:
    return [*store.rollouts(), *store.marks(), store.info, store.unfinished_groups(after_step=1)]


def test_a_file_that_cannot_grow_keeps_all_that_was_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = write(folder, 5000, file_bytes=1_000_000)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert str(folder / "log.sqlite") in done.stderr
    before = acknowledged(done)
    assert before > 0
    with RunStore.open(folder, read_only=True) as store:
        assert store.count_rollouts() >= before
    again = write(folder, 100)
    assert again.returncode == 0, again.stderr
    with RunStore.open(folder) as store:
        assert store.count_rollouts() >= before + 100


@pytest.mark.slow
@pytest.mark.parametrize("mib", [4, 8, 16])
def test_a_full_disk_is_one_sentence_and_resumes_when_there_is_room(mib: int, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a tmpfs here")
    try:
        for point in range(20):
            folder, filler = place / f"run{point}", place / "filler"
            room = int((mib << 20) * (1 - point / 22))
            filler.write_bytes(b"x" * max(0, shutil.disk_usage(place).free - room))
            done = write(folder, 40_000)
            assert done.returncode == 2, (point, done.stderr)
            assert "Traceback" not in done.stderr
            assert "the disk is full" in done.stderr
            assert str(folder) in done.stderr
            assert "bytes are needed" in done.stderr
            filler.unlink()
            if (folder / "log.sqlite").exists() and acknowledged(done):
                # What is to be carried over fits into the log's bound, one transaction, and the rows of the resume.
                ahead = (folder / "log.sqlite-wal").stat().st_size
                assert ahead < 12 << 20
                subprocess.run(
                    ["mount", "-o", f"remount,size={(mib << 20) + ahead + (1 << 20)}", str(place)], check=True
                )
                with RunStore.open(folder, read_only=True) as store:
                    assert store.count_rollouts() >= acknowledged(done)
                again = write(folder, 100)
                assert again.returncode == 0, again.stderr
                subprocess.run(["rm", "-r", str(folder)], check=True)
                subprocess.run(["mount", "-o", f"remount,size={mib}m", str(place)], check=True)
            elif folder.exists():
                shutil.rmtree(folder)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_flipped_bit_is_never_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small_run(folder)
    with RunStore.open(folder) as store:
        expected = content(store)
    original = (folder / "log.sqlite").read_bytes()
    generator = random.Random(7)
    complaints: list[str] = []
    for _ in range(100):
        data = bytearray(original)
        offset = generator.randrange(len(data))
        data[offset] ^= 1 << generator.randrange(8)
        (folder / "log.sqlite").write_bytes(data)
        try:
            with RunStore.open(folder) as store:
                assert content(store) == expected, f"a flipped bit at {offset} was loaded"
        except StoreError as error:
            complaints.append(str(error))
    assert all(str(folder / "log.sqlite") in complaint for complaint in complaints)
    assert len(complaints) > 15  # the rest hit unused space of pages


def test_a_cut_file_is_never_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small_run(folder)
    original = (folder / "log.sqlite").read_bytes()
    generator = random.Random(7)
    for _ in range(30):
        (folder / "log.sqlite").write_bytes(original[: generator.randrange(len(original))])
        with pytest.raises(StoreError, match=r"log\.sqlite"), RunStore.open(folder) as store:
            content(store)


def test_another_version_and_other_files_are_refused(tmp_path: Path) -> None:

    folder = tmp_path / "run"
    small_run(folder)
    connection = sqlite3.connect(folder / "log.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"written by another version \(schema 99, this assay reads 1\)"):
        RunStore.open(folder)
    (folder / "log.sqlite").write_bytes(os.urandom(5000))
    with pytest.raises(StoreError, match="the log is damaged: file is not a database"):
        RunStore.open(folder)
    (folder / "log.sqlite").unlink()
    connection = sqlite3.connect(folder / "log.sqlite")
    connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(StoreError, match="it is not a log of assay"):
        RunStore.open(folder)
