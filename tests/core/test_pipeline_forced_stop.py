# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers and Tensor.tolist are only partly annotated.
"""Thoughts that are ended by force: what is put in, what is trained on, and every promise of an engine."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from assay import train
from assay.config.load import parse_config
from assay.config.run import EngineConfig, ForcedStopConfig
from assay.config.training import OptimizerSettings
from assay.contracts import Rollout, RolloutRequest, Sampling, WeightsRef
from assay.contracts.batch import Reward, ScoredGroup
from assay.errors import ConfigError, EngineError
from assay.pipeline.forced_stop import ForcedStop
from assay.protocols import RolloutEngine
from assay.store import RunStore
from assay.testing import learning
from assay.testing.engine_suite import engine_suite
from assay.testing.fakes import make_task
from assay.testing.scripted import ScriptedEngine
from assay.training.batch import make_batch
from assay.training.model import PolicyModel, load_policy
from assay.training.tiny import make_tiny_model
from assay.training.trainer import Trainer
from assay_engines.transformers.engine import TransformersEngine
from assay_optim import optimizer

PHRASE = " so: "
LIMIT = 24
NEVER = "no model writes this"


def requests(count: int, **sampling: Any) -> list[RolloutRequest]:
    return [
        RolloutRequest(
            id=f"r{place}",
            task=make_task(f"t{place % 3}"),
            group_id=f"g{place % 3}",
            sampling=Sampling(seed=place, max_new_tokens=LIMIT, **sampling),
        )
        for place in range(count)
    ]


def settings(think_tokens: int | tuple[int, int] = (6, 10), *, end: str = NEVER) -> ForcedStopConfig:
    return ForcedStopConfig.model_validate({"think_tokens": think_tokens, "phrase": PHRASE, "end": end})


def forced(
    policy: PolicyModel, chosen: ForcedStopConfig, engine: RolloutEngine | None = None, *, together: bool = False
) -> ForcedStop:
    engine = engine or TransformersEngine(policy)
    return ForcedStop(engine, chosen, policy.tokenizer, max_new_tokens=LIMIT, together=together)


def drawn(engine: RolloutEngine, asked: Sequence[RolloutRequest]) -> dict[str, Rollout]:
    async def run() -> dict[str, Rollout]:
        try:
            return {rollout.id: rollout async for rollout in engine.generate(asked)}
        finally:
            await engine.aclose()

    return asyncio.run(run())


def check_log_probs(policy: PolicyModel, rollout: Rollout) -> None:
    """Those of the sampled tokens are what a plain forward over all tokens gives."""
    prompt = rollout.prompt_ids or ()
    ids = [token for turn in rollout.turns for token in turn.token_ids or ()]
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0].float()
    spread = logits[len(prompt) - 1 : -1].log_softmax(-1)
    place = 0
    for turn in rollout.turns:
        size = len(turn.token_ids or ())
        if turn.trainable:
            expected = [float(spread[at, ids[at]]) for at in range(place, place + size)]
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)
        else:
            assert turn.logprobs is None
        place += size


def test_the_phrase_stands_between_a_thought_within_its_budget_and_the_answer(policy: PolicyModel) -> None:
    asked = requests(24)
    plain, found = drawn(TransformersEngine(policy), asked), drawn(forced(policy, settings()), asked)
    assert sorted(found) == sorted(plain)
    budgets: set[int] = set()
    for request in asked:
        rollout = found[request.id]
        whole = plain[request.id].turns[0].token_ids or ()
        assert rollout.sampling == request.sampling
        if len(rollout.turns) == 1:  # it ended within its budget
            assert (rollout.turns[0].token_ids, rollout.finish) == (whole, "stop")
            assert len(whole) <= 10
            continue
        thought, phrase, answer = rollout.turns
        assert [turn.trainable for turn in rollout.turns] == [True, False, True]
        assert thought.token_ids == whole[: len(thought.token_ids or ())]
        assert policy.tokenizer.decode(list(phrase.token_ids or ())) == phrase.text == PHRASE
        assert rollout.text == answer.text
        budgets.add(len(thought.token_ids or ()))
        size = sum(len(turn.token_ids or ()) for turn in rollout.turns)
        assert size == LIMIT if rollout.finish == "length" else size <= LIMIT
        check_log_probs(policy, rollout)
    assert len(budgets) > 2
    assert budgets <= set(range(6, 11))
    once, again = (drawn(forced(policy, settings(), together=True), asked) for _ in range(2))
    assert once == again, "bit by bit"
    assert {name: rollout.text for name, rollout in once.items()} == {n: rollout.text for n, rollout in found.items()}


def test_a_thought_that_has_ended_goes_on_as_if_nothing_had_been_asked(policy: PolicyModel) -> None:
    asked = requests(3, temperature=0.0)
    plain = drawn(TransformersEngine(policy), asked)
    for request in asked:
        end = plain[request.id].text[:2]
        found = drawn(forced(policy, settings(6, end=end)), [request])[request.id]
        assert found.turns[0].token_ids == plain[request.id].turns[0].token_ids
        assert (found.text, found.finish, found.prompt_ids) == (
            plain[request.id].text,
            plain[request.id].finish,
            plain[request.id].prompt_ids,
        )
        assert found.weight_versions == plain[request.id].weight_versions
        check_log_probs(policy, found)


def test_what_was_put_in_is_in_no_loss(policy: PolicyModel) -> None:
    found = drawn(forced(policy, settings(6)), requests(6))
    groups = [
        ScoredGroup(
            task=make_task(name),
            rollouts=tuple(rollouts),
            rewards=tuple(
                Reward(rollout_id=rollout.id, value=float(place), channels={"reward": float(place)})
                for place, rollout in enumerate(rollouts)
            ),
        )
        for name in ("t0", "t1", "t2")
        if (rollouts := [rollout for rollout in found.values() if rollout.task_id == name])
    ]
    tokens = make_batch(groups, device="cpu", max_tokens=LIMIT, tokenizer=policy.tokenizer)
    size = len(policy.tokenizer(PHRASE, add_special_tokens=False)["input_ids"])
    rows = [rollout for group in groups for rollout in group.rollouts]
    assert any(len(rollout.turns) == 3 for rollout in rows)
    for mask, rollout in zip(tokens.batch.mask, rows, strict=True):
        if len(rollout.turns) == 3:
            assert mask[:6].all()
            assert not mask[6 : 6 + size].any()
            assert mask[6 + size : 6 + size + len(rollout.turns[2].token_ids or ())].all()
    sampled = sum(len(turn.token_ids or ()) for rollout in rows for turn in rollout.turns if turn.trainable)
    assert tokens.tokens == sampled
    trainer = Trainer(
        load_policy(policy.path), optimizer("scalerl"), OptimizerSettings(learning_rate=1e-3), max_tokens=LIMIT
    )
    before = [parameter.detach().clone() for parameter in trainer.policy.model.parameters()]
    assert trainer.step(groups).metrics["tokens"] == sampled
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.policy.model.parameters(), strict=True))


class Pushing(TransformersEngine):
    """New weights come between the parts of a response."""

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout, None]:
        if requests[0].prompt_ids is not None and self.policy_version == 0:
            await self.push_weights(WeightsRef(version=1))
        async for rollout in super().generate(requests):
            yield rollout


def test_versions_are_counted_over_the_tokens_that_the_policy_wrote(policy: PolicyModel) -> None:
    rollout = drawn(forced(policy, settings(6), Pushing(policy)), requests(1))["r0"]
    written = 6 + len(rollout.turns[2].token_ids or ())
    spans = [(span.version, span.first, span.last) for span in rollout.weight_versions]
    assert spans == [(0, 0, 5), (1, 6, written - 1)]
    same = drawn(forced(policy, settings(6)), requests(1))["r0"]
    assert len(same.weight_versions) == 1
    assert same.weight_versions[0].last == sum(len(same.turns[part].token_ids or ()) for part in (0, 2)) - 1


# ---- Every promise of an engine, with responses in two parts ---------------------------------------------------------


class Bytes:
    """The tokenizer of `ScriptedEngine`."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [*text.encode()]}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="ignore")


def talk(request: RolloutRequest, version: int) -> str:
    return "abc" * 100


def in_parts(*, together: bool = False) -> ForcedStop:
    """Any 26 characters of its answers have an `a`."""
    text = "".join(chr(97 + (place * 5) % 26) for place in range(300))
    engine = ScriptedEngine(lambda request, _: text, delay_s=lambda request: 0.002 * request.sampling.max_new_tokens)
    return ForcedStop(engine, settings(26, end="a"), Bytes(), max_new_tokens=256, together=together)


test_responses_in_parts_keep_every_promise_of_an_engine = engine_suite(in_parts)
test_responses_in_parts_drawn_together_keep_every_promise_of_an_engine = engine_suite(lambda: in_parts(together=True))


def test_an_abort_reaches_either_part() -> None:
    async def run() -> dict[str, Rollout]:
        begun: set[tuple[str, bool]] = set()

        def delay_s(request: RolloutRequest) -> float:
            begun.add((request.task.id, request.prompt_ids is not None))
            return 2.0

        talking = ScriptedEngine(talk, delay_s=delay_s)
        engine = ForcedStop(talking, settings(6), Bytes(), max_new_tokens=LIMIT)
        found: dict[str, Rollout] = {}

        async def collect() -> None:
            async for rollout in engine.generate(requests(3)):
                found[rollout.id] = rollout

        collecting = asyncio.create_task(collect())
        await asyncio.sleep(0.2)
        await engine.abort(["r0"])
        while ("t1", True) not in begun and not collecting.done():  # noqa: ASYNC110 # nothing tells of a second part
            await asyncio.sleep(0.2)
        await engine.abort(["r1", "nobody"])
        await collecting
        return found

    found = asyncio.run(run())
    assert {name: rollout.finish for name, rollout in found.items()} == {"r0": "abort", "r1": "abort", "r2": "length"}
    assert [len(found[name].turns) for name in ("r0", "r1", "r2")] == [1, 3, 3]


class Forgetful(ScriptedEngine):
    """Answers the task again, whatever it is to go on from."""

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        async for rollout in super().generate([each.model_copy(update={"prompt_ids": None}) for each in requests]):
            yield rollout


class Mute(ScriptedEngine):
    """Gives no token ids."""

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        async for rollout in super().generate(requests):
            turn = rollout.turns[0].model_copy(update={"token_ids": None, "logprobs": None})
            yield rollout.model_copy(update={"turns": (turn,)})


@pytest.mark.parametrize(
    ("kind", "sentence"), [(Forgetful, "does not go on from the token ids"), (Mute, "gives no token ids to go on from")]
)
def test_an_engine_that_cannot_go_on_is_refused(kind: type[ScriptedEngine], sentence: str) -> None:
    engine = ForcedStop(kind(talk), settings(6), Bytes(), max_new_tokens=LIMIT)
    with pytest.raises(EngineError, match=sentence):
        drawn(engine, requests(1))


# ---- The config ------------------------------------------------------------------------------------------------------


def test_a_budget_is_a_number_or_a_range_and_must_leave_an_answer(policy: PolicyModel) -> None:
    assert ForcedStopConfig.model_validate({"think_tokens": 7}).think_tokens == (7, 7)
    with pytest.raises(ValidationError, match="the least comes first"):
        ForcedStopConfig(think_tokens=(7, 6))
    with pytest.raises(ValidationError, match="a stop text may lie across them"):
        EngineConfig(stop=("x",), forced_stop=ForcedStopConfig(think_tokens=(7, 7)))
    with pytest.raises(ConfigError, match="max_new_tokens = 24, use more than 25"):
        forced(policy, settings((6, 20)))
    with pytest.raises(ConfigError, match="makes no token of the phrase"):
        forced(policy, ForcedStopConfig(think_tokens=(6, 6), phrase=""))


def test_a_run_stops_thoughts_learns_and_keeps_what_was_put_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_tiny_model(tmp_path / "model", hidden_size=64)
    rows = "".join(f'{{"prompt": "{task.prompt}", "reference": "{task.reference}"}}\n' for task in learning.tasks())
    (tmp_path / "tasks.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "even.py").write_text(
        "from assay import Verdict\n\n\ndef even(task, rollout):\n"
        '    """Even or odd."""\n    return Verdict.score(float(len(rollout.text) % 2 == 0))\n',
        encoding="utf-8",
    )
    config = {
        "kind": "rlvr",
        "name": "stopped",
        "steps": 2,
        "policy": {"model": "model"},
        "tasks": {"use": "jsonl", "path": "tasks.jsonl"},
        "engine": {"max_new_tokens": 16, "group_size": 4, "forced_stop": {"think_tokens": [3, 5], "phrase": PHRASE}},
        "rewards": [{"use": "python", "path": "even.py:even"}],
        "optimizer": {"use": "scalerl", "learning_rate": 1e-3},
        "loop": {"groups_per_step": 4},
    }
    run = train(parse_config(config))
    with RunStore.open(run.folder, read_only=True) as store:
        rollouts = [entry.rollout for entry in store.rollouts()]
    assert len(rollouts) == 32
    stopped = [rollout for rollout in rollouts if len(rollout.turns) == 3]
    assert len(stopped) > 16
    assert {rollout.turns[1].text for rollout in stopped} == {PHRASE}
    assert all(len(rollout.turns[0].token_ids or ()) in (3, 4, 5) for rollout in stopped)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sum(line["forced_stops"] for line in lines) / 2 == len(stopped) / 32
