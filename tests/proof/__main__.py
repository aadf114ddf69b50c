"""`python tests/proof`: train every reward model on the chains, measure it, and print the table with its gates.

A unit is one model of one seed; a finished one is kept, so that the command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from models import MODELS
from table import LONG, figures, gates, table
from unit import Plan, run_unit


def main() -> int:
    """0 where every gate holds, 3 where one does not, 1 where a unit failed."""
    arguments = _arguments()
    plan = Plan(arguments.out, tuple(arguments.seeds), arguments.updates, tuple(arguments.models))
    failed = 0 if arguments.only_table else _run(plan)
    found = figures(plan)
    held = gates(found, long=plan.updates >= LONG)
    page = table(found, held)
    (plan.out / "table.md").write_text(page, encoding="utf-8")
    print(page)
    if failed:
        return 1
    return 0 if all(gate.holds for gate in held) else 3


def _run(plan: Plan) -> int:
    """Run every unit that is not finished; one that fails is told and costs only itself. How many failed."""
    failed = 0
    for seed in plan.seeds:
        for name in plan.models:
            if plan.result(name, seed).is_file():
                continue
            started = time.monotonic()
            try:
                run_unit(plan, name, seed)
            except Exception:  # noqa: BLE001, RUF100 - hours of other units must not be lost by one
                traceback.print_exc()
                failed += 1
                continue
            print(f"{name}, seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
    return failed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="proof", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/proof"), help="where data, models and figures lie")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=2500)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--only-table", action="store_true", help="from the units that are finished")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
