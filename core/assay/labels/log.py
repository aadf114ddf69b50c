"""The completions on disk: JSON lines, only ever appended to.

Guaranteed: a completion whose `append` has returned survives the end of the process, `kill -9` included; what the
machine itself loses with its power is at most the last `SYNC_S` seconds. A line that a kill cut short is dropped when
the file is opened again. One writer at a time, by a lock on the file. The first line says what the file was made with;
another setting is refused, since completions of two samplers must not be mixed. A file that holds nothing else yet is
begun afresh.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import ConfigError, StoreError
from assay.labels.nodes import Completion, Result

SYNC_S = 1.0


class CompletionLog:
    """The open file and what it held when it was opened."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open `path`, or make it; raises `ConfigError` where it was made with other settings or is in use."""
        self.path = path
        self.completions: dict[str, dict[int, Completion]] = {}
        """Node key to attempt to completion, as found."""
        self.outcomes: dict[str, Result] = {}
        """Solution key to its own verdict, as found."""
        self._synced = time.monotonic()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise ConfigError(f"{path}: in use by another process; wait for it, or name another --out") from error
        try:
            self._read(json.loads(json.dumps(settings)))
        except BaseException:
            os.close(self._file)
            raise

    @property
    def kept(self) -> int:
        """Completions that were there when the file was opened."""
        return sum(len(found) for found in self.completions.values())

    def completion(self, key: str, attempt: int, completion: Completion) -> None:
        """Keep one completion."""
        self._append({"node": key, "attempt": attempt, **completion._asdict()})

    def outcome(self, solution_key: str, result: Result) -> None:
        """Keep the verdict on one solution of the data."""
        self._append({"solution": solution_key, "result": result})

    def close(self) -> None:
        """Make everything durable and let go."""
        os.fsync(self._file)
        os.close(self._file)

    def _read(self, settings: Mapping[str, Any]) -> None:
        with open(os.dup(self._file), "rb") as file:
            content = file.read()
        whole = content.rfind(b"\n") + 1  # what stands behind the last line end was cut short by a kill
        os.ftruncate(self._file, whole)
        os.lseek(self._file, 0, os.SEEK_END)
        lines = content[:whole].splitlines()
        if not lines or _holds_settings_alone(lines):
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_END)
            self._append({"settings": settings})
            return
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line), number, settings)
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(
                    f"{self.path}:{number}: not a line of completions: {error}. Restore the file, or name another --out"
                ) from error

    def _take(self, line: dict[str, Any], number: int, settings: Mapping[str, Any]) -> None:
        if number == 1:
            changed = sorted(
                key for key in {*line["settings"], *settings} if line["settings"].get(key) != settings.get(key)
            )
            if changed:
                raise ConfigError(
                    f"{self.path}: its completions were made with another {', '.join(changed)}; go on with the same "
                    "command, or name another --out"
                )
        elif "solution" in line:
            self.outcomes[line["solution"]] = line["result"]
        else:
            key, attempt = line.pop("node"), line.pop("attempt")
            self.completions.setdefault(key, {})[attempt] = Completion(**line)

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        try:
            while data:
                data = data[os.write(self._file, data) :]
            if time.monotonic() - self._synced > SYNC_S:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written: {error.strerror}; free space and go on") from error


def _holds_settings_alone(lines: Sequence[bytes]) -> bool:
    """Whether nothing was drawn or judged yet, so that there is nothing to mix with."""
    try:
        return len(lines) == 1 and set(json.loads(lines[0])) == {"settings"}
    except (ValueError, TypeError):
        return False
