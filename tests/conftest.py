"""Fixtures that several folders of tests share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the specification's case files, beside the checkout; skips where it is absent."""
    folder = Path(__file__).parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"the specification's folder {folder.name!r} is not beside the checkout")
    return folder
