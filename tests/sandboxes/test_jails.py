"""Jails as a pool: replacement, retries, cancelling, and that nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from assay.component import BuildContext
from assay.contracts.sandbox import Job, JobLimits
from assay.errors import SandboxError
from assay_sandboxes import visit
from assay_sandboxes.home import PREFIX, owner, sweep
from assay_sandboxes.jail import Transport
from assay_sandboxes.options import BubblewrapOptions, LandlockOptions, SubprocessOptions
from assay_sandboxes.plugin import build_bubblewrap, build_landlock, build_subprocess
from assay_sandboxes.sandbox import JailedSandbox

OpenTier = Callable[..., JailedSandbox]
PRINTS_42 = Job(source="print(42)")


def _open_landlock(slots: int = 1) -> JailedSandbox:
    try:
        sandbox = build_landlock(LandlockOptions(slots=slots), BuildContext())
    except SandboxError as error:
        pytest.skip(str(error))
    assert isinstance(sandbox, JailedSandbox)
    return sandbox


def _open_bubblewrap(slots: int = 1) -> JailedSandbox:
    try:
        sandbox = build_bubblewrap(BubblewrapOptions(slots=slots), BuildContext())
    except SandboxError as error:
        pytest.skip(str(error))
    assert isinstance(sandbox, JailedSandbox)
    return sandbox


def _below_us() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if _runs(each)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_new(before: set[int]) -> None:
    """Kills what started below us since; a jail's processes end with the first of them that is killed."""
    for process in _below_us():
        if process.pid not in before:
            with suppress(psutil.NoSuchProcess):
                process.kill()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what other processes do is no event here
            await asyncio.sleep(0.01)


def _folders() -> set[str]:
    return {each.name for each in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*-{os.getpid()}-*")}


@pytest.mark.bubblewrap
def test_a_killed_zygote_costs_one_retry() -> None:
    before = {each.pid for each in _below_us()}
    sandbox = _open_bubblewrap()

    async def run() -> None:
        assert (await sandbox.run(PRINTS_42)).stdout == "42\n"
        idle = len(_below_us())
        running = asyncio.create_task(sandbox.run(Job(source="import time\ntime.sleep(2)\nprint(42)")))
        await _until(lambda: len(_below_us()) > idle)
        _kill_new(before)
        result = await running
        assert (result.outcome, result.stdout) == ("exited", "42\n")
        assert sandbox._candidates[0].slot.starts == 2  # pyright: ignore[reportPrivateUsage]
        _kill_new(before)
        assert sandbox.require(["bash"])["bash"]
        await sandbox.aclose()

    asyncio.run(run())
    assert {each.pid for each in _below_us()} <= before


@pytest.mark.bubblewrap
def test_nothing_is_left_after_closing() -> None:
    folders, processes = _folders(), {each.pid for each in _below_us()}
    sandbox = _open_bubblewrap(slots=2)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(sandbox.run(PRINTS_42))
        assert len(_folders()) == len(folders) + 1
        await sandbox.aclose()
        await sandbox.aclose()

    asyncio.run(run())
    assert _folders() == folders
    assert {each.pid for each in _below_us()} <= processes


@pytest.mark.bubblewrap
def test_nothing_runs_on_after_the_owner_is_killed_and_a_sweep_removes_its_folder() -> None:
    program = (
        "import asyncio, sys\nfrom assay.component import BuildContext\n"
        "from assay.contracts.sandbox import Job, JobLimits\n"
        "from assay_sandboxes.options import BubblewrapOptions\nfrom assay_sandboxes.plugin import build_bubblewrap\n"
        "sandbox = build_bubblewrap(BubblewrapOptions(), BuildContext())\nprint('ready', flush=True)\n"
        "limits = JobLimits(wall_s=600)\n"
        "asyncio.run(sandbox.run(Job(source='import time\\ntime.sleep(600)', limits=limits)))\n"
    )
    owner_process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner_process.stdout is not None
    if owner_process.stdout.readline() != "ready\n":
        owner_process.wait()
        owner_process.stdout.close()
        pytest.skip("bubblewrap does not work here")
    (home,) = Path(tempfile.gettempdir()).glob(f"{PREFIX}-*-{owner_process.pid}-*")
    below = psutil.Process(owner_process.pid).children(recursive=True)
    assert below
    owner_process.send_signal(signal.SIGKILL)
    owner_process.wait()
    owner_process.stdout.close()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []
    sweep()  # another process of this machine may have been first
    assert not home.exists()


def test_a_sweep_leaves_the_living_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # nobody else sweeps there
    mine = owner()
    living = [mine, mine._replace(place="elsewhere", started=1)]
    gone = mine._replace(started=1)
    folders = [Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{a}-{b}-{c}-")) for a, b, c in (*living, gone)]
    assert sweep() == 1
    assert [folder.is_dir() for folder in folders] == [True, True, False]


def test_a_jail_with_something_left_in_it_is_replaced() -> None:
    folders = _folders()
    sandbox = _open_landlock()
    slot = sandbox._candidates[0].slot  # pyright: ignore[reportPrivateUsage]

    async def run() -> None:
        starts = slot.starts
        await sandbox.run(PRINTS_42)
        assert slot.starts == starts
        await sandbox.run(Job(source="import os\nfor n in range(200):\n    os.mkdir('d'); os.chdir('d')\n"))
        assert (await sandbox.run(PRINTS_42)).stdout == "42\n"
        assert slot.starts == starts + 1
        await sandbox.aclose()

    asyncio.run(run())
    assert _folders() == folders


async def _ended_and_free(cancelled: "asyncio.Task[object]", sandbox: JailedSandbox) -> None:
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    async with asyncio.timeout(60):
        assert (await sandbox.run(PRINTS_42)).stdout == "42\n"
    await sandbox.aclose()


def test_a_cancelled_job_frees_its_slot_at_once() -> None:
    sandbox = _open_landlock()

    async def run() -> None:
        limits = JobLimits(wall_s=600)
        idle = len(_below_us())
        running = asyncio.create_task(sandbox.run(Job(source="import time\ntime.sleep(600)", limits=limits)))
        await _until(lambda: len(_below_us()) > idle)
        running.cancel()
        await _ended_and_free(running, sandbox)

    asyncio.run(run())


@pytest.mark.parametrize("busy_with", ["another call", "a new jail"])
def test_a_job_that_is_cancelled_before_it_begins_never_runs(busy_with: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = _open_landlock()
    worker = sandbox._candidates[0]  # pyright: ignore[reportPrivateUsage]
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(60)

    if busy_with == "another call":
        worker.thread.submit(wait)
    else:
        worker.thread.submit(worker.slot._drop).result()  # pyright: ignore[reportPrivateUsage]
        backend = worker.slot._backend  # pyright: ignore[reportPrivateUsage]
        start = backend.start

        def slowly(*, trusted: bool) -> Transport:
            wait()
            return start(trusted=trusted)

        monkeypatch.setattr(backend, "start", slowly)

    async def run() -> None:
        limits = JobLimits(wall_s=600)
        running = asyncio.create_task(sandbox.run(Job(source="import time\ntime.sleep(600)", limits=limits)))
        await _until(begun.is_set)
        running.cancel()
        threading.Timer(0.2, go_on.set).start()
        await _ended_and_free(running, sandbox)

    asyncio.run(run())


def test_the_start_of_a_jail_is_not_charged_to_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = _open_landlock()
    late = 0.0
    backend = sandbox._trusted[0].slot._backend  # pyright: ignore[reportPrivateUsage]
    start = backend.start

    def slowly(*, trusted: bool) -> Transport:
        nonlocal late
        late += 100.0
        return start(trusted=trusted)

    monkeypatch.setattr(backend, "start", slowly)
    monkeypatch.setattr(visit, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late))
    asking = Job(source="print(42)", trusted=True)
    asked, answered = asyncio.run(sandbox.run_pair(asking, Job(source="def f(x):\n    return x\n")))
    assert (asked.outcome, asked.stdout, answered.outcome) == ("exited", "42\n", "exited")
    assert late == 100.0
    asyncio.run(sandbox.aclose())


def test_more_jobs_than_slots_all_run_and_one_that_waits_can_be_cancelled() -> None:
    sandbox = _open_landlock(slots=2)

    async def run() -> None:
        jobs = [asyncio.create_task(sandbox.run(Job(source=f"print({n})"))) for n in range(30)]
        await asyncio.sleep(0)
        jobs[-1].cancel()
        results = [await job for job in jobs[:-1]]
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(29)]
        await sandbox.aclose()

    asyncio.run(run())


def test_one_sandbox_serves_several_event_loops() -> None:
    sandbox = _open_landlock()
    for _ in range(3):
        assert asyncio.run(sandbox.run(PRINTS_42)).stdout == "42\n"
    asyncio.run(sandbox.aclose())


def test_a_closed_sandbox_says_so() -> None:
    sandbox = build_subprocess(SubprocessOptions(unsafe=True), BuildContext())
    asyncio.run(sandbox.aclose())
    with pytest.raises((SandboxError, RuntimeError), match=r"closed|shutdown"):
        asyncio.run(sandbox.run(PRINTS_42))


def test_a_program_that_is_too_long_or_holds_nul_is_not_run(open_tier: OpenTier) -> None:
    sandbox = open_tier("landlock")
    for source in ("print(1)\0", "#" + "x" * (10 << 20)):
        result = asyncio.run(sandbox.run(Job(source=source)))
        assert result.outcome == "build_failed"
        assert result.detail
    with pytest.raises(SandboxError, match="outside the work folder"):
        asyncio.run(sandbox.run(Job(source="", files={"../x": ""})))


def test_bytes_that_are_no_text_come_back_as_escapes(open_tier: OpenTier) -> None:
    sandbox = open_tier("landlock")
    result = asyncio.run(sandbox.run(Job(source="import os\nos.write(1, b'a\\xff\\n')")))
    assert result.stdout == "a\\xff\n"


@pytest.mark.slow
@pytest.mark.bubblewrap
@pytest.mark.parametrize("apart", [True, False])
def test_ten_thousand_jobs_leave_the_zygote_as_it_was(apart: bool) -> None:
    options = BubblewrapOptions(slots=1, namespaces_per_job=apart, recycle_after=1_000_000)
    others = {each.pid for each in _below_us()}
    sandbox = build_bubblewrap(options, BuildContext())
    assert isinstance(sandbox, JailedSandbox)

    def state() -> tuple[int, int, int]:
        ours = [each for each in _below_us() if each.pid not in others]
        (zygote,) = (each for each in ours if not each.children() and "zygote" in " ".join(each.cmdline()))
        return zygote.memory_info().rss, zygote.num_fds(), len(ours)

    async def run() -> None:
        for _ in range(200):
            await sandbox.run(PRINTS_42)
        memory, descriptors, processes = state()
        sources = ("print(42)", "x = [0] * 100_000\nprint(42)", "open('f', 'w').write('x' * 9999)\nprint(42)")
        for number in range(10_000):
            result = await sandbox.run(Job(source=sources[number % 3]))
            assert result.stdout == "42\n"
        after = state()
        assert after[0] <= memory * 1.05
        assert after[1:] == (descriptors, processes)
        assert sandbox._candidates[0].slot.starts == 1  # pyright: ignore[reportPrivateUsage]
        await sandbox.aclose()

    asyncio.run(run())


def test_more_answers_than_calls_end_the_program() -> None:
    sandbox = _open_landlock()
    flood = "import os\ndef square(x):\n    while True: os.write(3, b'\\0\\0\\0\\1x' * 100)\n"
    honest = "def square(x):\n    return x * x\n"
    surplus = honest + "import os\nos.write(3, b'\\0\\0\\0\\0' * 2)\n"
    calls = tuple(f'{{"fn": "square", "args": [{n}]}}' for n in (2, 3))
    limits = JobLimits(wall_s=20, cpu_s=20)

    async def run() -> None:
        flooded = await sandbox.run(Job(source=flood, calls=calls, limits=limits))
        assert (flooded.outcome, flooded.detail, flooded.returns) == ("output_limit", "returns", ())
        one_more = await sandbox.run(Job(source=surplus, calls=calls, limits=limits))
        assert (one_more.outcome, len(one_more.returns)) == ("output_limit", 1)
        answered = await sandbox.run(Job(source=honest, calls=calls, limits=limits))
        assert (answered.outcome, len(answered.returns)) == ("exited", 2)
        await sandbox.aclose()

    asyncio.run(run())
