"""Every write of the log made to fail in turn, at the system call: nothing that was acknowledged is lost."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

FAULTS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* The n-th call that changes a file of the log fails with `code`; with `lasting` every later one too. */
static volatile int armed, left, lasting, code, done;

void arm(int n, int error, int forever) { left = n; code = error; lasting = forever; done = 0; armed = 1; }
int disarm(void) { armed = 0; return done; }

static int fails(int file) {
    char name[64], path[4096];
    if (!armed) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t size = readlink(name, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    if (!strstr(path, "log.sqlite")) return 0;
    int now = __sync_sub_and_fetch(&left, 1);
    if (now == 0 || (now < 0 && lasting)) { done = 1; errno = code; return 1; }
    return 0;
}

#define WRAP(type, name, declared, given) \
    type name declared { \
        static type (*real) declared; \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        return fails(file) ? -1 : real given; \
    }
WRAP(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
WRAP(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
WRAP(ssize_t, pwrite64, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
WRAP(int, ftruncate, (int file, off_t size), (file, size))
WRAP(int, ftruncate64, (int file, off_t size), (file, size))
WRAP(int, fsync, (int file), (file))
WRAP(int, fdatasync, (int file), (file))
"""

WRITER = """
import ctypes, errno, json, sys
from pathlib import Path
from assay.contracts import Reward, RunInfo
from assay.errors import StoreError
from assay.store import RunStore, writer
from assay.testing.fakes import make_rollout, make_task

faults = ctypes.CDLL(sys.argv[1])
folder, stride, error, lasting = Path(sys.argv[2]), int(sys.argv[3]), getattr(errno, sys.argv[4]), int(sys.argv[5])
writer._CARRY_BYTES = 20_000  # so that the faults also meet the log being carried over
task = make_task("t1")

def write(run, acknowledged):
    store = RunStore.create(run, RunInfo(id="run", name="n", kind="rlvr", folder=str(run), seed=1))
    try:
        for index in range(60):
            rollout = make_rollout("x" * 900, f"r{index:03d}", task_id="t1", group_id="g")
            store.add_rollout(rollout, step=0, task=task)
            store.add_reward(Reward(rollout_id=rollout.id, value=0.5), step=0, group_id="g")
            store.flush()
            acknowledged.append(rollout.id)
    finally:
        store.close()

for n in range(1, 201, stride):
    run, acknowledged, complaint = folder / str(n), [], ""
    faults.arm(n, error, lasting)
    try:
        write(run, acknowledged)
    except StoreError as found:
        complaint = str(found)
    hit = faults.disarm()
    try:
        with RunStore.open(run) as store:
            kept = [entry.rollout.id for entry in store.rollouts() if entry.reward is not None]
            store.mark_group(1, "g", "keep", "")
            refused = ""
    except StoreError as found:
        kept, refused = [], str(found)
    print(json.dumps({"n": n, "hit": hit, "acknowledged": acknowledged, "complaint": complaint, "kept": kept,
                      "refused": refused}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose system calls fail on demand, to be put in front of a process's own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make system calls fail with")
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(FAULTS, encoding="utf-8")
    command = [compiler, "-shared", "-fPIC", "-o", "faults.so", "faults.c", "-ldl"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"no library to make system calls fail with: {built.stderr.strip()[-200:]}")
    return folder / "faults.so"


def written(library: Path, folder: Path, stride: int, error: str, lasting: bool) -> Sequence[dict[str, Any]]:
    """What became of each run whose n-th write failed."""
    values = [str(library), str(folder), str(stride), error, str(int(lasting))]
    done = subprocess.run(
        [sys.executable, "-c", WRITER, *values],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


EVERY = [
    pytest.param(1, error, lasting, marks=pytest.mark.slow) for error in ("EIO", "ENOSPC") for lasting in (False, True)
]


@pytest.mark.parametrize(("stride", "error", "lasting"), [(11, "EIO", False), (11, "ENOSPC", True), *EVERY])
def test_a_fault_at_any_write_loses_nothing_that_was_acknowledged(
    stride: int, error: str, lasting: bool, library: Path, tmp_path: Path
) -> None:
    found = written(library, tmp_path, stride, error, lasting)
    assert [run["n"] for run in found] == list(range(1, 201, stride))
    for run in found:
        assert run["hit"], run
        assert run["kept"][: len(run["acknowledged"])] == run["acknowledged"], run
        assert run["kept"] == sorted(set(run["kept"])), run
        # One sentence, and only where the rest could not be written; of a log that was never whole nothing is left.
        assert run["complaint"] or len(run["acknowledged"]) == 60, run
        assert not run["refused"] or ("there is no log here" in run["refused"] and not run["acknowledged"]), run
    assert sum(len(run["acknowledged"]) < 60 for run in found) > 0.8 * len(found)
    assert len({len(run["acknowledged"]) for run in found}) > 5
