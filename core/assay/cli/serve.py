"""`assay serve`: an HTTP server that judges what other programs send."""

import asyncio
import os
import socket
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from assay.cli.output import emit, note
from assay.config.load import load_config
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.run import RlvrConfig, ScoreConfig
from assay.errors import ConfigError
from assay.preflight import check_rewards, make_context
from assay.registry import Registry
from assay.scoring import reward_entries
from assay.serve.settings import MIB, Settings, client_token

NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    *,
    reward: Annotated[tuple[str, ...], Parameter(name=["-r", "--reward"], consume_multiple=False)] = (),
    config: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8642,
    token_env: str | None = None,
    max_body_mib: float = 8.0,
    queue: int = 1000,
    deadline_s: float = 60.0,
    workers: int | None = None,
    timeout_s: float | None = None,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Judge over HTTP: POST /v1/score, and routes shaped for other trainers. Described at /openapi.json.

    Args:
        reward: A reward source, NAME[:WEIGHT] or FILE.py:FUNCTION[:WEIGHT]; may be repeated.
        config: A TOML config of kind "score" or "rlvr" whose rewards and judging are served, in place of -r.
        host: The address to listen on; anything but the loopback interface needs --token-env.
        port: The port; 0 takes a free one.
        token_env: Name of the environment variable with the token that clients must send.
        max_body_mib: Largest request body.
        queue: Items that may be under way at once; more are refused with 429.
        deadline_s: Longest time that a request may take.
        workers: Candidates that may be judged at once in worker processes; default 2.
        timeout_s: Wall time of one candidate.
        json_: JSON lines on stdout: launch and done.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"assay serve: it needs the package {missing[0]!r}, which is not installed; "
            'install it with: python -m pip install "assay[server]"'
        )
    settings = _settings(host, token_env, max_body_mib, queue, deadline_s)
    entries, judging, base_dir = _rewards(reward, config, workers, timeout_s)
    registry = Registry.load()
    for problem in registry.problems:
        note(f"! {problem}")
    check_rewards(registry, entries, where=str(config) if config else "-r")
    from assay.serve.process import bind  # the extra's packages are known to be installed now

    with bind(host, port) as listening:
        context = make_context(registry, base_dir=base_dir, seed=0)
        asyncio.run(_run(entries, judging, registry, context, settings, listening, host, json_))
    if json_:
        emit({"event": "done", "status": "done"})
    else:
        note("assay serve: stopped; every request was answered")
    return 0


async def _run(
    entries: Sequence[RewardEntry],
    judging: JudgingConfig,
    registry: Registry,
    context: Any,
    settings: Settings,
    listening: socket.socket,
    host: str,
    json_: bool,
) -> None:
    from assay.serve import process
    from assay.serve.metrics import Metrics
    from assay.serve.service import Service

    metrics = Metrics()
    names = ", ".join(f"{entry.name} x{entry.weight:g}" for entry in entries)
    port: int = listening.getsockname()[1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def ready() -> None:
        if json_:
            emit(
                {"event": "launch", "url": url, "port": port, "pid": os.getpid(), "rewards": [e.name for e in entries]}
            )
            return
        token = "with a token" if settings.token is not None else "from this machine only"
        note(f"assay serve: {url} judges {names}, {token}; POST {url}/v1/score, described at {url}/openapi.json")
        note("Ctrl-C or SIGTERM answers what is under way and stops")

    service = Service(
        entries, registry=registry, context=context, judging=judging, queue=settings.queue, on_judged=metrics.verdict
    )
    async with service:
        await process.serve(service, settings, metrics=metrics, listening=listening, host=host, on_ready=ready)


def _settings(host: str, token_env: str | None, max_body_mib: float, queue: int, deadline_s: float) -> Settings:
    for flag, value in (("--max-body-mib", max_body_mib), ("--queue", queue), ("--deadline-s", deadline_s)):
        if not 0 < value < float("inf"):
            raise ConfigError(f"assay serve: {flag} {value:g}: it must be above 0 and finite")
    return Settings(
        token=client_token(token_env, host=host),
        max_body_bytes=max(1, int(max_body_mib * MIB)),
        queue=queue,
        deadline_s=deadline_s,
    )


def _rewards(
    reward: Sequence[str], config: Path | None, workers: int | None, timeout_s: float | None
) -> tuple[tuple[RewardEntry, ...], JudgingConfig, Path]:
    """What is served, how it is judged, and the folder that paths are relative to."""
    if (config is None) == (not reward):
        found = "both" if reward else "neither"
        raise ConfigError(f"assay serve: give either -r NAME, which may be repeated, or --config FILE; found {found}")
    given = {key: value for key, value in (("workers", workers), ("timeout_s", timeout_s)) if value is not None}
    if config is None:
        return reward_entries(reward, where="assay serve"), _judging({}, given), Path.cwd()
    loaded = load_config(config)
    if not isinstance(loaded, ScoreConfig | RlvrConfig):
        raise ConfigError(f"{config}: kind is {loaded.kind!r}; `assay serve` takes the rewards of 'score' or 'rlvr'")
    return loaded.rewards, _judging(loaded.judging.model_dump(), given), Path(loaded.base_dir or config.parent)


def _judging(table: dict[str, Any], given: dict[str, Any]) -> JudgingConfig:
    from assay.config.validation import validate

    return validate(JudgingConfig, {**table, **given}, where="assay serve: judging")
