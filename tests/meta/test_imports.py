"""What an import costs: neither torch nor a plugin's heavy library before it is needed."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "sympy", "math_verify", "latex2sympy2_extended", "docker", "httpx", "reasoning_gym")


def loaded_by(code: str) -> set[str]:
    script = f"import contextlib, io, json, sys\nwith contextlib.redirect_stdout(io.StringIO()):\n    {code}\n"
    script += f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "code",
    [
        "import assay",
        "import assay.api",
        "from assay.cli import main; assert main(['--help']) == 0",
        "from assay.cli import main; assert main(['plugins']) == 0",
        "from assay.config.load import load_config",
    ],
)
def test_nothing_heavy_is_loaded(code: str):
    assert loaded_by(code) == set()


@pytest.mark.parametrize(
    "package", ["bridge", "code", "engines", "judge", "math", "optim", "rules", "sandboxes", "tasks"]
)
def test_listing_a_built_in_plugin_loads_nothing_heavy(package: str):
    assert loaded_by(f"import assay_{package}") == set()


def test_training_does_load_torch():
    assert "torch" in loaded_by("import assay.training.trainer")
