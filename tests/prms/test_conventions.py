"""Published process reward models: random weights in their shapes and names, read as their own code reads them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from assay.component import BuildContext
from assay.contracts import Candidate, Message, Rollout, Task, Turn
from assay.errors import ConfigError
from assay.training.tiny import make_tiny_model, tiny_tokenizer
from assay_prms.loading import RewardModelOptions, build_reward_model

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
PROBLEM = "2+3*4=?"
STEPS = ["3*4=12", "2+12=14, as 12 comes first", "So \\boxed{14}"]


def qwen_folder(folder: Path) -> Path:
    """Qwen2.5-Math-PRM: a Qwen2 body without an output layer and `score.0`, `score.2` around a ReLU."""
    from transformers import Qwen2Config, Qwen2Model

    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<extra_0>"]})
    tokenizer.chat_template = CHATML
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        body = Qwen2Model(config)
        score = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        with torch.no_grad():
            score[2].weight.mul_(5)  # pyright: ignore[reportCallIssue, reportArgumentType]  # a layer, not a tensor
    folder.mkdir()
    described = config.to_dict() | {
        "architectures": ["Qwen2ForProcessRewardModel"],
        "auto_map": {
            "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
            "AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel",
        },
    }
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    tensors = {f"model.{name}": value for name, value in body.state_dict().items()}
    tensors |= {f"score.{name}": value for name, value in score.state_dict().items()}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    tokenizer.save_pretrained(folder)
    return folder


def qwen_scores(folder: Path, problem: str, steps: list[str]) -> list[float]:
    """The model card's snippet: one conversation, a softmax over two classes at each `<extra_0>`."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2Model

    tensors = load_file(folder / "model.safetensors")
    body = Qwen2Model(Qwen2Config.from_pretrained(folder)).eval()
    body.load_state_dict({name.removeprefix("model."): v for name, v in tensors.items() if name.startswith("model.")})
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": problem},
        {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        hidden = body(ids).last_hidden_state[0]
        first = torch.relu(hidden @ tensors["score.0.weight"].T + tensors["score.0.bias"])
        logits = first @ tensors["score.2.weight"].T + tensors["score.2.bias"]
    marks = ids[0] == tokenizer.convert_tokens_to_ids("<extra_0>")
    return logits.softmax(-1)[marks][:, 1].tolist()


def shepherd_tokenizer() -> Any:
    """As Mistral's: a space before every text is part of its first token, and `ки` is one token with that space."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    texts = [f"{PROBLEM} Step 1: Step 2: Step 3: + - ки {' '.join(STEPS)}"]
    words = ["▁", "\n", *dict.fromkeys("▁" + word for text in texts for word in text.split())]
    special = ["<unk>", "<s>", "</s>"]
    raw = Tokenizer(WordLevel({word: index for index, word in enumerate([*special, *words])}, "<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Split("\n", "isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def shepherd_folder(folder: Path) -> Path:
    """Math-Shepherd: a causal language model, read at two ids."""
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = shepherd_tokenizer()
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=None, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model: Any = MistralForCausalLM(config)
        with torch.no_grad():
            model.lm_head.weight.normal_(0.0, 1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def shepherd_scores(folder: Path, problem: str, steps: list[str]) -> list[float]:
    """The model card's snippet: the whole text in one piece, a softmax over + and - at each tag."""
    from transformers import AutoTokenizer, MistralForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = MistralForCausalLM.from_pretrained(folder).eval()
    text = f"{problem} " + "\n".join(f"{step} ки" for step in steps)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    candidates = tokenizer("+ -", add_special_tokens=False)["input_ids"]
    tag = tokenizer("ки", add_special_tokens=False)["input_ids"][-1]
    with torch.no_grad():
        scores = model(ids).logits[..., candidates].softmax(-1)[..., 0][0]
    return scores[ids[0] == tag].tolist()


def skywork_folder(folder: Path) -> Path:
    """Skywork-o1-Open-PRM: a causal language model and `v_head.summary`."""
    make_tiny_model(folder, hidden_size=32, seed=6)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(8)
    tensors["v_head.summary.weight"] = torch.randn(1, 32, generator=generator)
    tensors["v_head.summary.bias"] = torch.randn(1, generator=generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<pad>"
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


def skywork_scores(folder: Path, problem: str, steps: list[str]) -> list[float]:
    """Their `prepare_input`: first token, problem and newline; each step and a newline; sigmoid of the value there."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = LlamaForCausalLM.from_pretrained(folder).eval()
    head = load_file(folder / "model.safetensors")
    ids, flags = list(tokenizer.encode(tokenizer.bos_token + problem + "\n")), list[int]()
    for step in steps:
        ids += [*tokenizer.encode(step), tokenizer.encode("\n")[-1]]
        flags.append(len(ids) - 1)
    with torch.no_grad():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0, flags]
        values = hidden @ head["v_head.summary.weight"].T + head["v_head.summary.bias"]
    return values[:, 0].sigmoid().tolist()


NUMBERED = [f"Step {number}: {step}" for number, step in enumerate(STEPS, 1)]
CASES: dict[str, tuple[Any, Any, str, list[str]]] = {
    "qwen-math-prm": (qwen_folder, qwen_scores, "\n\n", STEPS),
    "math-shepherd": (shepherd_folder, shepherd_scores, "\n", NUMBERED),
    "skywork-prm": (skywork_folder, skywork_scores, "\n", STEPS),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_models_own_code(name: str, tmp_path: Path) -> None:
    make, expected, separator, steps = CASES[name]
    folder = make(tmp_path / "model")
    source = build_reward_model(RewardModelOptions(path="model", convention=name), BuildContext(base_dir=tmp_path))  # type: ignore[arg-type]
    answers = [separator.join(steps), separator.join(steps[:1])]
    tasks = [Task(id=str(k), messages=(Message(role="user", content=PROBLEM),)) for k in range(2)]
    candidates = [
        Candidate(task=task, rollout=Rollout(id=task.id, task_id=task.id, group_id="g", turns=(Turn(text=text),)))
        for task, text in zip(tasks, answers, strict=True)
    ]
    verdicts = asyncio.run(judged(source, candidates))
    wanted = [expected(folder, PROBLEM, steps), expected(folder, PROBLEM, steps[:1])]
    assert len(set(wanted[0])) == 3
    for verdict, text, scores in zip(verdicts, answers, wanted, strict=True):
        assert [step.value for step in verdict.steps] == pytest.approx(scores, abs=1e-5)
        assert [text[step.span.start : step.span.end] for step in verdict.steps] == steps[: len(scores)]
    whole = {"qwen-math-prm": torch.tensor(wanted[0]).prod(), "math-shepherd": min(wanted[0])}
    assert verdicts[0].value == pytest.approx(float(whole.get(name, sum(wanted[0]) / 3)), abs=1e-5)


async def judged(source: Any, candidates: list[Candidate]) -> Any:
    return await source.judge(candidates)


def build(folder: Path, **options: Any) -> Any:
    return build_reward_model(RewardModelOptions(path=str(folder), **options), BuildContext())


@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_does_not_hold_the_convention_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tensor named v_head.summary.*holds no such reward head"):
        build(tiny, convention="skywork-prm")
    with pytest.raises(ConfigError, match=r"no reward_model.json in the folder says .* or a convention: qwen-math-prm"):
        build(tiny)
    with pytest.raises(ConfigError, match="there is no folder 'nowhere'"):
        build(Path("nowhere"))
    folder = skywork_folder(tmp_path / "odd")
    tensors = load_file(folder / "model.safetensors")
    tensors["v_head.summary.gate"] = torch.zeros(2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="no reward head is made of the tensors bias, gate, weight"):
        build(folder, convention="skywork-prm")
