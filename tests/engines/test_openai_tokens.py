"""The engine `openai` with `tokens`: ids and log-probs from a service, and a sentence where it gives none."""

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, WeightSpan, WeightsRef
from assay.errors import ConfigError, EngineError
from assay_engines.openai import OpenAIEngine, OpenAIOptions

Body = Mapping[str, Any]


class Letters:
    """A tokenizer of single letters: id 0 is `a`."""

    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(ord("a") + one) for one in ids)


def choice(ids: Sequence[int] | None, logprobs: Sequence[float] | None, **more: Any) -> Body:
    told = None if logprobs is None else {"token_logprobs": list(logprobs)}
    return {"choices": [{"text": "?", "token_ids": ids, "logprobs": told, "finish_reason": "length", **more}]}


@contextmanager
def service(script: Callable[[Body], Body], asked: list[Body], *, first_logprob: float = 0.0) -> Generator[str]:
    """`/v1/completions` by a script; the greeting is answered with `first_logprob`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/completions"
            hello = body.get("top_k") == 1
            if not hello:
                asked.append(body)
            data = json.dumps(choice([3], [first_logprob]) if hello else script(body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def request(name: str, text: str = "bc", **sampling: Any) -> RolloutRequest:
    task = Task(id=f"task-{name}", messages=(Message(role="user", content=text),))
    return RolloutRequest(id=name, task=task, group_id="g", sampling=Sampling(**sampling))


def drawn(base_url: str, *asked: RolloutRequest) -> list[Rollout]:
    async def run() -> list[Rollout]:
        options = OpenAIOptions(base_url=base_url, model="m", tokens=True, first_pause_s=0.001)
        engine = OpenAIEngine(options, tokenizer=Letters())
        try:
            await engine.push_weights(WeightsRef(version=1))
            assert (engine.policy_version, engine.replays) == (0, True)
            return [rollout async for rollout in engine.generate(asked)]
        finally:
            await engine.aclose()

    return asyncio.run(run())


def test_ids_go_in_and_come_out_with_their_log_probs() -> None:
    asked: list[Body] = []
    with service(lambda _: choice([4, 5, 6], [-0.5, -1.0, -1.5], prompt_token_ids=[1, 2]), asked) as url:
        (rollout,) = drawn(url, request("r", max_new_tokens=3, seed=7, temperature=0.5))
    turn = rollout.turns[-1]
    assert (turn.token_ids, turn.logprobs, rollout.text) == ((4, 5, 6), (-0.5, -1.0, -1.5), "efg")
    assert (rollout.prompt_ids, rollout.finish) == ((1, 2), "length")
    assert rollout.weight_versions == (WeightSpan(version=0, first=0, last=2),)
    (body,) = asked
    assert (body["prompt"], body["return_token_ids"], body["logprobs"]) == ([1, 2], True, 0)
    assert (body["max_tokens"], body["seed"], body["temperature"]) == (3, 7, 0.5)


def test_an_answer_goes_on_from_the_ids_that_a_request_brings() -> None:
    asked: list[Body] = []
    with service(lambda _: choice([4], [-0.5], prompt_token_ids=[1, 2, 9]), asked) as url:
        (rollout,) = drawn(url, request("r", max_new_tokens=1).model_copy(update={"prompt_ids": (1, 2, 9)}))
    assert (asked[0]["prompt"], rollout.prompt_ids, rollout.text) == ([1, 2, 9], (1, 2, 9), "e")


def test_the_text_ends_before_a_stop_text_that_the_tokens_go_beyond() -> None:
    with service(lambda _: choice([4, 5, 6, 7], [-1.0] * 4, finish_reason="stop"), []) as url:
        (rollout,) = drawn(url, request("r", stop=("gh",)))
    assert (rollout.text, rollout.finish, rollout.turns[-1].token_ids) == ("ef", "stop", (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (choice(None, [-1.0]), r"no token ids \(token_ids\); such a service is for judges, labels and evaluation"),
        (choice([4], None), r"no log-probs \(logprobs\)"),
        (choice([4, 5], [-1.0]), "2 token ids and 1 log-probs"),
        (choice([4], [-1.0], prompt_token_ids=[9]), "other prompt ids"),
        ({"choices": []}, "the reply is no completion"),
    ],
)
def test_a_service_without_ids_or_log_probs_stops_the_run_and_says_what_it_is_for(reply: Body, words: str) -> None:
    with service(lambda _: reply, []) as url, pytest.raises(EngineError, match=words):
        drawn(url, request("r"))


def test_log_probs_from_before_the_temperature_are_refused_where_that_matters() -> None:
    with service(lambda _: choice([4], [-1.0]), [], first_logprob=-2.0) as url:
        (rollout,) = drawn(url, request("r", temperature=1.0))
        assert rollout.turns[-1].logprobs == (-1.0,)
        with pytest.raises(EngineError, match="from before temperature and top-p; use temperature = 1"):
            drawn(url, request("r", temperature=0.7))


def test_tokens_need_the_policys_tokenizer() -> None:
    with pytest.raises(ConfigError, match="there is no policy whose tokenizer makes the ids"):
        OpenAIEngine(OpenAIOptions(base_url="http://127.0.0.1:9/v1", model="m", tokens=True))
