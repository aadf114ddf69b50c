"""The conformance suite of a sandbox, ours or anybody's: it must behave, and prove each guarantee that it declares.

    from assay.testing import sandbox_suite
    test_vault = sandbox_suite("vault", options={"slots": 1})

The programs are attacks, bounded so that a sandbox that holds nothing survives them. After every check the next job
must still print 42. A guarantee that is not declared is skipped with that reason, never counted as passed. Linux only:
the suite looks for what a job left behind.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import psutil

from assay.component import BuildContext, Component
from assay.contracts.sandbox import Guarantee, Job, JobLimits, RunResult
from assay.errors import SandboxError
from assay.protocols import ProgramSandbox, Sandbox
from assay.registry import Registry
from assay.testing.reward_suite import CheckResult

GRACE_S = 0.5
"""How much longer than its wall limit a job may hold its slot; and what a busy machine may add is asked apart."""
BUSY_S = 10.0
OUTSIDE = ("/usr", "/etc", "/root", "/var/tmp", "/home")  # noqa: S108 - places that a job must not be able to write to
PLACES = ("/tmp", "/dev/shm", "/var/tmp", "/dev/mqueue", "/run")  # noqa: S108 - where state could pass from job to job
Wrong = list[str]
Check = Callable[[Sandbox], Awaitable[Wrong]]
_SECRET = "ASSAY_SUITE_SECRET_TOKEN"  # noqa: S105 - the name of a variable that must not be seen inside


async def _run(sandbox: Sandbox, source: str, *, stdin: str = "", **limits: Any) -> RunResult:
    return await sandbox.run(Job(source=source, stdin=stdin, limits=JobLimits(**limits)))


def _unless(condition: bool, what: str, result: RunResult) -> Wrong:
    if condition:
        return []
    said = (result.stdout + result.stderr).strip()[-160:]
    return [f"{what}; it ended as {result.outcome} {result.exit_code} {result.detail!r} saying {said!r}"]


# ---- Behaviour that every sandbox has -------------------------------------------------------------------------------


async def _streams(sandbox: Sandbox) -> Wrong:
    source = "import sys\nprint(sys.stdin.read()[::-1], end='')\nprint('no', file=sys.stderr)\nsys.exit(3)\n"
    result = await _run(sandbox, source, stdin="h\u00e9llo \U0001f40d")
    good = (result.outcome, result.exit_code, result.stdout, result.stderr) == (
        "exited",
        3,
        "\U0001f40d oll\u00e9h",
        "no\n",
    )
    return _unless(good, "input, output, error and status did not all come through", result)


async def _exits(sandbox: Sandbox) -> Wrong:
    wrong: Wrong = []
    for source, code in (("exit()", 0), ("1/0", 1), ("raise SystemExit('x')", 1), ("import os; os._exit(7)", 7)):
        result = await _run(sandbox, source)
        wrong += _unless(
            result.outcome == "exited" and result.exit_code == code, f"{source!r} must exit {code}", result
        )
    result = await _run(sandbox, "import ctypes\nctypes.string_at(0)")
    return wrong + _unless(result.outcome == "crashed", "a segmentation fault must be a crash", result)


async def _calls(sandbox: Sandbox) -> Wrong:
    source = "def f(x, y=1):\n    return (x, y)\nclass A:\n    def g(self):\n        return {1: float('nan')}\n"
    calls = [{"fn": "f", "args": [[1, 2.5]], "kwargs": {"y": None}}, {"fn": "A().g"}, {"fn": "nothing"}, {"fn": "f"}]
    result = await sandbox.run(Job(source=source, calls=tuple(json.dumps(call) for call in calls)))
    answers: list[dict[str, Any]] = [json.loads(text) for text in result.returns]
    found = [answer.get("v", answer.get("e")) for answer in answers]
    nan = {"t": "dict", "v": [[1, {"t": "float", "v": "nan"}]]}
    expected = [{"t": "tuple", "v": [[1, 2.5], None]}, nan, "NameError", "TypeError"]
    return _unless(found == expected, f"four calls gave {found}", result)


async def _outputs(sandbox: Sandbox) -> Wrong:
    flood = "import os\nwhile True:\n    os.write({fd}, b'x' * 65536)\n"
    wrong: Wrong = []
    for fd in (1, 2):
        result = await _run(sandbox, flood.format(fd=fd), output_kib=64, wall_s=10)
        kept = len(result.stdout) + len(result.stderr)
        wrong += _unless(result.outcome == "output_limit" and kept <= 64 << 10, "a flood must end at the cap", result)
    return wrong


async def _wall(sandbox: Sandbox) -> Wrong:
    source = "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    source += (
        "    except (OSError, ValueError): pass\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass\n"
    )
    began = time.monotonic()
    result = await _run(sandbox, source, wall_s=1.0, cpu_s=5)
    took = time.monotonic() - began
    wrong = _unless(result.outcome == "timed_out", "a sleeper must time out", result)
    return wrong + _unless(took <= 1.0 + GRACE_S + BUSY_S, f"a limit of 1 s took {took:.2f} s", result)


async def _fresh(sandbox: Sandbox) -> Wrong:
    source = (
        "import builtins, os\nprint(len(os.listdir('.')), hasattr(builtins, 'spoiled'))\nbuiltins.spoiled = 1\n"
        "for n in range(5):\n    os.makedirs(f'd{n}/e'); open(f'd{n}/e/f', 'w').write('x'); os.chmod(f'd{n}/e', 0)\n"
        "os.symlink('/', 'root')\nos.mkfifo('fifo')\n"
    )
    first = await _run(sandbox, source)
    second = await _run(sandbox, source)
    return _unless(first.stdout == second.stdout == "0 False\n", "a second job saw what the first had done", second)


# ---- Guarantees -----------------------------------------------------------------------------------------------------


async def _no_network(sandbox: Sandbox) -> Wrong:
    name = f"assay-suite-{secrets.token_hex(6)}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        source = (
            "import socket\ndef tried(family, kind, address):\n    try:\n        s = socket.socket(family, kind)\n"
            "        s.settimeout(2); s.connect(address); print('open', address)\n    except OSError:\n        pass\n"
            "tried(socket.AF_INET, socket.SOCK_DGRAM, ('192.0.2.1', 53))\n"
            "tried(socket.AF_INET6, socket.SOCK_DGRAM, ('2001:db8::1', 53))\n"
            f"tried(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {server.getsockname()[1]}))\n"
            f"tried(socket.AF_UNIX, socket.SOCK_STREAM, '\\0{name}')\n"
            "tried(socket.AF_UNIX, socket.SOCK_STREAM, '/var/run/docker.sock')\nprint('done')\n"
        )
        result = await _run(sandbox, source)
    return _unless(result.stdout == "done\n", "something could be reached", result)


def _open_secret(folder: Path) -> Path:
    """A file of the host that everybody may read and write."""
    secret = folder / "secret"
    secret.write_text("a secret", "utf-8")
    secret.chmod(0o666)
    folder.chmod(0o755)
    return secret


async def _private_files(sandbox: Sandbox) -> Wrong:
    mark = f"assay-suite-{secrets.token_hex(6)}"
    try:
        return await _sees_nothing(sandbox, mark) + await _leaves_nothing(sandbox, mark)
    finally:
        # Where a tier holds nothing, its jobs write to this very machine.
        for folder in (*OUTSIDE, *PLACES):
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}/{mark}")


async def _sees_nothing(sandbox: Sandbox, mark: str) -> Wrong:
    with tempfile.TemporaryDirectory() as folder:
        secret = _open_secret(Path(folder))
        seen = (
            "import os\nfor path in ('/etc/passwd', '/etc/shadow', '/root/.bashrc', '/proc/1/environ', "
            f"f'/proc/{{os.getppid()}}/environ', {str(secret)!r}, '/var/log/dpkg.log'):\n"
            "    try: print('read', path, open(path, 'rb').read(20))\n    except OSError: pass\n"
            f"for path in ({folder!r}, *{OUTSIDE!r}):\n"
            f"    try: open(path + '/{mark}', 'w'); print('wrote', path)\n    except OSError: pass\n"
            f"try: open({str(secret)!r}, 'a').write('!'); print('wrote the secret')\nexcept OSError: pass\n"
            f"print([k for k in os.environ if k == {_SECRET!r}])\n"
        )
        result = await _run(sandbox, seen)
        # A container has an /etc of its own image: a file that is not the host's is no leak.
        leaks = [line for line in result.stdout.splitlines() if line != "[]" and "/etc/passwd" not in line]
        return _unless(not leaks and result.outcome == "exited", f"a job could reach {leaks}", result)


async def _leaves_nothing(sandbox: Sandbox, mark: str) -> Wrong:
    state = (
        f"import os\nplaces = [place for place in ('.', *{PLACES!r}) if os.path.isdir(place)]\n"
        f"print(any(os.path.exists(p + '/{mark}') for p in places))\n"
        f"for p in places:\n    try: open(p + '/{mark}', 'w').close()\n    except OSError: pass\n"
    )
    await _run(sandbox, state)
    result = await _run(sandbox, state)
    return _unless(result.stdout == "False\n", "a job saw what the one before it left", result)


async def _memory_limit(sandbox: Sandbox) -> Wrong:
    private = "hoard = []\nfor _ in range(1024):\n    hoard.append(b'\\1' * (1 << 20))\nprint('got it')\n"
    shared = "import mmap\nhoard = []\nfor _ in range(64):\n    m = mmap.mmap(-1, 16 << 20)\n    hoard.append(m)\n"
    shared += "    for n in range(0, 16 << 20, 4096): m[n] = 1\nprint('got it')\n"
    wrong: Wrong = []
    for source in (private, shared):
        result = await _run(sandbox, source, memory_mib=128, wall_s=20, cpu_s=15)
        wrong += _unless("got it" not in result.stdout, "1 GiB could be used under a limit of 128 MiB", result)
        wrong += _unless(result.peak_memory_mib < 400, f"the peak was {result.peak_memory_mib:.0f} MiB", result)
    return wrong


async def _disk_limit(sandbox: Sandbox) -> Wrong:
    many = "for n in range(64):\n    with open(f'f{n}', 'wb') as f:\n        f.write(b'\\1' * (4 << 20))\n"
    many += "print('got it')\n"
    one = "with open('f', 'wb') as f:\n    for n in range(64):\n        f.write(b'\\1' * (4 << 20))\nprint('got it')\n"
    nodes = "for n in range(100_000):\n    open(f'n{n}', 'w').close()\nprint('got it')\n"
    wrong: Wrong = []
    for source in (many, one):
        result = await _run(sandbox, source, disk_mib=16, wall_s=20, cpu_s=15)
        wrong += _unless("got it" not in result.stdout, "256 MiB could be written under a limit of 16 MiB", result)
    # Inodes are bounded where the tier can; what counts is that the next job works, which is checked after this.
    await _run(sandbox, nodes, disk_mib=16, wall_s=20, cpu_s=15)
    return wrong


async def _cpu_limit(sandbox: Sandbox) -> Wrong:
    spin = "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    spin += "    except (OSError, ValueError): pass\nwhile True: pass\n"
    result = await _run(sandbox, spin, cpu_s=1, wall_s=30)
    wrong = _unless(result.outcome == "timed_out", "a spinner must time out", result)
    return wrong + _unless(result.cpu_s <= 2.5, f"{result.cpu_s:.1f} s of CPU were used under a limit of 1 s", result)


async def _kills_tree(sandbox: Sandbox) -> Wrong:
    mark = f"as{secrets.token_hex(5)}"
    source = (
        "import ctypes, os, sys, time\nlibc = ctypes.CDLL(None)\n"
        f"libc.prctl(15, b'{mark}', 0, 0, 0)\n"
        "def child():\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\n"
        "try:\n    for _ in range(3):\n        if os.fork() == 0: child()\nexcept OSError: pass\nprint('left')\n"
    )
    result = await _run(sandbox, source, wall_s=50)
    deadline = time.monotonic() + BUSY_S
    while left := _named(mark):  # a killed process may take a moment to be gone
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wrong = _unless(not left, f"{len(left)} processes outlived their job", result)
    return wrong + _unless(result.wall_s < 45, "a daemon held the job open", result)


async def _other_user(sandbox: Sandbox) -> Wrong:
    mark = f"as{secrets.token_hex(5)}"
    source = f"import ctypes, time\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)\ntime.sleep(3)\n"
    running = asyncio.create_task(_run(sandbox, source, wall_s=10))
    users: set[int] = set()
    while not running.done() and not users:
        await asyncio.sleep(0.05)
        with contextlib.suppress(psutil.Error):
            users = {process.uids().real for process in _named(mark)}
    result = await running
    if not users:
        return _unless(False, "the job's process was never seen on this host", result)
    return _unless(not users & {0, os.getuid()}, f"the job ran as user {sorted(users)}", result)


def _named(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _name(process) == mark]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


# ---- Bad input, languages, visits -----------------------------------------------------------------------------------


async def _bad_input(sandbox: Sandbox) -> Wrong:
    wrong: Wrong = []
    for source in ("print(1)\0", "\u00e9 = (", "x = '" + "a" * (10 << 20) + "'", "[" * 100_000, "", "\ufeffprint(1)"):
        result = await _run(sandbox, source, wall_s=5)
        failed = result.outcome != "exited" or result.exit_code != 0
        wrong += _unless(failed or source in ("", "\ufeffprint(1)"), f"{source[:20]!r} must not succeed", result)
    return wrong


async def _visits(sandbox: Sandbox) -> Wrong:
    if not isinstance(sandbox, ProgramSandbox):
        return []
    jobs = [Job(source="print(int(input()) * 2)", stdin=f"{number}\n") for number in range(5)]
    outputs: list[str] = []
    async with contextlib.aclosing(sandbox.run_each(jobs)) as results:
        async for result in results:
            outputs.append(result.stdout)
            if len(outputs) == 3:
                break
    return [] if outputs == ["0\n", "2\n", "4\n"] else [f"a visit of one program gave {outputs}"]


BEHAVIOURS: dict[str, Check] = {
    "streams and status": _streams,
    "exits and crashes": _exits,
    "calls": _calls,
    "output caps": _outputs,
    "wall limit": _wall,
    "fresh for every job": _fresh,
    "bad input": _bad_input,
    "visits": _visits,
}
GUARANTEES: dict[Guarantee, Check] = {
    "no_network": _no_network,
    "private_files": _private_files,
    "memory_limit": _memory_limit,
    "disk_limit": _disk_limit,
    "cpu_limit": _cpu_limit,
    "kills_tree": _kills_tree,
    "other_user": _other_user,
}
assert set(GUARANTEES) == set(get_args(Guarantee))


def run_sandbox_suite(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    component: Component[Any, Sandbox] | None = None,
    context: BuildContext | None = None,
) -> list[CheckResult]:
    """The result of every check of the sandbox `name`, in a fixed order; raises `SandboxError` if it does not start.

    `component` tests one that is not installed. The variable `ASSAY_SUITE_SECRET_TOKEN` is set before it is built.
    """
    found = component or Registry.load().component("sandbox", name)
    return asyncio.run(_all(found, dict(options or {}), context or BuildContext()))


async def _all(component: Component[Any, Sandbox], options: dict[str, Any], context: BuildContext) -> list[CheckResult]:
    results: list[CheckResult] = []
    async with _opened(component, options, context) as sandbox:
        declared = sandbox.guarantees
        for name, check in [*BEHAVIOURS.items(), *GUARANTEES.items()]:
            if name in GUARANTEES and name not in declared:
                results.append(CheckResult(name, "skipped", "it is not declared"))
                continue
            try:
                wrong = await check(sandbox)
                after = await _run(sandbox, "print(6 * 7)")
                wrong += _unless(after.stdout == "42\n", "the next job did not print 42", after)
            except SandboxError as error:
                wrong = [f"raised SandboxError: {error}"]
            results.append(CheckResult(name, "failed" if wrong else "passed", "; ".join(wrong)))
    return results


@contextlib.asynccontextmanager
async def _opened(
    component: Component[Any, Sandbox], options: dict[str, Any], context: BuildContext
) -> AsyncGenerator[Sandbox, None]:
    os.environ[_SECRET] = "seen"
    try:
        sandbox = component.build(component.config(**options), context)
        try:
            yield sandbox
        finally:
            await sandbox.aclose()
    finally:
        del os.environ[_SECRET]


def sandbox_suite(name: str, **settings: Any) -> Callable[[], None]:
    """A pytest test that runs the suite of `name`; settings are those of `run_sandbox_suite`."""

    def test_sandbox() -> None:
        failed = [
            f"{result.check}: {result.detail}"
            for result in run_sandbox_suite(name, **settings)
            if result.status == "failed"
        ]
        assert not failed, f"{name}: " + "; ".join(failed)

    test_sandbox.__doc__ = f"The conformance suite of the sandbox {name!r}."
    return test_sandbox
