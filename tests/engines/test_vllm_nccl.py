"""Weights sent to vLLM over NCCL, on machines without a GPU: NCCL itself is a stand-in, all around it is what runs.

The stand-in (`stand_in/nccl.c`) has NCCL's functions and signatures and is loaded by both sides. On a real server
vLLM's own `nccl` backend, its packing and its binding receive; only calls into CUDA are answered by doing nothing.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
import base64
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.component import BuildContext
from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, WeightsRef
from assay.errors import ConfigError, EngineError
from assay.process import descendants
from assay.registry import component_from
from assay.training.model import PolicyModel, load_policy
from assay.training.tiny import make_tiny_model
from assay.training.weights import Publisher, save_policy
from assay_engines.vllm.build import build_engine
from assay_engines.vllm.engine import VLLMEngine
from assay_engines.vllm.host import GivenHost
from assay_engines.vllm.nccl import NcclError, load
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.server import Server, free_port, server_command
from assay_engines.vllm.transfer import NcclTransfer, chunks

HERE = Path(__file__).parent / "stand_in"
CPU = torch.device("cpu")
CHUNK = 20_000
"""Small, so that a tiny model takes several pieces."""
Body = Mapping[str, Any]
Shake = Callable[[PolicyModel, int], None]
Scripted = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    built = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(built), str(HERE / "nccl.c")], check=True)
    return built


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory, shake: Shake) -> PolicyModel:
    """A tiny policy with an output layer of its own: on a CPU vLLM's stock reload leaves a tied one behind."""
    folder = make_tiny_model(tmp_path_factory.mktemp("untied") / "model", seed=3, hidden_size=64)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}), encoding="utf-8")
    policy = load_policy(str(folder))
    shake(policy, 0)
    save_policy(policy, folder)
    return policy


def request(name: str, **sampling: Any) -> RolloutRequest:
    task = Task(id=f"task-{name}", messages=(Message(role="user", content="12+30="),))
    return RolloutRequest(id=name, task=task, group_id="g", sampling=Sampling(**sampling))


# ---- What is sent ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 60))
def test_the_stream_is_cut_where_vllm_cuts_it(sizes: list[int], limit: int) -> None:
    values = [torch.arange(size, dtype=torch.float32) for size in sizes]
    pieces = list(chunks(values, limit))
    # As `packed_nccl_broadcast_consumer` of vLLM 0.32 does: a piece ends after the tensor by which it grows too large.
    expected: list[int] = []
    held, waiting = 0, False
    for size in sizes:
        held, waiting = held + 4 * size, True
        if held > limit:
            expected.append(held)
            held, waiting = 0, False
    if waiting:
        expected.append(held)
    assert [piece.numel() for piece in pieces] == expected
    if values:
        assert torch.equal(torch.cat(pieces).view(torch.float32), torch.cat(values))


def test_without_a_gpu_it_is_refused_before_anything_starts(untied: PolicyModel, tmp_path: Path) -> None:
    component = component_from("assay_engines", "rollout_engine", "vllm")
    context = BuildContext(policy=untied, base_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"transfer = 'nccl' sends weights from GPU to GPU, and .* trains on 'cpu'"):
        component.build(component.config(transfer="nccl"), context)
    with pytest.raises(NcclError, match="cannot be loaded"):
        NcclTransfer(CPU, library=str(tmp_path / "absent.so"))
    with pytest.raises(ConfigError, match="transfer"):
        build_engine(VLLMOptions(transfer="nccl", url="http://127.0.0.1:1"), context)
    command = server_command(Path("py"), Path("m"), VLLMOptions(transfer="nccl"), dtype="float32", port=1, on_cpu=False)
    assert command[command.index("--weight-transfer-config") + 1] == '{"backend":"nccl"}'


# ---- Against a scripted server: the calls, their bodies, and what goes wrong -----------------------------------------


@dataclass
class Script:
    """A server with vLLM's routes for weights whose one worker is a thread here, rank 1 of the group."""

    library: Any
    version: str | None = None
    """What it calls its weights; None: as it is told."""
    refuse: str | None = None
    """Route that answers 500."""
    silent_after: int | None = None
    """Pieces after which it drops the group and every connection."""
    calls: list[tuple[str, Body]] = field(default_factory=list[tuple[str, Body]])
    received: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    told: str = ""
    group: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)
    chunk: int = 0
    """Bytes, as it is told at the meeting."""

    def answer(self, route: str, body: Body) -> Body | None:
        """The reply; None cuts the connection."""
        self.calls.append((route, body))
        if route == self.refuse:
            return {"error": "no"}
        if route.startswith("/init"):
            self._join(body["init_info"])
        if route.startswith("/update_weights") and not self._receive(body["update_info"]):
            return None
        if route.startswith("/finish"):
            self.told = body["weight_version"]
        return {
            "world_size": 1,
            "weight_version": self.version or self.told,
            "data": [{"id": "m", "root": "", "max_model_len": 99}],
        }

    def _join(self, told: Body) -> None:
        assert (told["rank_offset"], told["world_size"], told["packed"]) == (1, 2, True)
        self.chunk = told["packed_buffer_size_bytes"]
        code = base64.b64decode(told["nccl_unique_id_b64"], validate=True)
        kind: Any = self.library.ncclCommInitRank.argtypes[2]
        assert self.library.ncclCommInitRank(ctypes.byref(self.group), 2, kind.from_buffer_copy(code), 1) == 0
        number = torch.ones(1)
        place = number.data_ptr()
        assert self.library.ncclAllReduce(place, place, 1, 7, 0, self.group, 0) == 0
        assert number.item() == 1.0, "the trainer's number is 0"

    def _receive(self, told: Body) -> bool:
        sizes = [
            getattr(torch, dtype).itemsize * torch.Size(shape).numel()
            for dtype, shape in zip(told["dtype_names"], told["shapes"], strict=True)
        ]
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        begin = end = pieces = 0
        for place, size in enumerate(sizes):
            end += size
            if end - begin > self.chunk or place == len(sizes) - 1:
                if pieces == self.silent_after:
                    self.library.ncclCommAbort(self.group)
                    return False
                part = data[begin:end]
                assert self.library.ncclBroadcast(None, part.data_ptr(), part.numel(), 1, 0, self.group, 0) == 0
                begin, pieces = end, pieces + 1
        for name, dtype, shape, part in zip(
            told["names"], told["dtype_names"], told["shapes"], data.split(sizes), strict=True
        ):
            self.received[name] = part.clone().view(getattr(torch, dtype)).view(shape)
        return True


GREETING: Body = {
    "choices": [
        {
            "token_ids": [1],
            "logprobs": {"content": [{"token_id": 1, "logprob": 0.0}]},
            "finish_reason": "length",
            "weight_versions": [{"version": "0", "start": 0, "end": 1}],
        }
    ]
}


def answers(script: Script) -> Callable[[str, Body | None], Any]:
    """What the server says: the script's replies, and one token to every request for tokens."""
    return lambda route, body: [GREETING] if route.startswith("/inference") else script.answer(route, body or {})


def engine_at(url: str, policy: PolicyModel, library: Path, weights: Path, **options: Any) -> VLLMEngine:
    """An engine that sends by the stand-in, as one built with `transfer = "nccl"` would by NCCL."""
    from assay_engines.vllm.engine import Speaker

    transfer = NcclTransfer(CPU, library=str(library), chunk_bytes=CHUNK)
    given = VLLMOptions(url=url, transfer="nccl", start_s=120, **options)
    return VLLMEngine(
        GivenHost(url, given, transfer),
        Speaker(policy.tokenizer, frozenset(policy.end_ids), "auto"),
        model=Path(policy.path),
        weights_folder=weights,
        transfer=transfer,
        dtype="float32",
        ignore_end=True,
    )


def published(policy: PolicyModel, folder: Path, version: int, *, probe: bool = False) -> WeightsRef:
    weights = Publisher(policy, folder=folder).publish(version)
    if not probe:
        (Path(weights.path or "") / "probe.json").unlink()
    return weights


def pushed(engine: VLLMEngine, *pushes: WeightsRef) -> None:
    async def run() -> None:
        try:
            [_ async for _ in engine.generate([request("hello", max_new_tokens=1)])]
            for weights in pushes:
                await engine.pause("keep")
                await engine.push_weights(weights)
                await engine.resume()
        finally:
            await engine.aclose()

    asyncio.run(run())


def test_the_calls_and_their_bodies_are_those_that_vllm_expects(
    scripted: Scripted, untied: PolicyModel, library: Path, tmp_path: Path
) -> None:
    script = Script(load(str(library)))
    pushes = [published(untied, tmp_path / "w", version) for version in (1, 2)]
    with scripted(answers(script)) as url:
        pushed(engine_at(url, untied, library, tmp_path / "own"), *pushes)
    routes = [route for route, _ in script.calls if route not in ("/health", "/v1/models")]
    round_of = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/weight_info", "/resume"]
    meeting = ["/shutdown_weight_transfer_engine", "/get_world_size", "/init_weight_transfer_engine"]
    assert routes == [
        "/resume",
        "/update_weight_version",
        "/pause?mode=keep",
        *meeting,
        *round_of,
        "/pause?mode=keep",
        *round_of,
    ]
    told = next(body["init_info"] for route, body in script.calls if route.startswith("/init"))
    assert set(told) == {
        "rank_offset",
        "world_size",
        "nccl_unique_id_b64",
        "packed",
        "packed_buffer_size_bytes",
        "packed_num_buffers",
    }
    state = untied.model.state_dict()
    assert set(script.received) == set(state)
    assert all(torch.equal(script.received[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"silent_after": 0}, "could not take version 1: "),
        ({"silent_after": 2}, "could not take version 1: "),
        ({"refuse": "/init_weight_transfer_engine"}, r"could not take version 1: /init\w+ answered 500"),
        ({"refuse": "/update_weights"}, "could not take version 1: /update_weights answered 500"),
        ({"refuse": "/finish_weight_update"}, "could not take version 1: /finish_weight_update answered 500"),
        ({"version": "7"}, "the server calls its weights '7' after version 1 was pushed"),
    ],
)
def test_a_push_that_fails_half_way_is_one_sentence_and_nothing_hangs(
    broken: dict[str, Any], words: str, scripted: Scripted, untied: PolicyModel, library: Path, tmp_path: Path
) -> None:
    script = Script(load(str(library)), **broken)
    weights = published(untied, tmp_path / "w", 1)
    began = time.monotonic()
    with scripted(answers(script)) as url, pytest.raises(EngineError, match=words):
        pushed(engine_at(url, untied, library, tmp_path / "own"), weights)
    assert time.monotonic() - began < 120, "an exchange that hangs is given up after 300 s"


# ---- On a real server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nccl_server(
    vllm_python: Path, untied: PolicyModel, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A vLLM server with its own `nccl` backend, on the stand-in."""
    port = free_port()
    options = VLLMOptions(max_rows=16, transfer="nccl", server_args=("--worker-extension-cls", "vllm_worker.Extension"))
    command = server_command(vllm_python, Path(untied.path), options, dtype="float32", port=port, on_cpu=True)
    around = ["/usr/bin/env", f"PYTHONPATH={HERE}", f"VLLM_NCCL_SO_PATH={library}"]
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    running = Server([*around, *command], port=port, log=log, kv_cache_gib=1)
    try:
        asyncio.run(_answering(running))
        yield running
    finally:
        running.stop()


async def _answering(server: Server, within_s: float = 900.0) -> None:
    from assay_engines.vllm.routes import Routes

    routes = Routes(server.url)
    async with asyncio.timeout(within_s):
        while not await routes.healthy():
            assert server.running, f"the server ended while it started: {server.last_words()}"
            await asyncio.sleep(0.25)
    await routes.aclose()


def furthest(policy: PolicyModel, rollouts: list[Rollout]) -> float:
    """Largest difference of a sampler's log-prob from a plain forward."""
    worst = 0.0
    for rollout in rollouts:
        prompt, turn = rollout.prompt_ids or (), rollout.turns[-1]
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *(turn.token_ids or ())]])).logits[0].double()
        table = logits[len(prompt) - 1 : -1].log_softmax(-1)
        plain = table.gather(1, torch.tensor(turn.token_ids)[:, None])[:, 0]
        worst = max(worst, float((torch.tensor(turn.logprobs).double() - plain).abs().max()))
    return worst


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_vllm_itself_takes_what_is_sent_in_flight_and_again_from_another_trainer(
    nccl_server: Server, untied: PolicyModel, shake: Shake, library: Path, tmp_path: Path
) -> None:
    other = load_policy(untied.path)

    async def work(seeds: list[int]) -> list[Rollout]:
        engine = engine_at(nccl_server.url, untied, library, tmp_path / f"own-{seeds[0]}")
        last: list[Rollout] = []
        try:
            for version, seed in enumerate(seeds, start=1):
                shake(other, seed)
                weights = published(other, tmp_path / f"w-{seeds[0]}", version, probe=True)
                long = [request(f"long-{seed}-{n}", max_new_tokens=300, seed=n) for n in range(18)]
                quick = request(f"quick-{seed}", max_new_tokens=1)
                stream = engine.generate([*long, quick])
                found = [await anext(stream)]
                await engine.pause("keep")
                await engine.push_weights(weights)
                await engine.resume()  # the probe: greedy ids and log-probs are the trained model's
                found += [rollout async for rollout in stream]
                assert len({rollout.id for rollout in found}) == 19
                asked = [request(f"after-{seed}-{n}", max_new_tokens=24, seed=n) for n in range(4)]
                last = [rollout async for rollout in engine.generate(asked)]
                spans = [(span.version, span.first, span.last) for r in last for span in r.weight_versions]
                assert spans == [(version, 0, 23)] * 4
                assert furthest(other, last) <= 4e-5
            assert engine.last_push is not None
            print(f"push over the stand-in: paused for {engine.last_push.pause_s:.2f} s")
        finally:
            await engine.aclose()
        return last

    for seeds in ([7, 8], [9]):  # the second engine is another trainer: it meets the workers anew
        asyncio.run(work(seeds))


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_a_server_that_is_killed_while_weights_are_on_their_way_ends_the_push(
    nccl_server: Server, untied: PolicyModel, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay_engines.vllm.nccl import Group

    sent: list[int] = []
    original: Callable[[Group, torch.Tensor], None] = Group.broadcast

    def killing(self: Group, data: torch.Tensor) -> None:
        original(self, data)
        sent.append(data.numel())
        if len(sent) == 2:
            for pid in [*descendants(nccl_server.pid), nccl_server.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Group, "broadcast", killing)
    weights = published(untied, tmp_path / "w", 1)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"could not take version 1: .*; start it again on this host") as caught:
        pushed(engine_at(nccl_server.url, untied, library, tmp_path / "own", restarts=0), weights)
    assert time.monotonic() - began < 200, "an exchange that hangs is given up after 300 s"
    assert re.search(r'\{"backend":"nccl"\}', str(caught.value))
    assert len(sent) >= 2
