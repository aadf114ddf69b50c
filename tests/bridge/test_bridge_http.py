"""The source `http`: against a server with every wrong answer, and against a real one (in tests/serve)."""

import asyncio
import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from assay import Candidate, ConfigError, Message, Rollout, Task, Turn
from assay.config.rewards import JudgingConfig, SourceEntry
from assay.contracts import Judgement
from assay.judging import open_panel
from assay.preflight import make_context
from assay.registry import Registry, component_from

Body = dict[str, Any]
Script = Callable[[Body], tuple[int, bytes]]


@contextmanager
def scripted(script: Script) -> Generator[tuple[str, list[Body], list[str]]]:
    """A server on a free port: its address, the bodies that it got, and their Authorization headers."""
    bodies: list[Body] = []
    tokens: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            tokens.append(self.headers.get("Authorization", ""))
            status, answer = script(body) if self.path == "/v1/score" else (404, b"nothing here")
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies, tokens
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answering(**changes: Any) -> Script:
    """Every item scored 0.5, with these fields changed."""

    def script(body: Body) -> tuple[int, bytes]:
        items = [{"id": item["id"], "status": "scored", "value": 0.5, **changes} for item in body["items"]]
        return 200, json.dumps({"items": items}).encode()

    return script


def judged(url: str, texts: list[str], **options: Any) -> list[Judgement]:
    registry = Registry.load()
    found: dict[str, Judgement] = {}
    task = Task(id="t", messages=(Message(role="user", content="?"),))

    def keep(_candidate: Candidate, judgement: Judgement) -> None:
        found[judgement.rollout_id] = judgement

    async def work() -> None:
        entry = SourceEntry.model_validate({"use": "http", "url": url, **options})
        async with (
            open_panel(
                [entry],
                registry=registry,
                judging=JudgingConfig(),
                context=make_context(registry, base_dir=Path.cwd(), seed=0),
                observe=keep,
            ) as panel,
            asyncio.TaskGroup() as running,
        ):
            for index, text in enumerate(texts):
                rollout = Rollout(id=f"r{index}", task_id="t", group_id="g", turns=(Turn(text=text),))
                running.create_task(panel.judge(task, rollout))

    asyncio.run(work())
    return [found[f"r{index}"] for index in range(len(texts))]


def test_a_batch_is_one_request_and_every_status_comes_back(monkeypatch: pytest.MonkeyPatch):
    def script(body: Body) -> tuple[int, bytes]:
        told = {
            "right": {"status": "scored", "value": 1, "parts": [{"source": "math"}]},
            "unread": {"status": "abstained", "value": None, "fault": "candidate", "reason": "math: no answer"},
            "no gold": {"status": "abstained", "value": None, "fault": "ours", "reason": "math: no gold"},
            "broken": {"status": "failed", "value": None, "fault": "ours", "reason": "math: timed out"},
        }
        items = [{"id": item["id"], **told[item["rollout"]["turns"][0]["text"]]} for item in body["items"]]
        return 200, json.dumps({"items": items}).encode()

    monkeypatch.setenv("A_TOKEN", "s3cret")
    with scripted(script) as (url, bodies, tokens):
        texts = ["right", "unread", "no gold", "broken"]
        right, unread, no_gold, broken = judged(
            url + "/v1/score", texts, token_env="A_TOKEN", rewards=["math"], max_batch=4, timeout_s=9.0
        )
    assert len(bodies) == 1
    assert bodies[0]["rewards"] == ["math"]
    assert bodies[0]["deadline_s"] == 9.0
    assert len({item["id"] for item in bodies[0]["items"]}) == 4
    assert tokens == ["Bearer s3cret"]
    assert right.value == 1.0
    assert right.verdict.evidence[0].data == [{"source": "math"}]
    assert (unread.status, unread.verdict.fault, unread.reason) == ("abstained", "candidate", "math: no answer")
    assert (no_gold.status, no_gold.verdict.fault) == ("abstained", "ours")
    assert (broken.status, broken.verdict.fault) == ("failed", "ours")
    assert "failed at the server: math: timed out" in str(broken.reason)


def raw(content: str, status: int = 200) -> Script:
    return lambda _: (status, content.encode())


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (answering(value=float("nan")), "without a finite number: nan"),
        (answering(value=float("inf")), "without a finite number: inf"),
        (answering(value=None), "without a finite number: None"),
        (answering(value=True), "without a finite number: True"),
        (answering(value="0.5"), "without a finite number: '0.5'"),
        (answering(value=2.0), "outside"),
        (answering(status="great"), "gave the status 'great'"),
        (answering(status="failed"), "gave 0.5 to an item that is failed"),
        (answering(id="other"), "answered id 'other' where '0-r0' was asked"),
        (raw('{"items": []}'), "answered 0 items for 1"),
        (raw('{"items": [{}, {}]}'), "answered 2 items for 1"),
        (raw('{"items": [1]}'), "no list 'items' of tables"),
        (raw("[]"), "no list 'items' of tables"),
        (raw("<html>"), "the answer is no JSON"),
        (raw("[" * 100_000), "the answer is no JSON"),
        (raw("not your server", 403), "answered 403: not your server; look at url, token_env and rewards"),
        (raw("x" * (17 << 20)), "longer than 16 MiB"),
    ],
)
def test_a_wrong_answer_is_failed_with_what_is_wrong(script: Script, sentence: str):
    with scripted(script) as (url, _, _):
        (judgement,) = judged(url, ["x"], retries=0)
    assert judgement.status == "failed"
    assert judgement.verdict.fault == "ours"
    assert sentence in str(judgement.reason)


def test_swapped_answers_are_no_answers():
    def script(body: Body) -> tuple[int, bytes]:
        items = [{"id": item["id"], "status": "scored", "value": 1.0} for item in body["items"]]
        return 200, json.dumps({"items": items[::-1]}).encode()

    with scripted(script) as (url, bodies, _):
        found = judged(url, ["a", "b"], retries=0, max_batch=2)
    # Together they are refused; asked one by one, each answer can only be its own.
    assert [len(body["items"]) for body in bodies] == [2, 1, 1]
    assert [judgement.value for judgement in found] == [1.0, 1.0]


def test_one_wrong_item_costs_itself_and_the_others_are_not_asked_again():
    def script(body: Body) -> tuple[int, bytes]:
        values = {"bad": float("nan")}
        items = [
            {"id": item["id"], "status": "scored", "value": values.get(item["rollout"]["turns"][0]["text"], 1.0)}
            for item in body["items"]
        ]
        return 200, json.dumps({"items": items}).encode()

    with scripted(script) as (url, bodies, _):
        found = judged(url, ["a", "bad", "c"], retries=0, max_batch=3)
    assert [judgement.value for judgement in found] == [1.0, None, 1.0]
    assert len(bodies) == 1


def test_a_busy_server_is_asked_again_and_one_that_is_away_is_failed():
    answers = iter([(429, b""), (503, b"")])

    def script(body: Body) -> tuple[int, bytes]:
        return next(answers, None) or answering()(body)

    with scripted(script) as (url, bodies, _):
        (judgement,) = judged(url, ["x"], retries=3)
        assert judgement.value == 0.5
        assert judgement.attempt == 3
        assert len(bodies) == 3
    (away,) = judged(url, ["x"], retries=0)
    assert away.status == "failed"
    assert "not reached" in str(away.reason)


def test_options_are_checked_before_anything_is_asked():
    http = component_from("assay_bridge", "reward_source", "http")
    with pytest.raises(ValueError, match="url starts with http:// or https://"):
        http.config(url="localhost:8642")
    for url in ("http://", "http://[::1", "http://127.0.0.1:99999", "http://a host", "http://:80", "http://host?x=1"):
        with pytest.raises(ValueError, match=r"url is http://HOST:PORT, perhaps with a path; found 'http://"):
            http.config(url=url)
    with pytest.raises(ValueError, match="ends before it starts"):
        http.config(url="http://localhost:8642", value_range=[1.0, 0.0])
    with pytest.raises(ConfigError, match="token_env: the environment variable 'NO_SUCH_TOKEN' is not set"):
        http.build(http.config(url="http://localhost:8642", token_env="NO_SUCH_TOKEN"), make_context_here())


def make_context_here() -> Any:
    return make_context(Registry.load(), base_dir=Path.cwd(), seed=0)
