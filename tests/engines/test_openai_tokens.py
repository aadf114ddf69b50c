"""The engine `openai` with `tokens`: ids and log-probs from a service, and a sentence where it gives none."""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import pytest

from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, WeightSpan, WeightsRef
from assay.errors import ConfigError, EngineError
from assay_engines.openai import OpenAIEngine, OpenAIOptions

Body = Mapping[str, Any]
Drawn = Callable[..., list[Rollout]]


class Service(Protocol):
    """Serves for the time of a block; what is asked is kept in `asked`."""

    def __call__(
        self, script: Callable[[Body], Body], asked: list[Body], *, first_logprob: float = 0.0
    ) -> AbstractContextManager[str]: ...


def choice(ids: Sequence[int] | None, logprobs: Sequence[float] | None, **more: Any) -> Body:
    told = None if logprobs is None else {"token_logprobs": list(logprobs)}
    return {"choices": [{"text": "?", "token_ids": ids, "logprobs": told, "finish_reason": "length", **more}]}


@pytest.fixture
def service(scripted: Callable[..., AbstractContextManager[str]]) -> Service:
    """`/v1/completions` by a script; the greeting is answered with `first_logprob`."""

    @contextmanager
    def serve(script: Callable[[Body], Body], asked: list[Body], *, first_logprob: float = 0.0) -> Generator[str]:
        def answer(route: str, body: Body) -> Body:
            assert route == "/v1/completions"
            if body.get("top_k") == 1:
                return choice([3], [first_logprob])
            asked.append(body)
            return script(body)

        with scripted(answer) as url:
            yield f"{url}/v1"

    return serve


def request(name: str, text: str = "bc", **sampling: Any) -> RolloutRequest:
    task = Task(id=f"task-{name}", messages=(Message(role="user", content=text),))
    return RolloutRequest(id=name, task=task, group_id="g", sampling=Sampling(**sampling))


@pytest.fixture
def drawn(letters: Any) -> Drawn:
    """What an engine at a url answers to requests."""

    async def draw(base_url: str, asked: Sequence[RolloutRequest]) -> list[Rollout]:
        options = OpenAIOptions(base_url=base_url, model="m", tokens=True, first_pause_s=0.001)
        engine = OpenAIEngine(options, tokenizer=letters)
        try:
            await engine.push_weights(WeightsRef(version=1))
            assert (engine.policy_version, engine.replays) == (0, True)
            return [rollout async for rollout in engine.generate(asked)]
        finally:
            await engine.aclose()

    def run(base_url: str, *asked: RolloutRequest) -> list[Rollout]:
        return asyncio.run(draw(base_url, asked))

    return run


def test_ids_go_in_and_come_out_with_their_log_probs(service: Service, drawn: Drawn) -> None:
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


def test_an_answer_goes_on_from_the_ids_that_a_request_brings(service: Service, drawn: Drawn) -> None:
    asked: list[Body] = []
    with service(lambda _: choice([4], [-0.5], prompt_token_ids=[1, 2, 9]), asked) as url:
        (rollout,) = drawn(url, request("r", max_new_tokens=1).model_copy(update={"prompt_ids": (1, 2, 9)}))
    assert (asked[0]["prompt"], rollout.prompt_ids, rollout.text) == ([1, 2, 9], (1, 2, 9), "e")


def test_the_text_ends_before_a_stop_text_that_the_tokens_go_beyond(service: Service, drawn: Drawn) -> None:
    with service(lambda _: choice([4, 5, 6, 7], [-1.0] * 4, finish_reason="stop"), []) as url:
        (rollout,) = drawn(url, request("r", stop=("gh",)))
    assert (rollout.text, rollout.finish, rollout.turns[-1].token_ids) == ("ef", "stop", (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "stop"), ("length", "length"), ("abort", "abort"), ("content_filter", "error")]
)
def test_an_answer_that_was_cut_is_no_whole_one(reason: str, finish: str, service: Service, drawn: Drawn) -> None:
    with service(lambda _: choice([4], [-0.5], finish_reason=reason), []) as url:
        (rollout,) = drawn(url, request("r"))
    assert rollout.finish == finish


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (choice(None, [-1.0]), r"no token ids \(token_ids\); such a service is for judges, labels and evaluation"),
        (choice([4], None), r"no log-probs \(logprobs\)"),
        (choice([4, 5], [-1.0]), "2 token ids and 1 log-probs"),
        (choice([4], [-9999.0]), "no log-prob of a token that it drew: not a number"),
        (choice([4], [-1.0], prompt_token_ids=[9]), "other prompt ids"),
        ({"choices": []}, "the reply is no completion"),
    ],
)
def test_a_service_without_ids_or_log_probs_stops_the_run_and_says_what_it_is_for(
    reply: Body, words: str, service: Service, drawn: Drawn
) -> None:
    with service(lambda _: reply, []) as url, pytest.raises(EngineError, match=words):
        drawn(url, request("r"))


def test_log_probs_from_before_the_temperature_are_refused_where_that_matters(service: Service, drawn: Drawn) -> None:
    with service(lambda _: choice([4], [-1.0]), [], first_logprob=-2.0) as url:
        (rollout,) = drawn(url, request("r", temperature=1.0))
        assert rollout.turns[-1].logprobs == (-1.0,)
        with pytest.raises(EngineError, match="from before temperature and top-p; use temperature = 1"):
            drawn(url, request("r", temperature=0.7))


def test_tokens_need_the_policys_tokenizer() -> None:
    with pytest.raises(ConfigError, match="there is no policy whose tokenizer makes the ids"):
        OpenAIEngine(OpenAIOptions(base_url="http://127.0.0.1:9/v1", model="m", tokens=True))
