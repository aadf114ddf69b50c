# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers and Tensor.tolist are only partly annotated.
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.component import BuildContext
from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, WeightsRef
from assay.errors import ConfigError, EngineError
from assay.testing.engine_suite import run_engine_suite
from assay.training.model import PolicyModel, load_policy
from assay.training.tiny import make_tiny_model
from assay_engines.plugin import TRANSFORMERS, TransformersOptions
from assay_engines.transformers.engine import TransformersEngine
from assay_engines.transformers.packed import PackedLinear

PREFIX = "Solve like this: 12+7=19, 30+5=35, 8+8=16. "


def task(text: str, *, name: str | None = None) -> Task:
    return Task(id=name or text, messages=(Message(role="user", content=text),))


def requests(
    prompts: Sequence[str], *, group: int = 3, lengths: Sequence[int] = (1, 5, 9, 17), **sampling: Any
) -> list[RolloutRequest]:
    return [
        RolloutRequest(
            id=f"{place}-{sample}",
            task=task(prompt, name=f"q{place}"),
            group_id=f"q{place}",
            sampling=Sampling(
                max_new_tokens=lengths[(place + sample) % len(lengths)], seed=1000 * place + sample, **sampling
            ),
        )
        for place, prompt in enumerate(prompts)
        for sample in range(group)
    ]


def generate(engine: TransformersEngine, asked: Sequence[RolloutRequest]) -> list[Rollout]:
    async def run() -> list[Rollout]:
        try:
            return [rollout async for rollout in engine.generate(asked)]
        finally:
            await engine.aclose()

    return asyncio.run(run())


def teacher_forced(policy: PolicyModel, rollout: Rollout) -> torch.Tensor:
    """(T, V) log-probs of a plain forward over prompt and answer, at the rollout's temperature."""
    prompt, answer = rollout.prompt_ids or (), rollout.turns[0].token_ids or ()
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    temperature = rollout.sampling.temperature or 1.0
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)


RAGGED = ["1+1=", PREFIX + "2+2=", "What is 17 - 4?\nThink first.", PREFIX + "19+33=", "9", PREFIX + "4*4="]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("max_rows", [1, 4, 64])
def test_streamed_logprobs_equal_a_teacher_forced_forward(
    policy: PolicyModel, temperature: float, max_rows: int
) -> None:
    engine = TransformersEngine(policy, max_rows=max_rows, prefill_tokens=96)
    found = generate(engine, requests(RAGGED, temperature=temperature))
    assert len(found) == 18
    for rollout in found:
        turn = rollout.turns[0]
        ids = torch.tensor(turn.token_ids)
        expected = teacher_forced(policy, rollout).gather(-1, ids[:, None])[:, 0]
        assert torch.allclose(torch.tensor(turn.logprobs), expected, atol=1e-4), rollout.id


def test_greedy_takes_the_likeliest_token(policy: PolicyModel) -> None:
    for rollout in generate(TransformersEngine(policy), requests(RAGGED, group=1, temperature=0.0)):
        assert teacher_forced(policy, rollout).argmax(-1).tolist() == list(rollout.turns[0].token_ids or ())


def test_nucleus_logprobs_are_those_of_the_truncated_distribution(policy: PolicyModel) -> None:
    truncated = 0
    for rollout in generate(TransformersEngine(policy), requests(RAGGED, temperature=0.9, top_p=0.6)):
        turn = rollout.turns[0]
        for logp, token, said in zip(
            teacher_forced(policy, rollout), turn.token_ids or (), turn.logprobs or (), strict=True
        ):
            probabilities, order = logp.exp().sort(descending=True)
            size = int((probabilities.cumsum(0) < 0.6).sum()) + 1
            assert token in order[:size].tolist()
            assert said == pytest.approx(float(logp[token] - probabilities[:size].sum().log()), abs=1e-4)
            truncated += size < len(order)
    assert truncated > 50


def test_the_suite_of_engines_holds(policy: PolicyModel) -> None:
    results = run_engine_suite(lambda: TransformersEngine(policy, max_rows=3, ignore_end=True))
    assert [result for result in results if result.status != "passed"] == []


def test_tokens_do_not_depend_on_slots_or_neighbours(policy: PolicyModel) -> None:
    asked = requests(RAGGED, lengths=(3, 11, 30), temperature=1.0)
    answers = [
        {
            rollout.id: rollout.turns[0].token_ids
            for rollout in generate(TransformersEngine(policy, max_rows=rows), batch)
        }
        for rows, batch in ((2, asked), (18, asked), (7, asked[::-1]))
    ]
    assert answers[0] == answers[1] == answers[2]


def test_new_weights_in_memory_are_used_and_marked(policy: PolicyModel) -> None:
    async def run() -> tuple[Rollout, Rollout, Rollout]:
        engine = TransformersEngine(policy, ignore_end=True)
        asked = requests([PREFIX + "2+2="], group=1, lengths=(9,), temperature=0.0)
        (before,) = [rollout async for rollout in engine.generate(asked)]
        weight = policy.model.model.layers[0].mlp.down_proj.weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.mul_(-3.0)
        await engine.pause()
        await engine.push_weights(WeightsRef(version=1))
        await engine.resume()
        (after,) = [rollout async for rollout in engine.generate(asked)]
        expected = teacher_forced(policy, after)
        with torch.no_grad():
            weight.copy_(kept)
        await engine.push_weights(WeightsRef(version=2))
        (back,) = [rollout async for rollout in engine.generate(asked)]
        await engine.aclose()
        assert expected.argmax(-1).tolist() == list(after.turns[0].token_ids or ())
        return before, after, back

    before, after, back = asyncio.run(run())
    assert [span.version for rollout in (before, after, back) for span in rollout.weight_versions] == [0, 1, 2]
    assert after.turns[0].token_ids != before.turns[0].token_ids
    assert back.turns[0].token_ids == before.turns[0].token_ids


def test_weights_changed_without_a_push_are_noticed(
    policy: PolicyModel, shake: Callable[[PolicyModel, int], None]
) -> None:
    other = load_policy(policy.path)

    async def run() -> None:
        engine = TransformersEngine(other)
        asked = requests([PREFIX + "2+2="], group=1, lengths=(6,), temperature=0.0)
        before = [rollout async for rollout in engine.generate(asked)]
        shake(other, 1)
        (after,) = [rollout async for rollout in engine.generate(asked)]
        await engine.aclose()
        assert before[0].turns[0].token_ids != after.turns[0].token_ids
        assert teacher_forced(other, after).argmax(-1).tolist() == list(after.turns[0].token_ids or ())

    asyncio.run(run())


def test_packed_and_plain_weights_answer_alike(policy: PolicyModel) -> None:
    asked = requests(RAGGED, temperature=1.0)
    packed, plain = (
        {rollout.id: rollout.turns[0] for rollout in generate(TransformersEngine(policy, packed=choice), asked)}
        for choice in (True, False)
    )
    for name, turn in packed.items():
        assert turn.token_ids == plain[name].token_ids
        assert turn.logprobs == pytest.approx(plain[name].logprobs, abs=1e-4)


def test_the_packed_copy_makes_room_for_an_update_and_comes_back_with_the_new_weights(policy: PolicyModel):
    def copies(engine: TransformersEngine) -> list[bool]:
        layers = [m for m in engine._twin.network.model.modules() if isinstance(m, PackedLinear)]
        return [layer.arranged for layer in layers]

    async def run() -> tuple[list[list[bool]], list[Rollout]]:
        engine = TransformersEngine(policy)
        asked = requests(["2+2=", "a b"], temperature=0.0)
        seen, found = [copies(engine)], []
        for _ in range(2):
            found += [rollout async for rollout in engine.generate(asked)]
            seen.append(copies(engine))
            policy.announce_update()
            await engine.pause()
            await engine.resume()
            seen.append(copies(engine))
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(-1.0)
        await engine.aclose()
        return seen, found

    try:
        seen, found = asyncio.run(run())
    finally:
        fresh = generate(TransformersEngine(policy, packed=False), requests(["2+2=", "a b"], temperature=0.0))
    assert [all(flags) and len(flags) > 0 for flags in seen] == [False, True, False, True, False]
    assert not any(any(seen[at]) for at in (0, 2, 4))
    count = len(fresh)
    assert {r.id: r.text for r in found[:count]} == {r.id: r.text for r in fresh}, "negated twice: the first weights"
    assert {r.id: r.text for r in found[count:]} != {r.id: r.text for r in fresh}


def test_an_adapter_is_sampled_from(policy: PolicyModel) -> None:
    pytest.importorskip("peft", reason="the package peft is not installed")
    from assay.config.training import LoraSettings
    from assay.training.lora import add_adapter

    other = load_policy(policy.path)
    engine = TransformersEngine(other)
    add_adapter(other, LoraSettings(rank=2))
    with torch.no_grad():
        for name, parameter in other.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    for rollout in generate(engine, requests(RAGGED, group=1)):
        answer = torch.tensor(rollout.turns[0].token_ids)[:, None]
        expected = teacher_forced(other, rollout).gather(-1, answer)
        assert torch.allclose(torch.tensor(rollout.turns[0].logprobs), expected[:, 0], atol=1e-4)
        with other.model.disable_adapter():
            assert not torch.allclose(expected, teacher_forced(other, rollout).gather(-1, answer), atol=1e-3)


def test_weights_come_from_a_folder_and_misfits_are_named(policy: PolicyModel, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "new", seed=9, hidden_size=64)
    wrong = make_tiny_model(tmp_path / "wrong", seed=9, hidden_size=64, layers=3)
    other = load_policy(policy.path)

    async def run() -> None:
        engine = TransformersEngine(other)
        await engine.push_weights(WeightsRef(version=1, path=str(folder)))
        with pytest.raises(EngineError, match=r"do not fit the model; unknown \['model.layers.2"):
            await engine.push_weights(WeightsRef(version=2, path=str(wrong)))
        with pytest.raises(EngineError, match="no safetensors in"):
            await engine.push_weights(WeightsRef(version=2, path=str(tmp_path)))
        with pytest.raises(EngineError, match="version 0 after 1"):
            await engine.push_weights(WeightsRef(version=0))
        await engine.aclose()

    asyncio.run(run())
    fresh = load_policy(str(folder))
    for (name, loaded), (_, expected) in zip(
        other.model.named_parameters(), fresh.model.named_parameters(), strict=True
    ):
        assert torch.equal(loaded, expected), name


def test_requests_that_can_never_run_are_refused_first(policy: PolicyModel) -> None:
    async def asked(batch: Sequence[RolloutRequest], **options: Any) -> None:
        engine = TransformersEngine(policy, **options)
        try:
            async for _ in engine.generate(batch):
                pass
        finally:
            await engine.aclose()

    long = requests(["1+1="], group=1, lengths=(600,))
    with pytest.raises(EngineError, match=r"4 prompt tokens \+ max_new_tokens 600 > 512 positions"):
        asyncio.run(asked(long))
    with pytest.raises(EngineError, match="asked for twice"):
        asyncio.run(asked([*requests(["1"], group=1), *requests(["1"], group=1)]))
    with pytest.raises(EngineError, match="the prompt is empty"):
        asyncio.run(asked(requests([""], group=1), template="plain"))


def test_a_broken_model_ends_every_stream_with_its_cause(policy: PolicyModel) -> None:
    class Broken(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no kernel")

    async def run() -> None:
        engine = TransformersEngine(policy)
        engine._decoder.network.model = Broken()  # pyright: ignore[reportPrivateUsage]  (nothing else breaks on demand)
        engine._decoder.prefiller.network.model = Broken()  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(EngineError, match="decoding broke: RuntimeError: no kernel"):
            async for _ in engine.generate(requests(["1"])):
                pass
        with pytest.raises(EngineError, match="broke earlier: no kernel"):
            await engine.pause()
        await engine.aclose()
        with pytest.raises(EngineError, match="closed"):
            await engine.pause()

    asyncio.run(run())


def test_a_call_that_is_cancelled_before_the_thread_comes_to_it_ends_nobody_else(policy: PolicyModel) -> None:
    async def run() -> list[Rollout]:
        engine = TransformersEngine(policy)

        async def drawn(asked: Sequence[RolloutRequest]) -> list[Rollout]:
            return [rollout async for rollout in engine.generate(asked)]

        asked = requests(RAGGED, group=1, lengths=(60,))
        drawing = asyncio.create_task(drawn(asked))
        await asyncio.sleep(0.05)
        others = [each.model_copy(update={"id": f"other {each.id}"}) for each in asked]
        for calls in range(10):
            cancelled = [
                asyncio.create_task(engine.abort(["nobody"])),
                asyncio.create_task(engine.pause("wait")),
                asyncio.create_task(drawn(others)),
            ]
            for _ in range(calls):
                await asyncio.sleep(0)
            for each in cancelled:
                each.cancel()
        found = await drawing
        await engine.resume()  # behind all that was asked for before
        assert not engine._decoder.busy, "what was cancelled is not decoded"
        await engine.aclose()
        return found

    found = asyncio.run(run())
    assert len(found) == 6
    assert {rollout.finish for rollout in found} <= {"stop", "length"}


def test_options_build_an_engine_with_a_model_of_its_own(policy: PolicyModel) -> None:
    options = TransformersOptions(model=policy.path, max_rows=2)
    engine = TRANSFORMERS.build(options, BuildContext())
    assert isinstance(engine, TransformersEngine)
    assert len(generate(engine, requests(["1+1="]))) == 3
    with pytest.raises(ConfigError, match="no policy to sample from"):
        TRANSFORMERS.build(TransformersOptions(), BuildContext())
