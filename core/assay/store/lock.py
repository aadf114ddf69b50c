"""One writer per run folder: a lock file that the kernel releases with its holder, and that names the holder."""

import contextlib
import fcntl
import json
import os
import time
from datetime import datetime
from pathlib import Path

from assay.errors import StoreError

PATIENCE_S = 2.0
"""A killed holder's children may hold its files until they have started their own programs."""


class FolderLock:
    """Held from construction to `release`; raises `StoreError` that names the holder where another process has it."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of `folder`."""
        self.path = folder / "lock"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + PATIENCE_S
        while not self._taken():
            if time.monotonic() > deadline:
                holder = _holder(self.path)
                os.close(self._file)
                raise StoreError(f"{folder}: in use by {holder}. Look at it with: assay show {folder.name}")
            time.sleep(0.05)
        now = datetime.now().astimezone()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid(), "since": now.isoformat(timespec="minutes")}).encode(), 0)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let others in."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
        os.close(self._file)


def _holder(path: Path) -> str:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return f"pid {facts['pid']} since {datetime.fromisoformat(facts['since']):%H:%M}"
    except (OSError, ValueError, KeyError):
        return "another process"
