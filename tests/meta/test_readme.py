"""Pages are run: their files are written, their commands and programs executed, each page in a fresh folder."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from assay.config.load import config_schema

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": 5,
    "core/assay/testing/README.md": 2,
    "examples/reading-a-run.md": 9,
    "plugins/assay_math/README.md": 1,
}
"""Page to the number of commands and programs that it has at least."""
ELSEWHERE = {
    "examples/choosing-an-optimizer.md": "plugins/test_optim_docs.py",
    "examples/reward-models/README.md": "examples/test_reward_models.py",
    "examples/other-trainers/README.md": "adapters/test_page.py",
    "examples/writing-a-plugin.md": "examples/test_writing_a_plugin.py",
    "plugins/assay_optim/README.md": "plugins/test_optim_docs.py",
    "sandboxes/assay_sandboxes/README.md": "sandboxes/test_page.py",
}
"""Other pages with blocks, and the test that runs them."""
ALL = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("**/*.md")) if ".venv" not in path.parts]


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
    assert executed >= PAGES[page]


@pytest.mark.parametrize("page", ALL)
def test_every_block_of_a_page_is_run_or_read(page: str):
    for block in blocks(page):
        if page in ELSEWHERE:
            test = ROOT / "tests" / ELSEWHERE[page]
            assert Path(page).name in test.read_text("utf-8"), f"{test} no longer runs {page}"
        elif block.language == "toml" and not block.file:
            table = tomllib.loads(block.text)
            reader: Any = Draft202012Validator(config_schema())
            errors = reader.iter_errors(table) if "kind" in table else ()
            assert not [error.message for error in errors], block.text
        else:
            assert page in PAGES, f"{page}: nobody runs its {block.language} block"


@pytest.mark.parametrize("page", ALL)
def test_every_local_link_leads_somewhere(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
