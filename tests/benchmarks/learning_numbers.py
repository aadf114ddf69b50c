"""Chooses what is free in the learning tests (learning rate, group size, updates) on seeds that no test uses.

For each preset the candidates are tried in order on seeds 10, 11 and 12; the first that reaches 0.9 of the attainable
reward on all three with a quarter of its updates to spare is printed as chosen, one JSON line per preset. The tests
then judge it once, on seeds 0, 1 and 2:

    python tests/benchmarks/learning_numbers.py reinforce kimi
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from assay.testing import learning

SEEDS = (10, 11, 12)
SPARE = 0.75
CANDIDATES = [(1e-3, 8, 90), (1e-3, 8, 150), (7e-4, 12, 120), (7e-4, 16, 150), (1e-3, 8, 240), (5e-4, 24, 200)]
"""Learning rate, group size, updates."""
OWN = {
    # The accuracy band includes 0.8, which a group of five can show: nearly solved tasks then still teach.
    "prime": [(1e-3, 5, 240), (7e-4, 5, 300), (5e-4, 5, 300)],
    # The critic takes its time; larger groups would take more of it per update.
    "tulu3": [(7e-4, 12, 180), (7e-4, 16, 180), (7e-4, 20, 150), (5e-4, 24, 200)],
}
"""Candidates of presets for which those above do not serve."""
DEFAULT = ("reinforce", "reinforce_batch_mean", "tulu3", "kimi", "prime")


def load_tests() -> Any:
    """The module of the learning tests, for its table of presets."""
    path = Path(__file__).parents[1] / "plugins" / "test_optim_learning.py"
    found = importlib.util.spec_from_file_location("learning_tests", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def choose(tests: Any, name: str, start: Path) -> dict[str, Any]:
    """The chosen numbers of one preset, and what every try reached: updates and share of the attainable per seed."""
    tries: list[dict[str, Any]] = []
    for candidate in OWN.get(name, CANDIDATES):
        chosen = tests.Chosen(*candidate)
        reached: list[tuple[int, float]] = []
        for seed in SEEDS:
            found = tests.teach(name, start, None, seed, chosen)
            reached.append((found.updates, round(found.share, 3)))
            if found.share < tests.ENOUGH or found.updates > SPARE * chosen.updates:
                break
        tries.append({**chosen._asdict(), "reached": reached})
        good = [share >= tests.ENOUGH and updates <= SPARE * chosen.updates for updates, share in reached]
        if len(good) == len(SEEDS) and all(good):
            return {"preset": name, "chosen": chosen._asdict(), "tries": tries}
    return {"preset": name, "chosen": None, "tries": tries}


def main(names: list[str]) -> None:
    """One JSON line per preset."""
    tests = load_tests()
    with tempfile.TemporaryDirectory() as folder:
        start = learning.supervised_start(Path(folder))
        for name in names:
            print(json.dumps(choose(tests, name, start)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(DEFAULT))
