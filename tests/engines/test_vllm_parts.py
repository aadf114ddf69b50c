"""The parts of the engine `vllm` that need no vLLM, and the engine against a scripted server on loopback."""

import asyncio
import json
import re
import socket
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assay.component import BuildContext
from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, WeightSpan, WeightsRef
from assay.errors import ConfigError, EngineError
from assay.registry import component_from
from assay_engines.vllm.engine import Speaker, VLLMEngine
from assay_engines.vllm.files import check_weights
from assay_engines.vllm.host import GivenHost
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.partial import Partial, ServerSpan, attempt_seed
from assay_engines.vllm.probing import Probe, compare
from assay_engines.vllm.server import find_python, free_port, server_command
from assay_engines.vllm.transfer import FileTransfer

Body = Mapping[str, Any]
Chunk = Mapping[str, Any] | None
"""What the scripted server streams; None cuts the connection."""
EngineAt = Callable[[str], VLLMEngine]


class ScriptedVLLM(Protocol):
    """Serves for the time of a block."""

    def __call__(
        self,
        script: Callable[[Body], Sequence[Chunk]],
        asked: list[Body],
        *,
        greeting: Body = ...,
        posted: list[str] | None = None,
    ) -> AbstractContextManager[str]: ...


def span(version: int, first: int, last: int) -> WeightSpan:
    return WeightSpan(version=version, first=first, last=last)


# ---- Which tokens survive, and whose they are ------------------------------------------------------------------------


def test_a_finished_attempt_carries_the_servers_versions() -> None:
    partial = Partial()
    partial.begin(3, updating=False)
    partial.add([5, 6, 7], [-1.0, -2.0, -3.0])
    partial.close([ServerSpan(3, 0, 2), ServerSpan(4, 2, 3)])
    assert partial.spans == [span(3, 0, 1), span(4, 2, 2)]
    partial.add([8], [-1.0])
    with pytest.raises(ValueError, match="cover 3 of 4 tokens"):
        partial.close([])


def test_a_lost_attempt_keeps_what_came_before_an_update_began() -> None:
    partial = Partial()
    partial.begin(1, updating=False)
    partial.add([1, 2], [-1.0, -1.0])
    partial.doubt()
    partial.add([3], [-1.0])
    partial.doubt()
    partial.lose(keep=True)
    assert (partial.tokens, partial.spans, partial.kept) == ([1, 2], [span(1, 0, 1)], 2)
    partial.begin(2, updating=True)
    partial.add([9], [-1.0])
    partial.lose(keep=True)
    assert (partial.tokens, partial.kept) == ([1, 2], 2)
    partial.begin(1, updating=False)
    partial.add([4], [-1.0])
    partial.close([ServerSpan(1, 0, 1)])
    assert partial.spans == [span(1, 0, 2)]
    partial.lose(keep=False)
    assert (partial.tokens, partial.logprobs, partial.spans, partial.kept) == ([], [], [], 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=8))
def test_versions_cover_every_kept_token_once_in_order(attempts: list[tuple[int, bool, bool]]) -> None:
    partial = Partial()
    version = 0
    for count, update, finished in attempts:
        partial.begin(version, updating=False)
        partial.add(range(count), [-1.0] * count)
        if update:
            partial.doubt()
            partial.add([99], [-2.0])
        if finished:
            partial.close([ServerSpan(version, 0, count), *([ServerSpan(version + 1, count, count + 1)] * update)])
        else:
            partial.lose(keep=True)
        version += update
        covered = [place for each in partial.spans for place in range(each.first, each.last + 1)]
        assert covered == list(range(len(partial.tokens)))
        assert [each.version for each in partial.spans] == sorted({each.version for each in partial.spans})
        assert len(partial.logprobs) == len(partial.tokens) == partial.kept


def test_an_attempt_that_goes_on_draws_with_other_random_numbers() -> None:
    assert attempt_seed(7, 0) == 7
    assert len({attempt_seed(7, kept) for kept in range(50)}) == 50
    assert all(0 <= attempt_seed(2**64 - 1, kept) < 2**63 for kept in range(5))


# ---- Files and the probe ---------------------------------------------------------------------------------------------


def write_weights(folder: Path, shapes: Mapping[str, Sequence[int]], *, cut: int = 0, tied: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {}
    place = 0
    for name, shape in shapes.items():
        size = 4
        for each in shape:
            size *= each
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + b"\0" * place
    (folder / "model.safetensors").write_bytes(data[: len(data) - cut])
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}), encoding="utf-8")
    return folder


def test_weights_are_checked_before_the_server_is_touched(tmp_path: Path) -> None:
    known = {"embed.weight": (4, 2), "lm_head.weight": (4, 2)}
    good = write_weights(tmp_path / "good", known)
    assert check_weights(good, known) == ["model.safetensors"]
    tied = write_weights(tmp_path / "tied", {"embed.weight": (4, 2)}, tied=True)
    assert check_weights(tied, known) == ["model.safetensors"]
    cases = {
        "no safetensors": tmp_path,
        "missing ['lm_head.weight']": write_weights(tmp_path / "a", {"embed.weight": (4, 2)}),
        "unknown ['other']": write_weights(tmp_path / "b", {**known, "other": (1,)}),
        "has the shape [4, 3]": write_weights(tmp_path / "c", {**known, "embed.weight": (4, 3)}),
        "should have": write_weights(tmp_path / "d", known, cut=5),
        "no whole safetensors file": write_weights(tmp_path / "e", {}, cut=9),
    }
    for words, folder in cases.items():
        with pytest.raises(EngineError, match=re.escape(words)):
            check_weights(folder, known)


PROBE = Probe(
    prompt_ids=(1, 2), token_ids=(5, 6, 7), logprobs=(-0.5, -1.0, -1.5), margins=(1.0, 1e-4, 1.0), dtype="float32"
)


def test_the_probe_tells_other_weights_from_rounding() -> None:
    compare(PROBE, [5, 6, 7], [-0.50003, -1.0, -1.4999], version=1)
    compare(
        PROBE, [5, 9, 9], [-0.5, -1.00005, -4.0], version=1
    )  # a tie that rounding decides; nothing compares after it
    with pytest.raises(EngineError, match=r"version 3 .* token 0 is 8 .* did not take all of the weights"):
        compare(PROBE, [8, 6, 7], [-0.5, -1.0, -1.5], version=3)
    with pytest.raises(EngineError, match="token 2"):
        compare(PROBE, [5, 6, 7], [-0.5, -1.0, -1.53], version=3)
    with pytest.raises(EngineError, match="ends after 1 of 3"):
        compare(PROBE, [5], [-0.5], version=3)
    compare(PROBE, [5, 6, 7], [-0.6, -1.1, -1.4], version=1, dtype="bfloat16")


# ---- Options and the command -----------------------------------------------------------------------------------------


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    component = component_from("assay_engines", "rollout_engine", "vllm")
    for url in ("http://10.0.0.1:8000", "https://127.0.0.1:8000", "127.0.0.1:8000"):
        with pytest.raises(ValidationError, match="url must be on this host"):
            component.config(url=url)
    with pytest.raises(ConfigError, match=r"no vLLM environment in .*/nowhere; make it once with `make vllm`"):
        component.build(component.config(environment="nowhere"), BuildContext(base_dir=tmp_path))
    with pytest.raises(ConfigError, match="no policy to sample from"):
        component.build(component.config(url="http://127.0.0.1:1"), BuildContext())
    with pytest.raises(ConfigError, match="no vLLM environment"):
        find_python(VLLMOptions(), tmp_path, tmp_path)


def test_the_server_listens_on_loopback_alone_and_gives_log_probs_after_temperature() -> None:
    command = server_command(Path("py"), Path("m"), VLLMOptions(max_rows=7), dtype="float32", port=9, on_cpu=True)
    words = " ".join(command)
    assert "--host 127.0.0.1 --port 9" in words
    assert "--logprobs-mode processed_logprobs" in words
    assert "--max-num-seqs 7" in words
    assert {"--enforce-eager", "--no-enable-chunked-prefill"} <= set(command)
    further = VLLMOptions(server_args=("--tensor-parallel-size", "2"), max_model_len=64)
    command = server_command(Path("py"), Path("m"), further, dtype="bfloat16", port=9, on_cpu=False)
    assert command[-4:] == ["--max-model-len", "64", "--tensor-parallel-size", "2"]


def test_a_port_is_none_that_the_kernel_gives_to_connections_until_the_server_has_it() -> None:
    found = [free_port() for _ in range(50)]
    assert len(set(found)) > 40
    assert max(found) < 32_768
    taken = socket.create_server(("127.0.0.1", found[0]))
    with taken, pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay_engines.vllm.server.PORTS", [found[0]] * 100)
        with pytest.raises(EngineError, match="none of 100 ports of loopback"):
            free_port()


# ---- The engine against a scripted server ----------------------------------------------------------------------------


def chunk(tokens: Sequence[int], finish: str | None = None, versions: Sequence[tuple[str, int, int]] = ()) -> Body:
    content = [{"token_id": token, "logprob": -0.25} for token in tokens]
    spans = [{"version": version, "start": start, "end": end} for version, start, end in versions]
    choice = {"token_ids": list(tokens), "logprobs": {"content": content}, "finish_reason": finish}
    return {"choices": [choice | {"weight_versions": spans or None}]}


GREETING: Body = json.loads(json.dumps(chunk([3], "length", [("0", 0, 1)])).replace("-0.25", "0.0"))
"""As of log-probs after top-k: the one token that is left has the log-prob 0."""


@pytest.fixture
def scripted_vllm(scripted: Callable[..., AbstractContextManager[str]]) -> ScriptedVLLM:
    """A server with vLLM's routes whose token streams are a script's; every generate body is kept in `asked`.

    `posted` is filled with the routes of all other requests that change something.
    """

    @contextmanager
    def serve(
        script: Callable[[Body], Sequence[Chunk]],
        asked: list[Body],
        *,
        greeting: Body = GREETING,
        posted: list[str] | None = None,
    ) -> Generator[str]:
        def answer(route: str, body: Body | None) -> Body | Sequence[Chunk]:
            if body is None:
                return {"data": [{"id": "scripted", "root": "/m", "max_model_len": 64}]}
            if route != "/inference/v1/generate":
                if posted is not None:
                    posted.append(route)
                return {}
            if str(body["request_id"]).startswith("assay-greeting"):
                return [greeting]
            asked.append(body)
            return script(body)

        with scripted(answer) as url:
            yield url

    return serve


@pytest.fixture
def engine_at(letters: Any, tmp_path: Path) -> EngineAt:
    """An engine on the server at a url."""

    def make(url: str) -> VLLMEngine:
        model = write_weights(tmp_path / "model", {"w": (2,)})
        host = GivenHost(url, VLLMOptions(url=url, start_s=60), FileTransfer())
        speaker = Speaker(letters, frozenset({25}), "plain")
        return VLLMEngine(
            host, speaker, model=model, weights_folder=tmp_path / "weights", transfer=FileTransfer(), dtype="float32"
        )

    return make


def request(name: str, text: str = "bc", **sampling: Any) -> RolloutRequest:
    task = Task(id=f"task-{name}", messages=(Message(role="user", content=text),))
    return RolloutRequest(id=name, task=task, group_id="g", sampling=Sampling(**sampling))


def drawn(engine: VLLMEngine, asked: Sequence[RolloutRequest]) -> list[Rollout]:
    async def run() -> list[Rollout]:
        try:
            return [rollout async for rollout in engine.generate(asked)]
        finally:
            await engine.aclose()

    return asyncio.run(run())


def test_a_request_that_was_lost_goes_on_from_the_tokens_it_has(
    scripted_vllm: ScriptedVLLM, engine_at: EngineAt
) -> None:
    asked: list[Body] = []

    def script(body: Body) -> Sequence[Chunk]:
        if len(asked) == 1:
            return [chunk([3, 4]), chunk([5]), None]
        return [chunk([6]), chunk([25], "stop", [("0", 0, 2)])]

    with scripted_vllm(script, asked) as url:
        (rollout,) = drawn(engine_at(url), [request("r", max_new_tokens=9, seed=5)])
    assert rollout.turns[-1].token_ids == (3, 4, 5, 6, 25)
    assert (rollout.text, rollout.finish, rollout.prompt_ids) == ("defg", "stop", (1, 2))
    assert rollout.weight_versions == (span(0, 0, 4),)
    first, second = asked
    assert first["token_ids"] == [1, 2]
    assert second["token_ids"] == [1, 2, 3, 4, 5]
    assert (first["sampling_params"]["max_tokens"], second["sampling_params"]["max_tokens"]) == (9, 6)
    assert first["sampling_params"]["seed"] == 5 != second["sampling_params"]["seed"]
    assert first["request_id"] != second["request_id"]


def test_a_stop_text_may_lie_across_two_attempts_so_the_response_begins_afresh(
    scripted_vllm: ScriptedVLLM, engine_at: EngineAt
) -> None:
    asked: list[Body] = []

    def script(body: Body) -> Sequence[Chunk]:
        return [chunk([3]), None] if len(asked) == 1 else [chunk([3, 4, 5], "stop", [("0", 0, 3)])]

    with scripted_vllm(script, asked) as url:
        (rollout,) = drawn(engine_at(url), [request("r", max_new_tokens=9, seed=5, stop=("ef",))])
    assert (rollout.text, rollout.turns[-1].token_ids) == ("d", (3, 4, 5))
    assert asked[0]["token_ids"] == asked[1]["token_ids"] == [1, 2]
    assert asked[0]["sampling_params"] == asked[1]["sampling_params"]


def test_an_abort_that_nobody_here_asked_for_is_gone_on_with(scripted_vllm: ScriptedVLLM, engine_at: EngineAt) -> None:
    asked: list[Body] = []

    def script(body: Body) -> Sequence[Chunk]:
        if len(asked) == 1:
            return [chunk([3, 4]), chunk([], "abort", [("0", 0, 2)])]
        return [chunk([5], "length", [("0", 0, 1)])]

    with scripted_vllm(script, asked) as url:
        (rollout,) = drawn(engine_at(url), [request("r", max_new_tokens=3)])
    assert (rollout.turns[-1].token_ids, rollout.finish) == ((3, 4, 5), "length")


def test_a_stop_text_may_lie_across_an_abort_that_nobody_here_asked_for(
    scripted_vllm: ScriptedVLLM, engine_at: EngineAt
) -> None:
    asked: list[Body] = []

    def script(body: Body) -> Sequence[Chunk]:
        if len(asked) == 1:
            return [chunk([3, 4]), chunk([], "abort", [("0", 0, 2)])]
        return [chunk([3, 4, 5], "stop", [("0", 0, 3)])]

    with scripted_vllm(script, asked) as url:
        (rollout,) = drawn(engine_at(url), [request("r", max_new_tokens=9, stop=("ef",))])
    assert (rollout.text, rollout.turns[-1].token_ids, rollout.finish) == ("d", (3, 4, 5), "stop")
    assert rollout.weight_versions == (span(0, 0, 2),)
    assert asked[0]["token_ids"] == asked[1]["token_ids"] == [1, 2]


ANSWER = {"prompt_ids": [9], "token_ids": [3], "logprobs": [-0.25], "margins": [1.0], "dtype": "float32"}
PUSH = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"]


@pytest.mark.parametrize("version", [0, 3])
def test_a_server_that_somebody_else_runs_is_given_the_weights_of_a_run_that_begins_or_goes_on(
    scripted_vllm: ScriptedVLLM, engine_at: EngineAt, version: int, tmp_path: Path
) -> None:
    asked: list[Body] = []
    posted: list[str] = []
    folder = write_weights(tmp_path / "published", {"w": (2,)})
    (folder / "probe.json").write_text(json.dumps(ANSWER), encoding="utf-8")

    async def run() -> list[Rollout]:
        engine = engine_at(url)
        try:
            await engine.push_weights(WeightsRef(version=version, path=str(folder)))
            return [rollout async for rollout in engine.generate([request("r", max_new_tokens=1)])]
        finally:
            await engine.aclose()

    with scripted_vllm(lambda _: [chunk([3], "length", [(str(version), 0, 1)])], asked, posted=posted) as url:
        (rollout,) = asyncio.run(run())
    assert posted == ["/pause?mode=keep", *PUSH, "/resume", "/update_weight_version"]
    assert [body["token_ids"] for body in asked] == [[9], [1, 2]]
    assert rollout.weight_versions == (span(version, 0, 0),)


def test_a_server_that_an_ended_run_left_paused_goes_on(scripted_vllm: ScriptedVLLM, engine_at: EngineAt) -> None:
    posted: list[str] = []
    with scripted_vllm(lambda _: [chunk([3], "length", [("0", 0, 1)])], [], posted=posted) as url:
        drawn(engine_at(url), [request("r", max_new_tokens=1)])
    assert posted == ["/resume", "/update_weight_version"]


def test_a_request_that_is_lost_again_and_again_stops_with_its_name(
    scripted_vllm: ScriptedVLLM, engine_at: EngineAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay_engines.vllm.host._ALIVE_S", 0.0)
    with (
        scripted_vllm(lambda _: [None], []) as url,
        pytest.raises(EngineError, match="request 'r' was lost 6 times"),
    ):
        drawn(engine_at(url), [request("r", max_new_tokens=3)])


def test_replies_that_cannot_be_trusted_stop_the_run(scripted_vllm: ScriptedVLLM, engine_at: EngineAt) -> None:
    broken = chunk([3], "length", [("0", 0, 1)])
    nan = json.loads(json.dumps(broken).replace("-0.25", "-9999.0"))
    other = json.loads(json.dumps(broken).replace('"token_id": 3', '"token_id": 4'))
    gap = chunk([3, 4], "length", [("0", 0, 1)])
    strange = chunk([3], "length", [("default", 0, 1)])
    foreign = chunk([3], "length", [("7", 0, 1)])
    cases = {
        "not a number": nan,
        "do not belong to the tokens": other,
        "cover 1 of 2": gap,
        "not by a number of ours": strange,
        "version 7 made tokens, and it had 0 to 0 meanwhile; somebody else gives it weights": foreign,
    }
    for words, reply in cases.items():
        with scripted_vllm(lambda _, reply=reply: [reply], []) as url, pytest.raises(EngineError, match=words):
            drawn(engine_at(url), [request("r", max_new_tokens=3)])
    with (
        scripted_vllm(lambda _: [], [], greeting=chunk([3], "length", [("0", 0, 1)])) as url,
        pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"),
    ):
        drawn(engine_at(url), [request("r")])


def test_what_does_not_fit_is_refused_before_the_first_token(scripted_vllm: ScriptedVLLM, engine_at: EngineAt) -> None:
    asked: list[Body] = []
    with scripted_vllm(lambda _: [], asked) as url:
        with pytest.raises(EngineError, match=r"2 prompt tokens \+ max_new_tokens 63 > 64 positions"):
            drawn(engine_at(url), [request("a", max_new_tokens=9), request("r", max_new_tokens=63)])
        with pytest.raises(EngineError, match="'a': asked for twice"):
            drawn(engine_at(url), [request("a", max_new_tokens=9), request("a", max_new_tokens=9)])
    assert not asked


def test_pushes_that_cannot_be_are_refused(engine_at: EngineAt, tmp_path: Path) -> None:
    engine = engine_at("http://127.0.0.1:9")
    with pytest.raises(EngineError, match="reads weights from a folder"):
        asyncio.run(engine.push_weights(WeightsRef(version=1)))
    write_weights(tmp_path / "other", {"w": (3,)})
    with pytest.raises(EngineError, match="has the shape"):
        asyncio.run(engine.push_weights(WeightsRef(version=1, path=str(tmp_path / "other"))))
    assert engine.policy_version == 0
