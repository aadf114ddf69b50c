"""The README's tables are those of the code, and every table of the guide builds."""

import re
import tomllib
from pathlib import Path

import pytest

from assay.config.training import split_optimizer_table
from assay_optim import objective, optimizer
from assay_optim.docs import filled

ROOT = Path(__file__).parents[2]
README = ROOT / "plugins" / "assay_optim" / "README.md"
GUIDE = ROOT / "examples" / "choosing-an-optimizer.md"
BLOCKS = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_tables_of_the_readme_are_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert filled(text) == text, "run: python -m assay_optim.docs plugins/assay_optim/README.md"
    assert text.count("| grpo |") == 1


@pytest.mark.parametrize("block", BLOCKS)
def test_a_table_of_the_guide_builds(block: str) -> None:
    config = tomllib.loads(block)
    if "optimizer" in config:
        table = split_optimizer_table(config["optimizer"])
        assert optimizer(table.use, **table.options).name == table.use
    else:
        options = dict(config["objective"])
        assert objective(options.pop("use"), **options).kind == "preference"


def test_the_lines_of_the_readme_build() -> None:
    lines = re.findall(r"^optimizer = .*$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        table = split_optimizer_table(tomllib.loads(line)["optimizer"])
        optimizer(table.use, **table.options)
