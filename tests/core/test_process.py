"""Starting, bounding and killing whole process trees."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.process import Bounds, descendants, kill_tree, run, run_blocking, start

ESCAPING = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
            time.sleep(1000)
        os._exit(0)
while len(os.listdir(sys.argv[1])) < 3:
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
"""


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended before its state was opened, or read
        return False


def alive(folder: Path) -> list[int]:
    """Which of the processes that left their id in `folder` still run."""
    return [int(path.name) for path in folder.iterdir() if runs(int(path.name))]


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, up to a minute; what must hold then is asserted by who waits."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def until_three(folder: Path) -> None:
    """Wait until the escaping program has left three processes."""
    until(lambda: len(list(folder.iterdir())) >= 3)


def test_a_command_gives_its_output_and_exit_code() -> None:
    done = run_blocking(
        [sys.executable, "-c", "import sys; print(sys.stdin.read()); sys.exit(3)"], wall_s=120, stdin=b"hi"
    )
    assert (done.outcome, done.exit_code, done.stdout, done.left) == ("exited", 3, b"hi\n", 0)
    assert done.cpu_s > 0
    assert done.peak_memory_mib > 1


def test_grandchildren_in_their_own_session_die_at_the_wall_limit(tmp_path: Path) -> None:
    for wall_s in (1.5, 6.0, 24.0):  # a busy machine may need more to make the three
        started = time.monotonic()
        done = run_blocking([sys.executable, "-c", ESCAPING, str(tmp_path), "1000"], wall_s=wall_s)
        assert done.outcome == "timed_out"
        assert time.monotonic() - started < wall_s + 10
        if len(list(tmp_path.iterdir())) >= 3:
            break
    assert len(list(tmp_path.iterdir())) >= 3
    assert alive(tmp_path) == []


def test_grandchildren_in_their_own_session_die_when_the_command_ends(tmp_path: Path) -> None:
    done = run_blocking([sys.executable, "-c", ESCAPING, str(tmp_path), "0"], wall_s=120)
    assert (done.outcome, done.left) == ("exited", 3)
    assert alive(tmp_path) == []


def test_the_tree_dies_with_its_owner_even_after_kill_9(tmp_path: Path) -> None:
    owner = f"""
import sys, time
from assay.process import start
tree = start([sys.executable, "-c", {ESCAPING!r}, {str(tmp_path)!r}, "1000"])
time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", owner], start_new_session=True)
    until_three(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not alive(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
    assert alive(tmp_path) == []


def test_output_beyond_the_limit_is_dropped_and_counted() -> None:
    done = run_blocking([sys.executable, "-c", "print('x' * 1_000_000)"], wall_s=120, output_kib=64)
    assert (done.outcome, len(done.stdout), done.dropped) == ("exited", 64 << 10, 1_000_001 - (64 << 10))


def test_output_beyond_the_limit_ends_the_command_where_asked() -> None:
    endless = "while True: print('x' * 1000)"
    done = run_blocking([sys.executable, "-c", endless], wall_s=120, output_kib=64, stop_at_output=True)
    assert done.outcome == "output_limit"
    assert len(done.stdout) == 64 << 10


def test_a_crash_names_its_signal() -> None:
    done = run_blocking([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], wall_s=120)
    assert (done.outcome, done.signal, done.exit_code) == ("crashed", signal.SIGSEGV, None)


def test_memory_and_cpu_bounds_hold() -> None:
    hungry = run_blocking([sys.executable, "-c", "x = bytearray(1 << 30)"], wall_s=120, bounds=Bounds(memory_mib=256))
    assert hungry.exit_code == 1
    assert b"MemoryError" in hungry.stderr
    busy = run_blocking([sys.executable, "-c", "while True: pass"], wall_s=120, bounds=Bounds(cpu_s=1))
    assert busy.outcome == "crashed"
    assert busy.signal in (signal.SIGXCPU, signal.SIGKILL)


def test_a_missing_program_is_an_error_that_names_it() -> None:
    with pytest.raises(FileNotFoundError, match="'/no/such/program' cannot be started"):
        run_blocking(["/no/such/program"], wall_s=5)


def test_cancelling_a_coroutine_kills_the_tree(tmp_path: Path) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(run([sys.executable, "-c", ESCAPING, str(tmp_path), "1000"], wall_s=1000))
        await asyncio.to_thread(until_three, tmp_path)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    until(lambda: not alive(tmp_path))
    assert alive(tmp_path) == []


def test_commands_run_from_any_thread() -> None:
    results: list[str] = []

    def work() -> None:
        results.append(asyncio.run(run([sys.executable, "-c", "print(1)"], wall_s=120)).outcome)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["exited"] * 3


def test_a_fork_bomb_is_ended() -> None:
    bomb = "import os, time\nfor _ in range(8):\n    try: os.fork()\n    except OSError: pass\ntime.sleep(1000)"
    tree = start([sys.executable, "-c", bomb])
    until(lambda: len(descendants(tree.pid)) > 3)  # it goes off
    below = descendants(tree.pid)
    assert len(below) > 3
    tree.kill()
    assert [pid for pid in below if runs(pid)] == []
    assert descendants(tree.pid) == ()
    tree.close()


def test_kill_tree_spares_what_is_to_be_kept() -> None:
    code = "import subprocess, time\nfor _ in range(2): subprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    tree = start([sys.executable, "-c", code])
    try:
        until(lambda: len(descendants(tree.pid)) >= 3)
        command, kept, other = descendants(tree.pid)
        assert kill_tree(command, root=False, keep=[kept]) == 1
        assert kept in descendants(tree.pid)
        assert other not in descendants(tree.pid)
    finally:
        tree.close()
    assert descendants(tree.pid) == ()
