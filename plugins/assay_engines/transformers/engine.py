"""The rollout engine on a transformers model: a thread that decodes, and coroutines that talk to it.

Everything the decoder knows is touched by the thread alone. Coroutines put commands into a queue that the thread
empties between two steps; rollouts go back through the event loop of whoever asked for them. The policy's weights are
shared in memory: after an update `push_weights` only changes the version and drops what was computed with the old
weights.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' models and tokenizers are only partly annotated.

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from assay.contracts import Rollout, RolloutRequest, WeightsRef
from assay.errors import EngineError
from assay_engines.transformers.decode import Decoder
from assay_engines.transformers.rendering import Template, render
from assay_engines.transformers.twin import Twin

if TYPE_CHECKING:
    from assay.training.model import PolicyModel

T = TypeVar("T")
Deliver = Callable[[Rollout | Exception], None]


class TransformersEngine:
    """Streams completions of a policy that lives in this process."""

    def __init__(
        self,
        policy: PolicyModel,
        *,
        max_rows: int = 32,
        prefill_tokens: int = 512,
        template: Template = "auto",
        ignore_end: bool = False,
        packed: bool = True,
    ) -> None:
        """Sample from `policy`, at most `max_rows` rows at a time.

        `packed` keeps a copy of the weights that is laid out for decoding, where that helps (float32 on a CPU).

        Raises:
            EngineError: the model keeps no plain key-value cache, or `template` does not fit the tokenizer.
        """
        self._policy = policy
        self._template: Template = template
        self._limit = _positions(policy)
        self._rows = max_rows
        self._packed = packed
        self._twin = Twin(policy, packed=packed, rows=max_rows)
        self._version = 0
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._deliver: dict[str, Deliver] = {}
        self._thread: threading.Thread | None = None
        self._paused = False
        self._closed = False
        self._broken: Exception | None = None
        self._drained: list[Future[None]] = []
        self._decoder = Decoder(
            self._twin.network,
            _Text(policy.tokenizer),
            end_ids=() if ignore_end else policy.end_ids,
            max_rows=max_rows,
            prefill_tokens=prefill_tokens,
        )
        policy.watchers.add(self)

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._version

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout, None]:
        """Stream each rollout as it finishes; requests of one group share the prefill of their prompt.

        Closing the generator early gives up what is left of its requests.

        Raises:
            EngineError: a request can never run (checked for all before the first token), or decoding broke.
        """
        prepared = self._prepare(requests)
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Rollout | Exception] = asyncio.Queue()

        def deliver(item: Rollout | Exception) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(inbox.put_nowait, item)

        remaining: set[str] = set()

        def submit() -> None:
            self._submit(prepared, deliver)
            remaining.update(request.id for request in requests)

        try:
            await self._call(submit)
            while remaining:
                item = await inbox.get()
                if isinstance(item, Exception):
                    raise item
                remaining.discard(item.id)
                yield item
        finally:
            if not self._closed:  # looked at on the thread: a submission may be under way where this was cancelled
                self._commands.put(lambda: self._forsake(remaining))

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Stop between two steps: keep the rows for later, abort them, or first decode until nothing is left."""
        if mode == "wait":
            drained: Future[None] = Future()
            drained.set_running_or_notify_cancel()  # settled by the thread, even where this coroutine is cancelled
            await self._call(lambda: self._drained.append(drained))
            await asyncio.wrap_future(drained)
        await self._call(lambda: self._stop(abort=mode == "abort"))

    async def push_weights(self, weights: WeightsRef) -> None:
        """Take new weights: from the shared module in memory, or from a folder of safetensors.

        Rows in flight go on from the key-values that their old weights made; their spans carry both versions.

        Raises:
            EngineError: the version goes backwards, or the folder's tensors do not fit the model.
        """
        if weights.version < self._version:
            raise EngineError(f"push_weights: version {weights.version} after {self._version}; versions only grow")
        await self._call(lambda: self._take(weights))

    def weights_will_change(self) -> None:
        """Give back what is kept of the weights, unless rows are being decoded; callable from any thread."""
        if self._thread is not None and not self._closed:
            self._commands.put(self._rest)

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._call(self._go_on)

    async def abort(self, ids: Collection[str]) -> None:
        """End these requests now; their partial rollouts are streamed with finish `abort`. Unknown ids are ignored."""
        wanted = frozenset(ids)
        await self._call(lambda: self._hand_out(self._decoder.cancel(wanted)))

    async def aclose(self) -> None:
        """Stop the thread; requests still under way end with an error."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._commands.put(lambda: None)
            await asyncio.to_thread(self._thread.join)
        self._fail(EngineError("the engine was closed while requests were under way"))

    # ---- Before the thread -------------------------------------------------------------------------------------------

    def _prepare(self, requests: Sequence[RolloutRequest]) -> list[tuple[RolloutRequest, tuple[int, ...]]]:
        rendered: dict[str, tuple[int, ...]] = {}
        prepared: list[tuple[RolloutRequest, tuple[int, ...]]] = []
        seen: set[str] = set()
        for request in requests:
            if request.id in seen:
                raise _twice(request)
            seen.add(request.id)
            key = request.task.model_dump_json(include={"messages"})
            if request.prompt_ids is None and key not in rendered:
                rendered[key] = render(request.task, self._policy.tokenizer, self._template)
            prompt, new = request.prompt_ids or rendered[key], request.sampling.max_new_tokens
            if self._limit is not None and len(prompt) + new > self._limit:
                raise EngineError(
                    f"task {request.task.id!r}: prompt and answer do not fit the model: {len(prompt)} prompt tokens + "
                    f"max_new_tokens {new} > {self._limit} positions; shorten the prompt or lower max_new_tokens"
                )
            prepared.append((request, prompt))
        return prepared

    async def _call(self, action: Callable[[], T]) -> T:
        """Run `action` on the thread between two steps and give back its result."""
        if self._closed:
            raise EngineError("the engine is closed; build a new one")
        if self._broken is not None:
            raise EngineError(f"the engine broke earlier: {self._broken}") from self._broken
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="assay-decode", daemon=True)
            self._thread.start()
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return  # who asked for it was cancelled
            try:
                future.set_result(action())
            except Exception as error:  # noqa: BLE001, RUF100 - handed over to the coroutine that waits for it
                future.set_exception(error)

        self._commands.put(command)
        return await asyncio.wrap_future(future)

    # ---- On the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                runnable = self._decoder.busy and not self._paused
                self._commands.get(block=not runnable)()
                continue
            except queue.Empty:
                pass
            try:
                self._hand_out(self._decoder.step())
            except Exception as error:  # noqa: BLE001, RUF100 - handed over to every coroutine that waits for rollouts
                self._broken = error
                self._decoder.cancel()
                failure = EngineError(f"decoding broke: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._fail(failure)
            if not self._decoder.busy:
                self._tell_drained()

    def _refresh(self) -> None:
        """Notice weights that were changed without a push, for example by loading a checkpoint into the policy."""
        if self._decoder.busy:
            return
        if self._twin.stale or not self._twin.fits(self._policy):
            self._renew(self._version)
        else:
            self._twin.renew()

    def _renew(self, version: int) -> None:
        """Decode with the policy's weights as they are now."""
        if not self._twin.fits(self._policy):
            self._twin = Twin(self._policy, packed=self._packed, rows=self._rows)
        self._twin.renew()
        self._decoder.take_weights(self._twin.network, version)

    def _rest(self) -> None:
        if not self._decoder.busy:
            self._twin.rest()

    def _submit(self, prepared: Sequence[tuple[RolloutRequest, tuple[int, ...]]], deliver: Deliver) -> None:
        self._refresh()
        for request, _ in prepared:
            if request.id in self._deliver:
                raise _twice(request)
        self._deliver.update((request.id, deliver) for request, _ in prepared)
        self._decoder.submit(prepared)

    def _forsake(self, ids: Collection[str]) -> None:
        for rollout in self._decoder.cancel(ids):
            self._deliver.pop(rollout.id, None)
        self._tell_drained()

    def _stop(self, *, abort: bool) -> None:
        self._paused = True
        if abort:
            self._hand_out(self._decoder.cancel())

    def _go_on(self) -> None:
        self._paused = False

    def _take(self, weights: WeightsRef) -> None:
        if weights.path is not None:
            _load_weights(self._policy.model, Path(weights.path))
        if self._decoder.busy:
            self._renew(weights.version)
        else:  # arranged by the next request, so that an engine that only waits holds no copy
            self._decoder.take_weights(self._twin.network, weights.version)
        self._version = weights.version

    def _hand_out(self, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            deliver = self._deliver.pop(rollout.id, None)
            if deliver is not None:
                deliver(rollout)
        if not self._decoder.busy:
            self._tell_drained()

    def _tell_drained(self) -> None:
        if self._decoder.busy:
            return
        while self._drained:
            self._drained.pop().set_result(None)

    def _fail(self, error: Exception) -> None:
        for deliver in set(self._deliver.values()):
            deliver(error)
        self._deliver.clear()
        while self._drained:
            self._drained.pop().set_exception(error)


class _Text:
    """The tokenizer as the decoder needs it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, special tokens left out, spaces as they were."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _twice(request: RolloutRequest) -> EngineError:
    return EngineError(f"request {request.id!r}: asked for twice; every request needs an id of its own")


def _positions(policy: PolicyModel) -> int | None:
    """How many positions one row may have, or None where nothing bounds it."""
    config = policy.model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    strange = kinds - {"full_attention", "sliding_attention"}
    if strange:
        raise EngineError(
            f"model {policy.name!r}: its layers keep no plain key-value cache ({', '.join(sorted(strange))}); "
            "use another engine (for example vllm)"
        )
    bounds = [getattr(config, "max_position_embeddings", None)]
    slides = "sliding_attention" in kinds or getattr(config, "use_sliding_window", None) is not False
    if slides:
        bounds.append(getattr(config, "sliding_window", None))
    return min((int(bound) for bound in bounds if bound), default=None)


def _load_weights(model: Any, folder: Path) -> None:
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"push_weights: no safetensors in {folder}; publish the weights there first")
    with torch.no_grad():
        state = {name: tensor for file in files for name, tensor in load_file(file).items()}
        known = model.state_dict()
        unknown = sorted(set(state) - set(known))
        tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
        missing = sorted(set(known) - set(state) - tied)
        if unknown or missing:
            raise EngineError(
                f"push_weights: the tensors in {folder} do not fit the model; "
                f"unknown {unknown[:3]}, missing {missing[:3]}"
            )
        for name, tensor in state.items():
            known[name].copy_(tensor)
