"""How a request is put to an OpenAI-compatible service and its reply read: as a chat, or as token ids.

`ChatForm` works everywhere and gives text only. `TokenForm` hands over the prompt as ids and asks for the ids and the
log-probs of what was drawn (`return_token_ids`, as vLLM and SGLang offer it on `/completions`); a service that leaves
them out is refused, since ids made again from a text are not always those that were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.contracts import Finish, Rollout, RolloutRequest, Turn, WeightSpan
from assay.errors import EngineError
from assay_engines.transformers.rendering import Template, render

WITHOUT_TOKENS = (
    "such a service is for judges, labels and evaluation; training needs one that returns the ids that it drew, with "
    "their log-probs, as vLLM does"
)


_FINISHES: dict[str, Finish] = {"length": "length", "abort": "abort", "error": "error", "content_filter": "error"}
"""Reasons that leave less than the whole answer; every other one is an end of its own."""
_NO_LOGPROB = -9999.0
"""What vLLM sends in place of a log-prob that is not a number."""


class TokensError(EngineError):
    """A service does not give what can be learned from; no further request will help."""


class Form(Protocol):
    """One way to ask."""

    route: str
    """What is added to the service's root."""

    def body(self, request: RolloutRequest) -> dict[str, Any]:
        """The JSON to post."""
        ...

    def rollout(self, request: RolloutRequest, reply: bytes) -> Rollout:
        """The rollout in a reply; raises `EngineError` for a reply that is none."""
        ...


class ChatForm:
    """Messages in, text out."""

    route = "/chat/completions"

    def __init__(self, model: str) -> None:
        """Ask the model of this name."""
        self._model = model

    def body(self, request: RolloutRequest) -> dict[str, Any]:
        """The JSON to post."""
        if request.prompt_ids is not None:
            raise EngineError(f"request {request.id!r}: a chat cannot go on from token ids; use tokens = true")
        messages = [{"role": message.role, "content": message.content} for message in request.task.messages]
        body = {"model": self._model, "messages": messages} | _sampling(request)
        if messages[-1]["role"] == "assistant":
            # An answer that is to be continued. vLLM and SGLang know these keys; a service that does not refuses them.
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def rollout(self, request: RolloutRequest, reply: bytes) -> Rollout:
        """The text in a reply."""
        try:
            choice = _Chat.model_validate_json(reply).choices[0]
        except ValidationError as error:
            raise EngineError(f"the reply is no chat completion: {_short(reply)}") from error
        return text_rollout(request, choice.message.content or "", _finish(choice.finish_reason))


class TokenForm:
    """Token ids in, token ids and log-probs out."""

    route = "/completions"

    def __init__(self, model: str, tokenizer: Any, template: Template) -> None:
        """Ask the model of this name, whose tokenizer must be `tokenizer`; messages become a prompt by `template`."""
        self._model = model
        self._tokenizer = tokenizer
        self._template: Template = template

    def prompt(self, request: RolloutRequest) -> tuple[int, ...]:
        """The prompt's ids."""
        return request.prompt_ids or render(request.task, self._tokenizer, self._template)

    def body(self, request: RolloutRequest) -> dict[str, Any]:
        """The JSON to post."""
        asked = {"model": self._model, "prompt": list(self.prompt(request)), "logprobs": 0, "return_token_ids": True}
        return asked | _sampling(request)

    def rollout(self, request: RolloutRequest, reply: bytes) -> Rollout:
        """The tokens in a reply, with the log-probs that they were drawn with; raises `TokensError` for less."""
        try:
            choice = _Completion.model_validate_json(reply).choices[0]
        except ValidationError as error:
            raise TokensError(f"the reply is no completion: {_short(reply)}") from error
        ids, prompt = choice.token_ids, self.prompt(request)
        if ids is None or choice.logprobs is None:
            missing = "token ids (token_ids)" if ids is None else "log-probs (logprobs)"
            raise TokensError(f"tokens = true, and the reply has no {missing}; {WITHOUT_TOKENS}")
        if choice.prompt_token_ids is not None and tuple(choice.prompt_token_ids) != prompt:
            raise TokensError(
                "the service answered to other prompt ids than it was given; it changes prompts by itself"
            )
        logprobs = choice.logprobs.token_logprobs
        if len(logprobs) != len(ids):
            raise TokensError(f"the reply has {len(ids)} token ids and {len(logprobs)} log-probs; they belong together")
        if not all(math.isfinite(logprob) and logprob > _NO_LOGPROB for logprob in logprobs):
            raise TokensError("the service gave no log-prob of a token that it drew: not a number")
        finish = _finish(choice.finish_reason)
        return Rollout(
            id=request.id,
            task_id=request.task.id,
            group_id=request.group_id,
            turns=(Turn(text=self._text(ids, request, finish), token_ids=tuple(ids), logprobs=tuple(logprobs)),),
            prompt_ids=prompt,
            weight_versions=(WeightSpan(version=0, first=0, last=len(ids) - 1),) if ids else (),
            finish=finish,
            sampling=request.sampling,
        )

    def _text(self, ids: Sequence[int], request: RolloutRequest, finish: Finish) -> str:
        text = str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
        places = [place for stop in request.sampling.stop if (place := text.find(stop)) >= 0]
        return text[: min(places, default=None)] if finish == "stop" else text


def text_rollout(request: RolloutRequest, text: str, finish: Finish) -> Rollout:
    """A rollout of text alone."""
    return Rollout(
        id=request.id,
        task_id=request.task.id,
        group_id=request.group_id,
        turns=(Turn(text=text),),
        finish=finish,
        sampling=request.sampling,
    )


def greeting(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose one token has the log-prob 0 where log-probs are taken after temperature, top-p and top-k."""
    return {**body, "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 1, "stop": []}


def _sampling(request: RolloutRequest) -> dict[str, Any]:
    sampling = request.sampling
    asked: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_new_tokens,
        "seed": sampling.seed,
    }
    return asked | ({"stop": list(sampling.stop)} if sampling.stop else {})


def _finish(reason: str | None) -> Finish:
    return _FINISHES.get(reason or "stop", "stop")


def _short(reply: bytes) -> str:
    return " ".join(reply[:200].decode("utf-8", "replace").split())


class _Part(BaseModel):
    """A part of a service's reply; what is not needed is ignored."""

    model_config = ConfigDict(extra="ignore")


class _Text(_Part):
    content: str | None = None


class _Message(_Part):
    message: _Text
    finish_reason: str | None = None


class _Chat(_Part):
    choices: list[_Message] = Field(min_length=1)


class _Logprobs(_Part):
    token_logprobs: list[float]


class _Tokens(_Part):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Completion(_Part):
    choices: list[_Tokens] = Field(min_length=1)
