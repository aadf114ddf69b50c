"""The routes in this process: what is asked, what is told, and what is refused with which words."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from assay.config.rewards import JudgingConfig
from assay.preflight import make_context
from assay.registry import Registry
from assay.scoring import reward_entries
from assay.serve.app import build_app
from assay.serve.gate import Gate
from assay.serve.metrics import Metrics
from assay.serve.service import Service
from assay.serve.settings import Settings

pytestmark = pytest.mark.long

T = TypeVar("T")

MINE = """
import os, time
from assay import Verdict

def judge(task, rollout):
    if rollout.text.startswith("hang"):
        time.sleep(60)
    if rollout.text == "empty":
        return Verdict.abstain("nothing to judge")
    if rollout.text == "no tool":
        return Verdict.abstain("a tool is missing", fault="ours")
    if rollout.text == "crash":
        os._exit(3)
    return Verdict.score(float(rollout.text == task.reference), evidence="looked at")
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A verifier in a local file, by the name that `-r` takes."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return f"{tmp_path}/mine.py:judge"


class Server:
    """A client of a server in this process, and what stands behind it."""

    def __init__(self, client: httpx.AsyncClient, service: Service, app: Gate) -> None:
        self.client, self.service, self.app = client, service, app

    async def score(self, *items: dict[str, Any], **more: Any) -> httpx.Response:
        return await self.client.post("/v1/score", json={"items": list(items), **more})


@asynccontextmanager
async def opened(
    *rewards: Any, check_host: bool = True, queue: int = 100, timeout_s: float | None = 60.0, **settings: Any
) -> AsyncGenerator[Server]:
    registry = Registry.load()
    metrics = Metrics()
    service = Service(
        reward_entries(rewards),
        registry=registry,
        context=make_context(registry, base_dir=Path.cwd(), seed=0),
        judging=JudgingConfig(timeout_s=timeout_s),
        queue=queue,
        on_judged=metrics.verdict,
    )
    async with service:
        app = build_app(service, Settings(queue=queue, **settings), metrics=metrics, check_host=check_host)
        transport = httpx.ASGITransport(app=app)  # pyright: ignore[reportArgumentType] # its types are closed tables
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8642") as client:
            yield Server(client, service, app)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def item(text: str, name: str = "a", reference: Any = "4", **task: Any) -> dict[str, Any]:
    return {"id": name, "task": {"prompt": "2 + 2?", "reference": reference, **task}, "rollout": {"text": text}}


def test_every_status_is_told_in_order_and_only_a_score_has_a_value(mine: str):
    texts = ["4", "5", "empty", "no tool", "crash", "hang"]

    async def work() -> list[dict[str, Any]]:
        async with opened(mine, timeout_s=5.0) as server:
            response = await server.score(*[item(text, f"{index}!") for index, text in enumerate(texts)])
            assert response.status_code == 200
            return response.json()["items"]

    items = run(work())
    assert [told["id"] for told in items] == [f"{index}!" for index in range(6)]
    assert [(told["status"], told["value"], told["reward"], told["fault"]) for told in items] == [
        ("scored", 1.0, 1.0, None),
        ("scored", 0.0, 0.0, None),
        ("abstained", None, 0.0, "candidate"),
        ("abstained", None, None, "ours"),
        ("failed", None, None, "ours"),
        ("failed", None, None, "ours"),
    ]
    assert items[2]["reason"] == "judge: nothing to judge"
    assert items[2]["parts"][0]["declared"] is True
    assert "timed out after 5 s" in items[5]["reason"]
    assert items[0]["verdicts"] is None


def test_rewards_are_chosen_by_name_and_explained_on_request(mine: str):
    async def work() -> tuple[dict[str, Any], dict[str, Any], httpx.Response]:
        async with opened(mine, {"use": "length", "weight": 0.5}, {"use": "length", "max_characters": 1}) as server:
            every = (await server.score(item("4"))).json()["items"][0]
            one = (await server.score(item("4"), rewards=["length#2"], explain=True)).json()["items"][0]
            return every, one, await server.score(item("4"), rewards=["length", "jugde"])

    every, one, wrong = run(work())
    assert every["value"] == 2.5
    assert [part["source"] for part in every["parts"]] == ["judge", "length", "length#2"]
    assert one["value"] == 1.0
    (verdict,) = one["verdicts"]
    assert verdict["source"] == "length#2"
    assert verdict["verdict"]["evidence"]
    assert {"version", "fingerprint", "attempt", "latency_s", "started_at"} <= set(verdict)
    assert wrong.status_code == 422
    assert wrong.json()["detail"].startswith("rewards[1]: this server has no reward 'jugde'; it has judge, length")
    assert wrong.json()["errors"][0]["field"] == "rewards[1]"


def test_a_whole_task_and_rollout_mean_the_same_as_the_short_forms():
    async def work() -> list[dict[str, Any]]:
        async with opened("exact") as server:
            whole = {
                "id": "b",
                "task": {"id": "t", "messages": [{"role": "user", "content": "2 + 2?"}], "reference": "4"},
                "rollout": {
                    "id": "r",
                    "task_id": "t",
                    "group_id": "g",
                    "turns": [{"text": "4", "token_ids": [7], "logprobs": [-0.5]}],
                    "finish": "length",
                    "sampling": {"temperature": 0.7},
                },
            }
            return (await server.score(item("4"), whole)).json()["items"]

    assert [told["value"] for told in run(work())] == [1.0, 1.0]


def test_a_source_of_groups_sees_the_answers_to_equal_tasks_of_a_request():
    judge = {"use": "judge-pairwise", "base_url": "http://127.0.0.1:1/v1", "model": "m", "retries": 0}

    async def work() -> list[dict[str, Any]]:
        async with opened(judge) as server:
            response = await server.score(item("1", "a"), item("2", "b"), item("3", "c", reference="9"))
            return response.json()["items"]

    first, second, alone = run(work())
    # Nobody answers at that address, which the two that were to be compared came to know; the third had no other.
    assert [(told["status"], told["value"], told["fault"]) for told in (first, second)] == [
        ("failed", None, "ours")
    ] * 2
    assert (alone["status"], alone["value"], alone["fault"]) == ("abstained", None, "ours")


def test_what_is_not_judged_at_the_deadline_is_failed_and_the_rest_is_told(mine: str):
    async def work() -> tuple[list[dict[str, Any]], int]:
        async with opened(mine, timeout_s=30.0, deadline_s=20.0) as server:
            await server.score(item("5"))  # a worker runs
            response = await server.score(item("4", "quick"), item("hang", "slow"), deadline_s=8)
            return response.json()["items"], server.service.admission.held

    items, held = run(work())
    assert [told["status"] for told in items] == ["scored", "failed"]
    assert items[1]["reason"] == "not judged within 8 s"
    assert items[1]["fault"] == "ours"
    assert items[1]["reward"] is None
    assert held == 0


def test_a_full_queue_is_429_with_a_time_and_takes_again_later(mine: str):
    async def work() -> None:
        async with opened(mine, queue=3, timeout_s=30.0) as server:
            first = asyncio.create_task(server.score(item("hang 1", "a"), item("hang 2", "b"), deadline_s=5.0))
            while server.service.admission.held < 2:  # noqa: ASYNC110 # nothing tells of an admission
                await asyncio.sleep(0.01)
            refused = await server.score(item("4", "a"), item("4", "b"))
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
            assert refused.json()["detail"] == "2 of 3 items are under way, and there is no room for 2 more"
            assert (await server.client.get("/healthz")).json() == {"status": "ok", "held": 2, "queue": 3}
            assert (await first).status_code == 200
            again = await server.score(item("4", "a"), item("4", "b"))
            assert [told["value"] for told in again.json()["items"]] == [1.0, 1.0]
            too_many = await server.score(*[item("4", str(index)) for index in range(4)])
            assert too_many.status_code == 413
            assert (
                too_many.json()["detail"] == "4 items are more than the 3 that this server holds; send fewer at a time"
            )

    run(work())


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "items: field required"),
        ({"items": []}, r"items: tuple should have at least 1 item"),
        ({"items": [{"id": "a", "task": {}, "rollout": {"text": ""}}]}, r"items\[0\]\.task: give prompt or messages"),
        (
            {"items": [item("4"), {**item("4", "b"), "rollout": {"text": 4}}]},
            r"items\[1\]\.rollout\.text: input should be a valid string",
        ),
        ({"items": [item("4"), item("5")]}, r"the id 'a' stands for two items; ids must be unique"),
        ({"items": [item("4", answr="4")]}, r"items\[0\]\.task\.answr: unknown key"),
        ({"items": [{**item("4"), "rollout": {"text": "4", "turns": [{"text": "4"}]}}]}, "give text or turns, and not"),
        ({"items": [item("4")], "deadline_s": 0}, "deadline_s: input should be greater than 0"),
        ({"items": [item("4")], "rewards": []}, "rewards: tuple should have at least 1 item"),
        (
            {"items": [{**item("4"), "rollout": {"turns": [{"text": "4", "logprobs": [1.0]}]}}]},
            r"items\[0\]\.rollout\.turns\[0\]: 1 log-probs for 0 token ids",
        ),
    ],
)
def test_a_wrong_body_is_422_with_the_place(body: dict[str, Any], sentence: str):
    async def work() -> httpx.Response:
        async with opened("exact") as server:
            return await server.client.post("/v1/score", json=body)

    response = run(work())
    assert response.status_code == 422
    assert re.search(sentence, response.json()["detail"])
    assert response.json()["errors"][0]["field"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b'"\xff"',
        b'{"items": [{"id": "a", "task": {"prompt": "?", "reference": NaN}, "rollout": {"text": ""}}]}',
        b'{"items": [{"id": "a", "task": {"prompt": "?", "reference": 1e999}, "rollout": {"text": ""}}]}',
        b'{"items": [{"id": "\\ud800", "task": {"prompt": "?"}, "rollout": {"text": ""}}]}',
        b'{"items": ' + b"[" * 100_000,
        b'{"items": [{"id": "a", "task": {"prompt": "?", "facts": ' + b'{"a": ' * 5_000 + b"1",
        b'{"items": [{"id": "a", "task": {"prompt": "?", "reference": ' + b"9" * 10_000 + b'}, "rollout": 1}]}',
    ],
    ids=["empty", "cut", "words", "bytes", "nan", "infinity", "surrogate", "nested", "deep facts", "digits"],
)
def test_bytes_that_are_no_json_are_refused_in_a_sentence(raw: bytes):
    async def work() -> httpx.Response:
        async with opened("exact") as server:
            return await server.client.post("/v1/score", content=raw, headers={"Content-Type": "application/json"})

    response = run(work())
    assert response.status_code == 422
    assert len(response.json()["detail"]) < 300


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_does_not_say_that_it_is_json_is_told_how(kind: str | None):
    async def work() -> list[httpx.Response]:
        async with opened("exact") as server:
            headers = {} if kind is None else {"Content-Type": kind}
            body = json.dumps({"items": [item("4")]}).encode()
            plain = await server.client.post("/v1/score", content=body, headers=headers)
            return [plain, await server.client.post("/v1/score", json=[1])]

    plain, wrong = run(work())
    assert plain.status_code == wrong.status_code == 422
    detail = "body: expected a JSON object; send one with the header Content-Type: application/json"
    assert plain.json()["detail"] == detail
    assert wrong.json()["detail"] == "body: expected a JSON object"


def test_a_token_is_asked_for_everywhere_but_at_the_health_check():
    async def work() -> None:
        async with opened("exact", token="s3cret", check_host=False) as server:
            for path in ("/v1/sources", "/metrics", "/openapi.json", "/nowhere"):
                assert (await server.client.get(path)).status_code == 401
            for header in ("s3cret", "Bearer wrong", "Bearer s3cret ", "Basic s3cret", "Bearer s3cre"):
                refused = await server.client.get("/v1/sources", headers={"Authorization": header})
                assert refused.status_code == 401 or header == "Bearer s3cret "  # the client trims what it sends
            refused = await server.score(item("4"))
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert "Authorization: Bearer TOKEN" in refused.json()["detail"]
            assert (await server.client.get("/healthz")).status_code == 200
            server.client.headers["Authorization"] = "Bearer s3cret"
            assert (await server.score(item("4"))).json()["items"][0]["value"] == 1.0

    run(work())


def test_a_server_for_this_machine_answers_to_its_own_name_only():
    async def work() -> None:
        async with opened("exact") as server:
            for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]:8642"):
                assert (await server.client.get("/healthz", headers={"Host": host})).status_code == 200
            for host in ("evil.example", "127.0.0.1.evil.example:8642", "localhost.evil", "", "[::1"):
                refused = await server.client.get("/v1/sources", headers={"Host": host})
                assert refused.status_code == 421, host
                assert "answers for localhost" in refused.json()["detail"]

    run(work())


def test_a_body_above_the_limit_is_413_whether_its_length_is_announced_or_not():
    async def work() -> None:
        async with opened("exact", max_body_bytes=2000) as server:
            fits = json.dumps({"items": [item("x" * 1000)]}).encode()
            over = json.dumps({"items": [item("x" * 3000)]}).encode()
            headers = {"Content-Type": "application/json"}

            async def in_pieces() -> AsyncGenerator[bytes]:
                for start in range(0, len(over), 100):
                    yield over[start : start + 100]

            assert (await server.client.post("/v1/score", content=fits, headers=headers)).status_code == 200
            for content in (over, in_pieces()):
                refused = await server.client.post("/v1/score", content=content, headers=headers)
                assert refused.status_code == 413
                assert "larger than 0.00190735 MiB" in refused.json()["detail"]

    run(work())


def test_a_body_that_trickles_is_408():
    async def work() -> httpx.Response:
        async with opened("exact", body_s=0.2) as server:

            async def trickle() -> AsyncGenerator[bytes]:
                yield b"{"
                await asyncio.sleep(30)
                yield b"}"

            return await server.client.post("/v1/score", content=trickle())

    response = run(work())
    assert response.status_code == 408
    assert "did not arrive within 0.2 s" in response.json()["detail"]


def test_openrlhf_is_told_numbers_and_an_error_where_there_is_none(mine: str):
    prompt = "<|im_start|>user\nWhat is 2 + 2? Not 5.<|im_end|>\n<|im_start|>assistant\n"
    queries = [f"{prompt}4<|im_end|>\n", f"<s>{prompt}5</s>", f"{prompt[20:]}no tool", f"{prompt}empty"]

    async def work() -> None:
        async with opened(mine) as server:
            asked = {"query": queries, "prompts": [prompt] * 4, "labels": ["4"] * 4}
            refused = await server.client.post("/openrlhf", json=asked)
            assert refused.status_code == 424
            assert "query[2]: no reward for one answer: judge: a tool is missing" in refused.json()["detail"]
            assert "masked=" in refused.json()["detail"]
            told = (await server.client.post("/openrlhf?masked=-1", json=asked)).json()
            assert told["rewards"] == told["scores"] == [1.0, 0.0, -1.0, 0.0]
            assert told["extra_logs"]["masked"] == [0.0, 0.0, 1.0, 0.0]
            assert told["extra_logs"]["declared"] == [0.0, 0.0, 0.0, 1.0]
            assert told["extra_logs"]["judge/abstained"] == [0.0, 0.0, 1.0, 1.0]
            strange = await server.client.post("/openrlhf", json={**asked, "query": ["x", *queries[1:]]})
            assert strange.json()["detail"].startswith("query[0]: it does not begin with its prompt")
            uneven = await server.client.post("/openrlhf", json={**asked, "labels": ["4"]})
            assert uneven.status_code == 422
            assert uneven.json()["detail"].startswith("query: 4 queries, 4 prompts and 1 labels")
            assert (await server.client.post("/openrlhf?masked=nan", json=asked)).status_code == 422

    run(work())


def test_slime_is_told_one_number(mine: str):
    async def work() -> None:
        async with opened(mine, {"use": "length", "weight": 0.5}, deadline_s=8.0, timeout_s=30.0) as server:
            ask = server.client.post
            right = await ask("/slime", json={"prompt": "2 + 2?", "response": "4", "label": "4"})
            assert right.json() == 1.5
            chat = [{"role": "user", "content": "2 + 2?"}]
            assert (await ask("/slime", json={"prompt": chat, "response": "5", "label": "4"})).json() == 0.5
            slow = {"prompt": chat, "response": "hang", "label": "4"}
            assert (await ask("/slime", json=slow)).status_code == 424
            assert (await ask("/slime?masked=0", json=slow)).json() == 0.0

    run(work())


def test_sources_and_metrics_tell_what_was_judged(mine: str):
    async def work() -> tuple[dict[str, Any], str]:
        async with opened(mine, "length:0.5") as server:
            await server.score(item("4", "a"), item("4", "b"), item("crash", "c"), item("empty", "d"))
            await server.client.get("/nowhere")
            await server.client.post("/v1/score", json={})
            facts = (await server.client.get("/v1/sources")).json()
            return facts, (await server.client.get("/metrics")).text

    facts, text = run(work())
    mine_facts, length = facts["rewards"]
    assert (mine_facts["name"], mine_facts["weight"], mine_facts["value_range"]) == ("judge", 1.0, [0.0, 1.0])
    counts = mine_facts["sources"][0]["counts"]
    assert (counts["scored"], counts["abstained"], counts["failed"], counts["cached"]) == (2, 1, 1, 1)
    assert length["weight"] == 0.5
    for line in (
        'assay_verdicts_total{source="judge",status="failed"} 1.0',
        'assay_items_total{status="scored"} 2.0',
        'assay_requests_total{code="200",route="/v1/score"} 1.0',
        'assay_requests_total{code="422",route="/v1/score"} 1.0',
        'assay_requests_total{code="404",route="other"} 1.0',
        'assay_source_healthy{source="judge"} 1.0',
        "assay_queue_items 100.0",
    ):
        assert line in text


def test_a_source_that_fails_too_often_is_masked_and_the_server_goes_on(mine: str):
    async def work() -> tuple[list[dict[str, Any]], dict[str, Any], float]:
        async with opened(mine, "exact") as server:
            await server.score(*[item("crash", str(index), reference=index) for index in range(40)])
            answered = (await server.score(item("4"))).json()["items"]
            alone = (await server.score(item("4"), rewards=["exact"])).json()["items"][0]
            return answered, (await server.client.get("/v1/sources")).json(), alone["value"]

    (told,), facts, alone = run(work())
    assert told["value"] is None
    assert told["fault"] == "ours"
    assert "the source is masked" in told["reason"]
    assert facts["rewards"][0]["sources"][0]["healthy"] is False
    assert facts["rewards"][1]["sources"][0]["healthy"] is True
    assert alone == 1.0


def test_unknown_routes_and_methods_are_told_in_the_same_form():
    async def work() -> None:
        async with opened("exact") as server:
            for response, code in (
                (await server.client.get("/nowhere"), 404),
                (await server.client.get("/v1/score"), 405),
                (await server.client.get("/docs"), 404),
            ):
                assert response.status_code == code
                assert set(response.json()) == {"detail", "errors"}

    run(work())
