"""The page about other trainers is run: its files are written, its commands and programs executed, in one folder."""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "examples" / "other-trainers"


class Block(NamedTuple):
    """One fenced block: its language, the file it is (or nothing), and its text."""

    language: str
    file: str
    text: str


def sections() -> dict[str, list[Block]]:
    """The blocks of each section of the page, by its title."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        title: [Block(*found) for found in re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)]
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def executed(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives out by itself while the server starts."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port


def test_the_page_has_these_sections():
    assert list(sections()) == [
        "TRL",
        "verl",
        "OpenRLHF",
        "verifiers",
        "Rewards that were written for these hosts",
        "A server",
    ]


@pytest.mark.timeout(600)  # a busy machine takes minutes for what is seconds of work
@pytest.mark.parametrize("title", ["TRL", "verl", "OpenRLHF", "verifiers", "Rewards that were written for these hosts"])
def test_every_command_and_program_of_a_section_works(title: str, tmp_path: Path):
    shutil.copy(FOLDER / "trl_grpo.py", tmp_path)
    blocks = sections()[title]
    for block in blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    ran: list[str] = []
    for block in blocks:
        if not block.file:
            program = ["bash", "-ec"] if block.language == "sh" else [sys.executable, "-c"]
            ran.append(executed([*program, block.text], tmp_path))
    assert ran
    if title == "TRL":
        assert "rewards/assay_math_length/mean" in ran[0]
        assert "assay_math_length/math/abstained" in ran[0]
    if title.startswith("Rewards"):
        lines = (tmp_path / "answers.scored.jsonl").read_text(encoding="utf-8").splitlines()
        assert [round(json.loads(line)["reward"], 6) for line in lines] == [1.6, 0.0]


def test_the_server_of_the_page_answers(tmp_path: Path):
    blocks = sections()["A server"]
    port = str(free_port())
    written = sections()["Rewards that were written for these hosts"]
    answers = next(block for block in written if block.file == "answers.jsonl")
    for block in (answers, *blocks):
        if block.file:
            (tmp_path / block.file).write_text(block.text.replace("8642", port), encoding="utf-8")
    (commands,) = [block.text for block in blocks if block.language == "sh"]
    out = executed(["bash", "-emc", commands.replace("8642", port)], tmp_path)
    scored = json.loads(out[out.index('{"items"') :].partition('{"rewards"')[0])["items"]
    assert [item["id"] for item in scored] == ["first", "second"]
    assert scored[0]["value"] == 1.1
    assert scored[1]["status"] == "abstained"
    assert scored[1]["value"] is None
    assert '{"rewards":[1.1],"scores":[1.1]' in out
    lines = (tmp_path / "answers.scored.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [1.1, 0.0]


def test_the_versions_of_the_page_are_those_that_the_tests_run():
    from importlib.metadata import version

    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"| TRL | {version('trl')} |" in text
    assert f"| verifiers | {version('verifiers')} |" in text


def test_the_script_is_ten_lines_long():
    lines = (FOLDER / "trl_grpo.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line and not line.startswith(("#", '"""'))]) <= 10
