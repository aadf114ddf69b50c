"""The folder's page names every tier, option and language."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from assay_sandboxes import assay_sandboxes
from assay_sandboxes.languages import KNOWN

PAGE = (Path(__file__).parents[2] / "sandboxes" / "assay_sandboxes" / "README.md").read_text("utf-8")
COMPONENTS = {component.name: component for component in assay_sandboxes()}


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_every_tier_and_option_is_on_the_page(name: str) -> None:
    config: type[BaseModel] = COMPONENTS[name].config
    assert f"| `{name}` |" in PAGE
    assert [field for field in config.model_fields if f"`{field}`" not in PAGE] == []


def test_every_language_is_on_the_page() -> None:
    assert [name for name in KNOWN if f"`{name}`" not in PAGE] == []
