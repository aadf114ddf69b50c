"""Which plugins are installed and what each offers, without importing any of them into this process.

Every plugin is probed in a child process with a time limit, and the answer is cached until the installed packages or
the plugin's own files change. A plugin that hangs at import costs itself and nothing else.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

import assay
from assay._prober import Group
from assay.hookspecs import ENTRY_POINTS
from assay.process import kill_marked, kill_tree

IDLE_LIMIT_S = 1.0
"""Longest wait for a third party's plugin that is not even computing."""
HARD_LIMIT_S = 20.0
"""Longest wait for any third party's plugin."""
OWN_LIMIT_S = 60.0
"""Longest wait for assay's own."""
SLOW_IMPORT_S = 0.3
"""Seconds of an import beyond which `assay plugins` warns: listing imports every plugin once."""
OWN_DISTRIBUTION = "assay"


class Offer(BaseModel):
    """One component or part that a plugin offers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    name: str
    summary: str = ""
    isolation: str = "process"
    extra: str | None = None
    facts: dict[str, str] = {}


class Plugin(BaseModel):
    """One installed plugin and what is known of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    """Name of the entry point."""
    module: str
    distribution: str
    version: str
    state: Literal["ok", "broken", "blocked"] = "ok"
    cause: str | None = None
    offers: tuple[Offer, ...] = ()
    commands: bool = False
    observers: bool = False
    import_s: float = 0.0
    """Seconds that its import took in the probe, assay itself being loaded."""

    @property
    def builtin(self) -> bool:
        """Whether it comes with assay itself."""
        return self.distribution == OWN_DISTRIBUTION

    @property
    def title(self) -> str:
        """Distribution and version, as messages name it."""
        return f"{self.distribution} {self.version}"


def default_cache_dir() -> Path:
    """The folder for caches of this user: `$XDG_CACHE_HOME/assay` or `~/.cache/assay`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay"


def installed_plugins(*, allow: Iterable[str] | None = None, cache_dir: Path | None = None) -> tuple[Plugin, ...]:
    """Every installed plugin with its state, the built-in ones first, then by distribution and name.

    `allow` limits third parties' plugins to these entry-point names; by default the environment variable
    `ASSAY_PLUGINS` does (`none`, or names separated by commas), and without it all are allowed.
    """
    plugins = _entry_points()
    allowed = _allowed(allow)
    blocked = [p for p in plugins if allowed is not None and not p.builtin and p.name not in allowed]
    wanted = [p for p in plugins if p not in blocked]
    cache = _Cache((cache_dir or default_cache_dir()) / "plugins.json")
    known = {plugin: cache.get(plugin) for plugin in wanted}
    missing = [plugin for plugin, answer in known.items() if answer is None]
    groups: dict[str, list[Plugin]] = {}
    for plugin in missing:
        groups.setdefault("" if plugin.builtin else f"{plugin.distribution}:{plugin.name}", []).append(plugin)
    if groups:
        for plugin, answer in _probe(list(groups.values())).items():
            known[plugin] = answer
            # What assay's own plugins fail by is the machine's at that moment.
            if not (plugin.builtin and "cause" in answer):
                cache.put(plugin, answer)
        cache.save()
    found = [plugin.model_copy(update=_fields(known[plugin] or {})) for plugin in wanted]
    found += [p.model_copy(update={"state": "blocked", "cause": "left out by ASSAY_PLUGINS or allow"}) for p in blocked]
    return tuple(sorted(found, key=lambda p: (not p.builtin, p.distribution, p.name)))


def _entry_points() -> list[Plugin]:
    found: dict[tuple[str, str], Plugin] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        distribution = entry.dist.name if entry.dist else "?"
        version = entry.dist.version if entry.dist else "?"
        plugin = Plugin(name=entry.name, module=entry.value, distribution=distribution, version=version)
        found.setdefault((distribution, entry.name), plugin)
    return list(found.values())


def _allowed(allow: Iterable[str] | None) -> frozenset[str] | None:
    if allow is not None:
        return frozenset(allow)
    setting = os.environ.get("ASSAY_PLUGINS")
    if setting is None:
        return None
    return frozenset(name.strip() for name in setting.split(",") if name.strip() and name.strip() != "none")


def _fields(answer: dict[str, Any]) -> dict[str, Any]:
    if "cause" in answer:
        return {"state": "broken", "cause": answer["cause"]}
    return {
        "offers": tuple(Offer.model_validate(item) for item in answer.get("components", ())),
        "commands": bool(answer.get("commands")),
        "observers": bool(answer.get("observers")),
        "import_s": float(answer.get("import_s", 0.0)),
    }


def _probe(groups: Sequence[Sequence[Plugin]]) -> dict[Plugin, dict[str, Any]]:
    """What is said of every plugin of every group; those without an answer are broken with the cause."""
    answers = _ask(groups)
    left = [[group] for group in groups if not answers.keys() >= {plugin.module for plugin in group}]
    # A plugin can end the process that has all of them probed: each that is left is then asked about by itself.
    if left and len(groups) > 1:
        with ThreadPoolExecutor(max_workers=16) as pool:
            for alone in pool.map(_ask, left):
                answers |= alone
    silence = {"cause": "its import ended, stopped or spoke for the process that asked about it"}
    return {plugin: answers.get(plugin.module, silence) for group in groups for plugin in group}


def _ask(groups: Sequence[Sequence[Plugin]]) -> dict[str, dict[str, Any]]:
    """What a process of its own says of the modules, by module.

    Where a plugin ended that process some are missing; where one stopped it, or wrote in its place, all are.
    """
    token = secrets.token_hex(8)
    with subprocess.Popen(  # noqa: S603 (our own interpreter and module)
        [sys.executable, "-P", "-m", "assay._prober", *(_limited(group).word() for group in groups)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "ASSAY_PROBE": token},
    ) as child:
        try:
            output = _output(child, within_s=OWN_LIMIT_S + HARD_LIMIT_S * len(groups))
        finally:
            kill_tree(child.pid, root=child.returncode is None)
            child.wait()
            kill_marked(f"ASSAY_PROBE={token}")
    asked = {plugin.module for group in groups for plugin in group}
    answers: dict[str, dict[str, Any]] = {}
    for line in output.splitlines():
        answer = _answer(line)
        if answer is None or answer["module"] not in asked or answer["module"] in answers:
            return {}
        answers[answer["module"]] = answer
    return answers


def _output(child: "subprocess.Popen[bytes]", *, within_s: float) -> bytes:
    """What the child wrote until it ended; nothing where it is stopped or takes too long."""
    started = time.monotonic()
    while time.monotonic() - started < within_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.communicate(timeout=0.2)[0]
        if psutil.Process(child.pid).status() == psutil.STATUS_STOPPED:
            break
    return b""


def _answer(line: bytes) -> dict[str, Any] | None:
    """The answer about one module, with a cause where its fields are none; None for what is no answer."""
    try:
        answer: Any = json.loads(line)
        if not isinstance(answer["module"], str):
            return None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    try:
        _fields(answer)
    except ValidationError as error:
        first = error.errors()[0]
        return {**answer, "cause": f"it offers {'.'.join(map(str, first['loc']))} wrongly: {first['msg']}"}
    except (TypeError, ValueError):
        return {**answer, "cause": "what it offers cannot be read"}
    return answer


def _limited(group: Sequence[Plugin]) -> Group:
    """The modules of the plugins; assay's own have more time."""
    idle_limit_s, hard_limit_s = (OWN_LIMIT_S, OWN_LIMIT_S) if group[0].builtin else (IDLE_LIMIT_S, HARD_LIMIT_S)
    return Group([plugin.module for plugin in group], idle_limit_s, hard_limit_s)


class _Cache:
    """Answers of probes by plugin and state of its files; a damaged or unwritable cache is simply not used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, dict[str, Any]] = {}
        try:
            stored: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(stored, dict):
            self.answers = {key: answer for key, answer in _items(stored) if isinstance(answer, dict)}

    def get(self, plugin: Plugin) -> dict[str, Any] | None:
        return self.answers.get(_fingerprint(plugin))

    def put(self, plugin: Plugin, answer: dict[str, Any]) -> None:
        self.answers[_fingerprint(plugin)] = answer

    def save(self) -> None:
        recent = dict(list(self.answers.items())[-200:])
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(recent), encoding="utf-8")
            temporary.replace(self.path)
        except OSError:
            return


def _items(mapping: Any) -> Iterable[tuple[str, Any]]:
    return mapping.items()


def _fingerprint(plugin: Plugin) -> str:
    """Changes with the interpreter, the installed packages and the plugin's own files."""
    state: list[object] = [sys.executable, sys.version, assay.__version__, plugin.model_dump()]
    packages = (folder for folder in sys.path if folder.endswith(("site-packages", "dist-packages")))
    state.extend((folder, os.stat(folder).st_mtime_ns) for folder in packages if os.path.isdir(folder))
    state.append(_files(plugin.module))
    return hashlib.sha256(repr(state).encode()).hexdigest()


def _files(module: str) -> list[tuple[str, int, int]]:
    """Path, time and size of the module's files, found without importing it."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    roots = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for root in roots for path in sorted(root.rglob("*.py"))[:500]]
    if not roots and spec.origin:
        files = [Path(spec.origin)]
    return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file()]
