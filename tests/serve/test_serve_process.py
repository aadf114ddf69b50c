"""`assay serve` as a process: started, asked over real connections, and ended by signals."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from assay import Message, Rollout, Task, Turn
from assay.config.rewards import JudgingConfig
from assay.contracts import Reward
from assay.judging import open_panel
from assay.preflight import make_context
from assay.registry import Registry
from assay.scoring import reward_entries
from assay.serve.metrics import Metrics
from assay.serve.process import bind, serve
from assay.serve.service import Service
from assay.serve.settings import Settings
from assay.testing import hostile_texts

pytestmark = pytest.mark.long

MINE = """
import time
from assay import Verdict

def judge(task, rollout):
    if rollout.text.startswith("wait"):
        time.sleep(float(rollout.text.split()[1]))
    return Verdict.score(float(rollout.text == task.reference or rollout.text.startswith("wait")))
"""


class Process:
    """A running server."""

    def __init__(self, running: "subprocess.Popen[str]", launch: dict[str, Any]) -> None:
        self.running, self.launch = running, launch
        self.url: str = launch["url"]

    def stop(self) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, the events after the launch, and what it said."""
        out, err = self.running.communicate(timeout=60)
        return self.running.returncode, [json.loads(line) for line in out.splitlines()], err


@contextlib.contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Generator[Process]:
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    command = [sys.executable, "-m", "assay", "serve", "-r", "mine.py:judge", "--port", "0", "--json", *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        try:
            line = running.stdout.readline()
            assert line, running.stderr.read()
            yield Process(running, json.loads(line))
        finally:
            if running.poll() is None:
                running.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    with started(tmp_path_factory.mktemp("serve"), "-r", "math", "--timeout-s", "60") as process:
        yield process


def body(*texts: str, **more: Any) -> dict[str, Any]:
    task = {"prompt": "2 + 2?", "reference": "4"}
    return {"items": [{"id": str(i), "task": task, "rollout": {"text": text}} for i, text in enumerate(texts)], **more}


def test_it_says_where_it_is_and_listens_on_loopback_alone(server: Process):
    assert server.launch["event"] == "launch"
    assert server.launch["pid"] == server.running.pid
    assert server.launch["rewards"] == ["judge", "math"]
    addresses = {
        connection.laddr.ip
        for connection in psutil.Process(server.running.pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}
    answer = httpx.post(f"{server.url}/v1/score", json=body("4", "5"), timeout=60)
    assert [item["value"] for item in answer.json()["items"]] == [2.0, 0.0]


def test_half_open_connections_do_not_keep_a_healthy_client_waiting(server: Process):
    host, port = "127.0.0.1", int(server.launch["port"])
    opened: list[socket.socket] = []
    try:
        for index in range(200):
            connection = socket.create_connection((host, port), timeout=30)
            opened.append(connection)
            if index % 2:
                connection.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n")
            else:
                connection.sendall(
                    b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 1000\r\n\r\n{"
                )
        with httpx.Client(timeout=60) as client:
            for _ in range(20):
                answer = client.post(f"{server.url}/v1/score", json=body("4", rewards=["math"]))
                assert answer.json()["items"][0]["value"] == 1.0
            assert client.get(f"{server.url}/healthz").json()["held"] == 0
    finally:
        for connection in opened:
            connection.close()


def test_a_body_that_is_too_large_is_told_so_over_a_real_connection(server: Process):
    answer = httpx.post(f"{server.url}/v1/score", content=b"[" + b" " * (9 << 20), timeout=60)
    assert answer.status_code == 413
    assert answer.json()["detail"] == "the body is larger than 8 MiB; send fewer items at a time"


def rewards_of(source: dict[str, Any], texts: list[str]) -> list[Reward]:
    registry = Registry.load()
    task = Task(id="t", messages=(Message(role="user", content="2 + 2?"),), reference="4")
    rollouts = [
        Rollout(id=f"r{index}", task_id="t", group_id="g", turns=(Turn(text=text),)) for index, text in enumerate(texts)
    ]

    async def work() -> list[Reward]:
        async with open_panel(
            reward_entries([source]),
            registry=registry,
            judging=JudgingConfig(timeout_s=60.0),
            context=make_context(registry, base_dir=Path.cwd(), seed=0),
        ) as panel:
            return list(await panel.judge_group(task, rollouts))

    return asyncio.run(work())


def test_the_source_http_gives_what_the_servers_own_reward_gives(server: Process):
    texts = [
        "4",
        r"so \boxed{4}",
        "5",
        "hm",
        "",
        *(text for _, text in itertools.islice(hostile_texts(huge=50_000), 30)),
    ]
    away = rewards_of({"use": "http", "url": server.url, "rewards": ["math"], "max_batch": 8}, texts)
    here = rewards_of({"use": "math"}, texts)
    assert [reward.value for reward in away] == [reward.value for reward in here]
    assert [reward.parts[0].status for reward in away] == [reward.parts[0].status for reward in here]
    assert away[0].value == 1.0
    assert {reward.parts[0].status for reward in away} >= {"scored", "abstained"}


def test_sigterm_answers_what_is_under_way_and_ends_everything(tmp_path: Path):
    with started(tmp_path, "--timeout-s", "50") as process:
        httpx.post(f"{process.url}/v1/score", json=body("4"), timeout=60)  # the workers run
        family = psutil.Process(process.running.pid).children(recursive=True)
        answered = asked_in_a_thread(process, body("wait 4", "4"))
        wait_until_held(process, 1)
        process.running.send_signal(signal.SIGTERM)
        answer = answered()
        assert answer.status_code == 200
        assert [item["value"] for item in answer.json()["items"]] == [1.0, 1.0]
        code, events, said = process.stop()
        assert (code, events) == (0, [{"event": "done", "status": "done"}]), said
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{process.url}/healthz", timeout=30)
        assert family
        assert not psutil.wait_procs(family, timeout=60)[1]


def test_a_second_signal_answers_at_once(tmp_path: Path):
    with started(tmp_path, "--timeout-s", "50") as process:
        httpx.post(f"{process.url}/v1/score", json=body("4"), timeout=60)
        answered = asked_in_a_thread(process, body("wait 40"))
        wait_until_held(process, 1)
        process.running.send_signal(signal.SIGINT)
        process.running.send_signal(signal.SIGTERM)
        answer = answered()
        (item,) = answer.json()["items"]
        assert (item["status"], item["value"], item["reward"], item["fault"]) == ("failed", None, None, "ours")
        assert item["reason"] == "the server was stopped"
        assert process.stop()[0] == 0


def asked_in_a_thread(process: Process, asked: dict[str, Any]) -> Callable[[], httpx.Response]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{process.url}/v1/score", json=asked, timeout=60))
    )
    thread.start()

    def joined() -> httpx.Response:
        thread.join(timeout=60)
        return answers[0]

    return joined


def wait_until_held(process: Process, items: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if httpx.get(f"{process.url}/healthz", timeout=60).json()["held"] >= items:
            return
    raise AssertionError("the request did not arrive")


def test_a_connection_that_says_nothing_is_ended():
    async def work() -> bytes:
        registry = Registry.load()
        service = Service(
            reward_entries(["exact"]),
            registry=registry,
            context=make_context(registry, base_dir=Path.cwd(), seed=0),
            judging=JudgingConfig(),
        )
        ready = asyncio.Event()
        with bind("127.0.0.1", 0) as listening:
            port = listening.getsockname()[1]
            async with service, asyncio.TaskGroup() as running:
                running.create_task(
                    serve(
                        service,
                        Settings(headers_s=1.0),
                        metrics=Metrics(),
                        listening=listening,
                        host="127.0.0.1",
                        on_ready=ready.set,
                    )
                )
                await ready.wait()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /v1/score HT")
                said = await asyncio.wait_for(reader.read(), timeout=60)  # noqa: TID251 # one await, no group
                writer.close()
                async with httpx.AsyncClient(timeout=60) as client:
                    assert (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
                os.kill(os.getpid(), signal.SIGTERM)
        return said

    assert asyncio.run(work()) == b""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either -r NAME, which may be repeated, or --config FILE; found neither"),
        (["-r", "mth"], "no reward source named 'mth'"),
        (["-r", "math", "--host", "0.0.0.0"], "others can reach this address, so a token is needed"),
        (
            ["-r", "math", "--token-env", "NO_SUCH_TOKEN"],
            "--token-env: the environment variable 'NO_SUCH_TOKEN' is not set",
        ),
        (["-r", "math", "--queue", "0"], "--queue 0: it must be above 0"),
        (["-r", "math", "--deadline-s", "nan"], "--deadline-s nan: it must be above 0"),
        (["-r", "math", "--port", "99999"], "--port 99999: a port is 0 to 65535"),
        (["-r", "math", "--host", "no.such.host.invalid", "--token-env", "A_TOKEN"], "cannot listen there"),
        (["-r", "math", "--workers", "0"], "assay serve: judging.workers"),
        (["--config", "prm.toml"], "`assay serve` takes the rewards of 'score' or 'rlvr'"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_started(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    from assay.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_TOKEN", "s3cret")
    Path("prm.toml").write_text(
        'kind = "sft"\npolicy = { model = "m" }\ndata = { use = "jsonl", path = "d.jsonl" }\n', encoding="utf-8"
    )
    assert main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_a_taken_port_is_named(server: Process, capsys: pytest.CaptureFixture[str]):
    from assay.cli import main

    assert main(["serve", "-r", "exact", "--port", str(server.launch["port"])]) == 2
    assert f"127.0.0.1:{server.launch['port']}: cannot listen there" in capsys.readouterr().err


def test_a_configs_rewards_and_judging_are_served(tmp_path: Path):
    (tmp_path / "score.toml").write_text(
        'kind = "score"\ndata = { path = "none.jsonl" }\njudging = { timeout_s = 4.0 }\n'
        'rewards = [{ use = "python", path = "mine.py:judge", weight = 2.0, label = "mine" }]\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "assay", "serve", "--config", "score.toml", "--port", "0", "--json"]
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        process = Process(running, json.loads(running.stdout.readline()))
        answer = httpx.post(f"{process.url}/v1/score", json=body("4", "wait 30"), timeout=60).json()["items"]
        running.terminate()
        assert process.stop()[0] == 0
    assert answer[0]["value"] == 2.0
    assert "timed out after 4 s" in answer[1]["reason"]
