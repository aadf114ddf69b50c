"""Lists what plugin modules offer, in a process that is there for nothing else.

A plugin is somebody else's code that runs at import: it may raise, hang, exit, print, or change the interpreter that
it is imported into. All of that happens here and not in the process that only wants to know the names.
"""

import builtins
import importlib
import json
import math
import os
import time
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Any, BinaryIO

from assay.hooks import COMPONENT_HOOKS, OBSERVER_HOOKS, collect, single_plugin

WATCHED: tuple[ModuleType, ...] = (builtins, math, json, os)
"""Modules that every other verifier stands on; a plugin that changes them is refused."""


def write_answers(modules: Iterable[str], answers: BinaryIO) -> None:
    """Probe the modules and write one JSON line per module."""
    dumps = json.dumps
    for module in modules:
        answers.write(dumps({"module": module, **probe(module)}).encode() + b"\n")
        answers.flush()


def probe(name: str) -> dict[str, Any]:
    """What the plugin module `name` offers, or the cause of its failure."""
    before = _watched()
    dumps = json.dumps
    started = time.perf_counter()
    try:
        module = importlib.import_module(name)
        import_s = time.perf_counter() - started
        manager = single_plugin(module)
        components = [
            {
                "kind": kind,
                "name": component.name,
                "summary": component.summary,
                "isolation": component.isolation,
                "extra": component.extra,
                "facts": component.facts,
            }
            for kind in COMPONENT_HOOKS
            for component in collect(manager, kind)
        ]
        parts = [
            {"kind": f"part:{part.axis}", "name": part.name, "summary": part.summary}
            for part in collect(manager, "optimizer_part")
        ]
        hooked = {caller.name for caller in manager.get_hookcallers(module) or []}
        result: dict[str, Any] = {
            "components": components + parts,
            "commands": "assay_commands" in hooked,
            "observers": bool(hooked & OBSERVER_HOOKS),
            "import_s": import_s,
        }
        dumps(result)
    # The whole point of this process is to survive whatever a plugin does, an exit included, and to say what it was.
    except BaseException as error:
        return {"cause": _cause(error, name)}
    changed = [key for key, value in _watched().items() if before.get(key, value) is not value or key not in before]
    if changed:
        return {"cause": f"it changes {', '.join(sorted(changed)[:3])} at import"}
    return result


def _watched() -> dict[str, Any]:
    return {
        f"{module.__name__}.{key}": value
        for module in WATCHED
        for key, value in vars(module).items()
        if not key.startswith("_") or key == "__import__"
    }


def _cause(error: BaseException, name: str) -> str:
    """The exception in one line with the last frame inside the plugin."""
    root = name.partition(".")[0]
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        parts = frame.filename.replace("\\", "/").split("/")
        if root in parts or f"{root}.py" in parts:
            start = parts.index(root) if root in parts else len(parts) - 1
            where = f" ({'/'.join(parts[start:])}:{frame.lineno})"
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"
