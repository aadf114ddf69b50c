"""The item loop inside a worker process: load one program, then run items one at a time under their limits.

A program is a `target` (`"module:function"`) and, where the target makes the function instead of being it, the JSON
that it is made from. What an item prints goes to the worker's output pipe; what it returns, or why it does not, goes
to the channel. The parent kills the worker at the wall limit, so nothing here keeps time.
"""

import importlib
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import ValidationError

from assay.errors import TransientError
from assay.judging import channel
from assay.process import children, kill_tree, reap

Run = Callable[[bytes], bytes]
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Program(NamedTuple):
    """What a worker runs: for each item JSON in and JSON out."""

    run: Run
    facts: dict[str, Any]
    """What the parent is told about the program once it is loaded."""


def load(target: str, init: Any) -> Program:
    """The program of a target; with `init` other than None the target is called with it and returns the program."""
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if init is not None:
        return found(init)

    def run(payload: bytes) -> bytes:
        return json.dumps(found(json.loads(payload)), allow_nan=False).encode()

    return Program(run, {})


def describe(error: BaseException) -> str:
    """One line: the exception and its message, shortened; it can be written as UTF-8, whatever the message holds."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        text = f"{error.title}.{place}: {first['msg']}; found {first['input']!r:.80}"
    else:
        text = _message(error)
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:500].encode(errors="backslashreplace").decode()


def _message(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())
    except Exception as broken:  # the exception is the plugin's too
        return f"its message cannot be shown: {type(broken).__name__}"


def serve(file: int, program: Program | None) -> None:
    """Answer frames until the channel closes."""
    own = os.getpid()
    while frame := channel.read_frame(file):
        if frame.kind == channel.LOAD:
            try:
                order = json.loads(frame.body)
                program = load(order["target"], order["init"])
            except BaseException as error:  # whatever the plugin raises is this load's answer
                traceback.print_exc()
                kind, body = channel.BROKEN, describe(error).encode()
            else:
                kind, body = channel.LOADED, json.dumps(program.facts).encode()
        else:
            assert program is not None
            kind, body = _run(program.run, frame.body)
        if os.getpid() != own:
            os._exit(0)  # a fork made by the item came back into this loop: it has nothing to say here
        _flush()
        channel.write_frame(file, kind, body)


def _run(run: Run, data: bytes) -> tuple[bytes, bytes]:
    cpu_s, memory, max_bytes = channel.ITEM_LIMITS.unpack_from(data)
    before = frozenset(children(os.getpid())) if _has_children() else frozenset[int]()
    own = os.getpid()
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + int(memory), resource.RLIM_INFINITY))
    if cpu_s:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        kind, body = channel.OK, run(data[channel.ITEM_LIMITS.size :])
    except MemoryError as error:
        _lift(memory, cpu_s)
        kind, body = channel.MEMORY, describe(error).encode()
    except BaseException as error:  # whatever the item raises is its answer; the worker goes on
        _lift(memory, cpu_s)
        kind = channel.TRANSIENT if isinstance(error, TransientError) else channel.RAISED
        body = describe(error).encode()
        if os.getpid() == own:
            traceback.print_exc()
    else:
        _lift(memory, cpu_s)
    if len(body) > max_bytes:
        kind, body = channel.LARGE, f"an answer of {len(body) >> 10:,} KiB".encode()
    if os.getpid() == own and _has_children():
        left = _end_strays(before)
        if left and kind == channel.OK:
            kind, body = channel.LEFT, f"left {left} process{'es' if left > 1 else ''} running".encode()
    return kind, body


def _lift(memory: float, cpu_s: float) -> None:
    if cpu_s:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * _PAGE


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end_strays(before: frozenset[int]) -> int:
    """Number of processes killed that the item left behind.

    A child that runs another program in the worker's own session may stay: it is a helper that the source keeps (a
    solver, a language server). A fork of the worker itself, an orphan, and whatever moved to a session of its own is
    a stray. What a stray had just forked becomes a child of this process only when the stray is dead, so this looks
    again until all of them are and nothing new has come: the next item must not be charged with it.
    """
    pid = os.getpid()
    own = _command(pid)
    killed: dict[int, int] = {}
    while strays := [child for child in children(pid) if child not in before and _stray(child, own)]:
        for child in strays:
            killed.setdefault(child, kill_tree(child))
        if not reap(keep=before):
            time.sleep(0.0005)
    return sum(killed.values())


def _stray(pid: int, own: bytes) -> bool:
    try:
        # A process that is dying has no command line any more.
        return os.getsid(pid) != os.getsid(0) or _command(pid) in (own, b"")
    except ProcessLookupError:
        return False


def _command(pid: int) -> bytes:
    """The command line of a process; empty for a zombie or one that is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # the item closed or replaced it


def redirect(output: int) -> None:
    """Point standard output, standard error and the root logger at the file `output`, standard input at nothing."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 # lives as long as the process
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", force=True)
