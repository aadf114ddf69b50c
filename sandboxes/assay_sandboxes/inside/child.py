"""What the forked child does: bounds on itself, then the candidate's program as `__main__`, then its calls.

Nothing here is trusted once the candidate's code runs, and nothing here knows an expected value.
"""

import atexit
import builtins
import gc
import io
import json
import os
import re
import resource
import signal
import sys
import threading
import traceback
from types import ModuleType
from typing import Any, NoReturn

from assay.contracts import tagged
from assay_sandboxes.inside import frames

CALLABLE = re.compile(r"(\w+)(\(\))?(?:\.(\w+))?")
CHANNEL = 3
COMPLAINT = 250
"""Where the child says why it could not be set up; closed before any of the candidate's code runs."""
FRAME_BYTES = tagged.MAX_BYTES + 4096
STACK_BYTES = 64 << 20
SPARSE_BYTES = 128 << 20
"""What a runtime with a heap limit of its own may write beside that heap (code, stacks, buffers)."""


def set_limits(limits: dict[str, Any], *, native: bool, base_bytes: int) -> None:
    """Bound the calling process; `native` programs get a larger stack, `base_bytes` is the interpreter's own memory."""
    sparse = limits.get("sparse", False)
    memory = (limits["memory_mib"] << 20) + (SPARSE_BYTES if sparse else base_bytes)
    cpu = int(-(-limits["cpu_s"] // 1))
    bounds: dict[int, int | tuple[int, int]] = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_FSIZE: limits["disk_mib"] << 20,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NPROC: limits["processes"],
        # Engines that reserve far more address space than they use are bounded by the data they write.
        resource.RLIMIT_DATA if sparse else resource.RLIMIT_AS: memory,
    }
    if native and not sparse:  # threads take the stack limit as their own size
        bounds[resource.RLIMIT_STACK] = min(STACK_BYTES, memory)
    for which, value in bounds.items():
        soft, hard = value if isinstance(value, tuple) else (value, value)
        _, ceiling = resource.getrlimit(which)
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))


def take_descriptors(stdin: int, stdout: int, stderr: int, channel: int | None, complaint: int) -> None:
    """Make the given descriptors 0, 1, 2 (and 3), `complaint` number `COMPLAINT`, and close every other one."""
    given = [stdin, stdout, stderr] if channel is None else [stdin, stdout, stderr, channel]
    os.dup2(complaint, COMPLAINT, inheritable=False)
    # Out of the way first: the given ones may sit on 0 to 3 themselves.
    high = [os.dup2(fd, COMPLAINT + 1 + index, inheritable=False) for index, fd in enumerate(given)]
    for index, fd in enumerate(high):
        os.dup2(fd, index)
    os.closerange(len(high), COMPLAINT)
    os.closerange(COMPLAINT + 1, 1024)


def run_program(
    source: str, calls: list[dict[str, Any]] | None, *, path: str, serve: bool, argv: list[str]
) -> NoReturn:
    """Run `source` in this process, then `calls`, then (with `serve`) whatever calls arrive; never returns."""
    os.close(COMPLAINT)
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]
    sys.path[:] = [folder for folder in sys.path if folder != OWN_FOLDER]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "backslashreplace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace", line_buffering=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    calling = calls is not None or serve
    module = ModuleType("solution" if calling else "__main__")
    module.__file__ = path
    sys.modules[module.__name__] = module
    sys.argv = [path, *argv]
    sys.path.insert(0, os.getcwd())
    builtins.exit = builtins.quit = _Exit()  # type: ignore[attr-defined]
    gc.enable()
    code = 0
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - this is what it is for
        if calling:
            _answer(module, calls or [], serve)
    except SystemExit as leave:
        code = _exit_code(leave)
        if calling:
            _reply(-1, {"e": "SystemExit", "m": f"the program ended itself with {code}"})
    except BaseException as error:  # the boundary between the candidate's program and its end
        code = 1
        if calling:
            _reply(-1, {"e": type(error).__name__, "m": _message(error)})
        _print_error(error)
    _leave(code, wait=not calling)


def _answer(module: ModuleType, calls: list[dict[str, Any]], serve: bool) -> None:
    index = 0
    for call in calls:
        _call(module, index, call)
        index += 1
    reader = frames.Reader(FRAME_BYTES)
    while serve:
        data = os.read(CHANNEL, 1 << 16)
        if not data:
            return
        for body in reader.feed(data):
            _call(module, index, json.loads(body))
            index += 1


def _call(module: ModuleType, index: int, call: dict[str, Any]) -> None:
    try:
        function = _find(module, call["fn"])
        arguments = [tagged.restore(each) for each in call.get("args", ())]
        named = {name: tagged.restore(each) for name, each in call.get("kwargs", {}).items()}
        answer: dict[str, Any] = {"v": tagged.tag(function(*arguments, **named))}
        if call.get("inout"):
            answer["a"] = [tagged.tag(each) for each in arguments]
    except BaseException as error:  # a call's failure is its answer; the next call still runs
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        answer = {"e": type(error).__name__, "m": _message(error)}
    sys.stdout.flush()
    _reply(index, answer)


def _find(module: ModuleType, name: str) -> Any:
    match = CALLABLE.fullmatch(name)
    if match is None:
        raise NameError(f"no function of the form name, Class.method or Class().method: {name!r}")
    first, made, method = match.groups()
    if first not in module.__dict__:
        raise NameError(f"name {first!r} is not defined")
    found = module.__dict__[first]
    if made:
        found = found()
    return getattr(found, method) if method else found


def _reply(index: int, answer: dict[str, Any]) -> None:
    data = frames.pack({"i": index, **answer})
    if len(data) > FRAME_BYTES:
        data = frames.pack({"i": index, "e": "TaggedError", "m": f"an answer of {len(data)} bytes as tagged JSON"})
    frames.write(CHANNEL, data)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:  # the candidate's own `__str__`
        return "(its message cannot be shown)"


def _print_error(error: BaseException) -> None:
    try:
        traceback.print_exception(type(error), error, _own_frames_removed(error), limit=-20)
    except BaseException:  # the candidate's own classes, a closed stderr, no memory left
        os.write(2, f"{type(error).__name__}\n".encode("ascii", "replace"))


def _own_frames_removed(error: BaseException) -> Any:
    trace = error.__traceback__
    return trace.tb_next if trace is not None and trace.tb_next is not None else trace


def _leave(code: int, *, wait: bool) -> NoReturn:
    """End as an interpreter would: threads, exit functions, flush; then at once."""
    try:
        if wait:
            threading._shutdown()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as leave:
        code = _exit_code(leave)
    except BaseException:  # a closed stdout, a thread's own trouble
        code = code or 120
    os._exit(code)


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None:
        return 0
    if type(leave.code) is int:
        return leave.code & 0xFF
    try:
        sys.stderr.write(f"{leave.code}\n")
    except BaseException:  # the candidate's own `__str__`
        return 1
    return 1


class _Exit:
    """The `exit` and `quit` that the site module would have put there."""

    def __repr__(self) -> str:
        return "Use exit() or Ctrl-D (i.e. EOF) to exit"

    def __call__(self, code: Any = None) -> NoReturn:
        raise SystemExit(code)


def reset_signals() -> None:
    """Give signals back their defaults, SIGINT as in a fresh interpreter."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


_OWN = {"assay", "assay_sandboxes"}
OWN_FOLDER = "/".join(__file__.split("/")[:-3])
