"""Commands: what the specification lists works or is absent, and what pages tell a reader to type exists."""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from assay.cli import COMMANDS, main
from assay.config.load import config_schema, read_toml

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for path in ROOT.glob("**/*.md") if not {".venv", "node_modules", ".vllm"} & set(path.relative_to(ROOT).parts)
)


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([command, "--help"]) == 0
    return capsys.readouterr().out


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", text))


def test_every_command_of_the_specification_works_with_its_flags_or_is_absent(
    shared: Path, capsys: pytest.CaptureFixture[str]
):
    section = (shared / "user_experience.md").read_text("utf-8").partition("## 2. Commands")[2].partition("## 3.")[0]
    rows = re.findall(r"^\| `assay (\w+)([^|]*)\|(?:.*)\| ([^|]*(?:\\\|[^|]*)*)\|$", section, re.MULTILINE)
    assert len(rows) >= 14
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name, usage, flags in rows:
        if name not in COMMANDS:
            assert not re.search(rf"^\W*{name}\b", listed, re.MULTILINE), f"{name} is in --help and does not exist"
            continue
        told = flags_in(help_of(name, capsys))
        wanted = flags_in(f"{usage} {flags}".replace("--prompt/--response/--reference", "--prompt --response"))
        assert wanted <= told, f"assay {name} lacks {sorted(wanted - told)}"


def commands_of(page: Path) -> list[str]:
    """Every command line of a page that begins with `assay`, in a block or between backticks."""
    text = page.read_text("utf-8")
    lines = re.findall(r"^ {0,4}(?:\$ |\.venv/bin/)?(assay [^\n`]+)$", text, re.MULTILINE)
    spans = re.findall(r"`(assay [a-z][^`\n]*)`", text)
    return [re.split(r"\s{2,}|\s#|\s\|\s|\s>\s|\s&", line)[0] for line in (*lines, *spans)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_pages_name_exist_with_their_flags(page: Path, capsys: pytest.CaptureFixture[str]):
    if page.name == "CHANGELOG.md":
        pytest.skip("history")

    @cache
    def known(command: str) -> set[str]:
        return flags_in(help_of(command, capsys))

    for line in commands_of(page):
        words = shlex.split(line.replace("|", " "))
        name = words[1] if len(words) > 1 else ""
        if not re.fullmatch(r"[a-z]+", name) or (name not in COMMANDS and "plugin" in line):
            continue
        assert name in COMMANDS, f"{page.relative_to(ROOT)}: {line}"
        given = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)} - {"--help"}
        assert given <= known(name), f"{page.relative_to(ROOT)}: {line}: {sorted(given - known(name))}"


def test_the_schema_accepts_the_configs_of_pages_and_refuses_a_wrong_key(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    reader: Any = jsonschema.Draft202012Validator(schema)
    configs = [path for path in ROOT.glob("examples/**/*.toml") if path.name != "pyproject.toml"]
    configs += ROOT.glob("core/assay/demo/*.toml")
    assert len(configs) >= 3
    for path in configs:
        assert not [error.message for error in reader.iter_errors(read_toml(path))], path
    wrong = {**read_toml(ROOT / "core" / "assay" / "demo" / "quick.toml"), "stepps": 3}
    assert "stepps" in "".join(error.message for error in reader.iter_errors(wrong))


def test_training_needs_a_config(capsys: pytest.CaptureFixture[str]):
    assert main(["train"]) == 2
    assert "no config is named; write: assay train FILE.toml" in capsys.readouterr().err
