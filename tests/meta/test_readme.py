"""The README is run: its files are written, its commands and programs executed, in one fresh folder."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md"]


class Block(NamedTuple):
    """One fenced block: its language, the file it is (or nothing), and its text."""

    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_program_of_the_page_works(page: str, tmp_path: Path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    executed = 0
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
            continue
        commands = [["bash", "-c", line] for line in block.text.splitlines() if line] if block.language == "sh" else []
        if block.language == "python":
            commands = [[sys.executable, "-c", block.text]]
        for command in commands:
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
            )
            assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
            executed += 1
    assert executed >= 5


@pytest.mark.parametrize(
    "page", [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("**/README.md")) if ".venv" not in path.parts]
)
def test_every_local_link_leads_somewhere(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
