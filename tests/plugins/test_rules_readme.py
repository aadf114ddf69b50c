"""The pages of the rules and the judges have a row for every source, with every option of its own."""

import re
from pathlib import Path
from types import ModuleType

import pytest

import assay_judge
import assay_rules


@pytest.mark.parametrize("package", [assay_rules, assay_judge])
def test_the_table_has_every_source_and_every_option(package: ModuleType) -> None:
    page = (Path(str(package.__file__)).parent / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \|(.*)$", page, re.MULTILINE))
    components = {component.name: component for component in package.assay_reward_sources()}
    assert set(rows) == set(components)
    shared = set(re.findall(r"`(\w+)`", page.partition("All take")[2].partition("\n\n")[0])) | {"engine"}
    for name, component in components.items():
        own = set(re.findall(r"`(\w+)`", rows[name].rpartition("|")[0].rpartition("|")[2]))
        assert set(component.config.model_fields) == own | (shared if package is assay_judge else set())
