"""The folder's page names every option, test kind and field."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from assay_code.cases import AssertTests, CallTests, Compare, StdioTests, TestLimits
from assay_code.verify import CodeOptions

PAGE = (Path(__file__).parents[2] / "plugins" / "assay_code" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("model", [CodeOptions, StdioTests, CallTests, AssertTests, Compare, TestLimits])
def test_every_field_is_on_the_page(model: type[BaseModel]) -> None:
    missing = [name for name in model.model_fields if f"`{name}`" not in PAGE]
    assert missing == []


@pytest.mark.parametrize("mode", ["tokens", "lines", "exact", "float", "unordered", "checker"])
def test_every_mode_is_on_the_page(mode: str) -> None:
    assert f"`{mode}`" in PAGE
