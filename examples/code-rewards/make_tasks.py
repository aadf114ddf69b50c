"""Writes `tasks.jsonl`: small Python functions to complete, each with calls that test it.

    python examples/code-rewards/make_tasks.py

Each row has the prompt (a comment and a signature), `head` (what the answer continues), `entry_point`, and `tests`
(calls with their values, which the policy never sees).
"""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

NAMES = [("a", "b"), ("x", "y"), ("m", "n"), ("p", "q"), ("first", "second"), ("left", "right"), ("u", "v"), ("i", "j")]
KINDS: list[tuple[str, Callable[[int, int], int]]] = [
    ("the sum of {0} and {1}", lambda a, b: a + b),
    ("the product of {0} and {1}", lambda a, b: a * b),
    ("{0} minus {1}", lambda a, b: a - b),
    ("{1} minus {0}", lambda a, b: b - a),
    ("the larger of {0} and {1}", max),
    ("the smaller of {0} and {1}", min),
    ("twice {0} plus {1}", lambda a, b: 2 * a + b),
    ("{0} plus twice {1}", lambda a, b: a + 2 * b),
    ("the square of {0} plus {1}", lambda a, b: a * a + b),
    ("the distance between {0} and {1}", lambda a, b: abs(a - b)),
    ("the sum of {0} and {1}, plus one", lambda a, b: a + b + 1),
    ("the product of {0} and {1}, minus one", lambda a, b: a * b - 1),
    ("three times {0}, minus {1}", lambda a, b: 3 * a - b),
]


def rows() -> list[dict[str, object]]:
    """All tasks, in a drawn order."""
    draw = random.Random(7)
    made: list[dict[str, object]] = []
    for (words, rule), names in itertools.product(KINDS, NAMES):
        calls = [(draw.randint(-20, 20), draw.randint(-20, 20)) for _ in range(5)]
        head = f"def f({names[0]}, {names[1]}):\n"
        made.append(
            {
                "id": f"{words.format(*names)}",
                "prompt": f"# Return {words.format(*names)}.\n{head.rstrip()}",
                "head": head,
                "entry_point": "f",
                "language": "python",
                "tests": {
                    "kind": "call",
                    "fn": "f",
                    "cases": [{"args": list(pair), "expect": rule(*pair)} for pair in calls],
                },
            }
        )
    draw.shuffle(made)
    return made


def main() -> None:
    """Write the file."""
    tasks = rows()
    path = Path(__file__).with_name("tasks.jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in tasks), "utf-8")
    print(f"{len(tasks)} tasks in {path.name}")


if __name__ == "__main__":
    main()
