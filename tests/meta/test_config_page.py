"""The page of config keys is that of the code, and says what each key means."""

import re
import runpy
from pathlib import Path

PAGE = runpy.run_path(str(Path(__file__).with_name("config_page.py")))


def test_the_page_is_current():
    assert PAGE["PAGE"].read_text("utf-8") == PAGE["page"](), "run: python tests/meta/config_page.py"


def test_every_key_has_a_meaning():
    silent = re.findall(r"^\| `(\w+)` .*\|  \|$", PAGE["page"](), re.MULTILINE)
    assert set(silent) <= {"kind"}
