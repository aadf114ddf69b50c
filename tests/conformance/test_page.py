"""The page shows the tables as they are."""

import runpy
from pathlib import Path

FOLDER = Path(__file__).parent


def test_the_page_is_current() -> None:
    page = runpy.run_path(str(FOLDER / "page.py"))["page"]()
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page, "run: python tests/conformance/page.py"
    assert page.count("| equal |") > 70
