"""A server that dies at a bad moment, as a process of its own that the engine starts: a script with vLLM's routes."""

import asyncio
import json
import logging
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, WeightsRef
from assay.errors import EngineError
from assay_engines.vllm.engine import Speaker, VLLMEngine
from assay_engines.vllm.host import GivenHost, OwnHost
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.server import free_port, new_log
from assay_engines.vllm.transfer import FileTransfer

EngineThatDies = Callable[[Mapping[str, int], int], VLLMEngine]
SERVER = """
import json, os, pathlib, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

told = dict(zip(sys.argv, sys.argv[1:]))
deaths = pathlib.Path(__file__).parent / "deaths.json"
version = "0"

def dies_at(route):
    left = json.loads(deaths.read_text())
    if not left.get(route):
        return
    left[route] -= 1
    deaths.write_text(json.dumps(left))
    print(f"RuntimeError: out of luck at {route}", flush=True)
    os._exit(1)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        model = {"id": "policy", "root": told["--model"], "max_model_len": 64}
        self.reply({"data": [model], "weight_version": version})

    def do_POST(self):
        global version
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        dies_at(self.path)
        version = str(body.get("new_version") or body.get("weight_version") or version)
        if not self.path.startswith("/inference"):
            self.reply({})
            return
        greeting = body["request_id"].startswith("assay-greeting")
        content = [{"token_id": 3, "logprob": 0.0 if greeting else -0.25}]
        spans = [{"version": version, "start": 0, "end": 1}]
        choice = {"token_ids": [3], "logprobs": {"content": content}, "finish_reason": "length"}
        self.send(b"data: " + json.dumps({"choices": [choice | {"weight_versions": spans}]}).encode() + b"\\n\\n")

    def reply(self, value):
        self.send(json.dumps(value).encode())

    def send(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(told["--port"])), Handler).serve_forever()
"""


def weights(folder: Path) -> Path:
    folder.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    return folder


@pytest.fixture
def engine_that_dies(letters: Any, tmp_path: Path) -> EngineThatDies:
    """An engine whose server ends itself at these routes, so often, and is started again so often."""

    def make(deaths: Mapping[str, int], restarts: int) -> VLLMEngine:
        (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
        (tmp_path / "deaths.json").write_text(json.dumps(deaths), encoding="utf-8")
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/server.py "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        host = OwnHost(
            python, VLLMOptions(start_s=300), dtype="float32", on_cpu=True, open_log=lambda: new_log(tmp_path)
        )
        return VLLMEngine(
            host,
            Speaker(letters, frozenset({25}), "plain"),
            model=weights(tmp_path / "model"),
            weights_folder=tmp_path / "weights",
            transfer=FileTransfer(),
            dtype="float32",
            restarts=restarts,
        )

    return make


class Owner(logging.Handler):
    """Starts a server again as soon as the engine says that it has noticed its end."""

    def __init__(self, again: Path) -> None:
        super().__init__(logging.WARNING)
        self._again = again

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for its next life" in record.getMessage() or "the server died" in record.getMessage():
            self._again.touch()


@contextmanager
def server_of_somebody_else(letters: Any, tmp_path: Path, deaths: Mapping[str, int]) -> Generator[VLLMEngine]:
    """An engine on a server that its owner starts again when it ends."""
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    (tmp_path / "deaths.json").write_text(json.dumps(deaths), encoding="utf-8")
    port = free_port()
    options = VLLMOptions(url=f"http://127.0.0.1:{port}", start_s=300, restarts=1)
    again = tmp_path / "again"
    loop = f"while [ ! -e {again} ]; do sleep 0.1; done; rm {again}"
    lives = f"while :; do {sys.executable} {tmp_path}/server.py --model m --port {port}; {loop}; done"
    with (tmp_path / "log").open("ab") as log:
        running = subprocess.Popen(["/bin/sh", "-c", lives], start_new_session=True, stdout=log, stderr=log)
    owner = Owner(again)
    logging.getLogger("assay.engines").addHandler(owner)
    try:
        assert options.url is not None
        yield VLLMEngine(
            GivenHost(options.url, options, FileTransfer()),
            Speaker(letters, frozenset({25}), "plain"),
            model=weights(tmp_path / "model"),
            weights_folder=tmp_path / "weights",
            transfer=FileTransfer(),
            dtype="float32",
            restarts=1,
        )
    finally:
        logging.getLogger("assay.engines").removeHandler(owner)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def request(name: str) -> RolloutRequest:
    task = Task(id=f"task-{name}", messages=(Message(role="user", content="bc"),))
    return RolloutRequest(id=name, task=task, group_id="g", sampling=Sampling(max_new_tokens=1))


async def steps(
    engine: VLLMEngine, tmp_path: Path, count: int, *, deaths: Mapping[str, int] | None = None
) -> list[Rollout]:
    """Draw, then push, so many times; and draw once more. `deaths` are those that come after the first answer."""
    found: list[Rollout] = []
    try:
        for version in range(1, count + 1):
            found += [rollout async for rollout in engine.generate([request(f"r{version}")])]
            if deaths is not None and version == 1:
                (tmp_path / "deaths.json").write_text(json.dumps(deaths), encoding="utf-8")
            folder = weights(tmp_path / "new" / str(version))
            await engine.pause("keep")
            await engine.push_weights(WeightsRef(version=version, path=str(folder)))
            await engine.resume()
        found += [rollout async for rollout in engine.generate([request("last")])]
    finally:
        await engine.aclose()
    return found


@pytest.mark.parametrize("route", ["/pause?mode=keep", "/start_weight_update", "/update_weights", "/resume"])
def test_a_server_that_dies_while_it_takes_weights_is_started_on_them(
    route: str,
    engine_that_dies: EngineThatDies,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    processes_left: Callable[[], set[int]],
) -> None:
    engine = engine_that_dies({route: 1}, 1)
    with caplog.at_level(logging.WARNING, logger="assay.engines"):
        found = asyncio.run(steps(engine, tmp_path, 2))
    assert [[span.version for span in rollout.weight_versions] for rollout in found] == [[0], [1], [2]]
    assert "starting it again" in caplog.text
    assert engine.policy_version == 2
    assert not processes_left()


def test_a_server_that_survives_no_push_ends_the_run_with_what_it_said(
    engine_that_dies: EngineThatDies, tmp_path: Path, processes_left: Callable[[], set[int]]
) -> None:
    engine = engine_that_dies({"/update_weights": 9}, 1)
    with pytest.raises(EngineError, match=r"did not survive 2 pushes of weights in a row: .*out of luck at /update_w"):
        asyncio.run(steps(engine, tmp_path, 3))
    assert not processes_left()


def test_a_server_that_dies_as_soon_as_it_answers_is_one_sentence(
    engine_that_dies: EngineThatDies, tmp_path: Path, processes_left: Callable[[], set[int]]
) -> None:
    engine = engine_that_dies({"/inference/v1/generate": 1}, 1)
    with pytest.raises(EngineError, match=r"ended as soon as it had started .*out of luck"):
        asyncio.run(steps(engine, tmp_path, 1))
    assert not processes_left()
    assert os.listdir(tmp_path / "model") == ["model.safetensors"]


@pytest.mark.parametrize("route", ["/pause?mode=keep", "/update_weights", "/resume"])
def test_a_server_of_somebody_else_that_dies_while_it_takes_weights_is_waited_for(
    route: str, letters: Any, tmp_path: Path
) -> None:
    with server_of_somebody_else(letters, tmp_path, {}) as engine:
        found = asyncio.run(steps(engine, tmp_path, 2, deaths={route: 1}))
    assert [[span.version for span in rollout.weight_versions] for rollout in found] == [[0], [1], [2]]
    assert engine.policy_version == 2


def test_a_server_of_somebody_else_that_survives_no_push_ends_the_run(letters: Any, tmp_path: Path) -> None:
    with (
        server_of_somebody_else(letters, tmp_path, {"/update_weights": 9}) as engine,
        pytest.raises(EngineError, match=r"could not take version 1: /update_weights: .*; start it again on this host"),
    ):
        asyncio.run(steps(engine, tmp_path, 2))
