"""`assay export`: a run as one HTML page, JSON lines or Parquet."""

from pathlib import Path
from typing import Literal

from assay import runs
from assay.cli.output import say
from assay.errors import ConfigError
from assay.store import RunStore


def export(
    run: str,
    /,
    *,
    to: Literal["html", "jsonl", "parquet"] = "html",
    out: Path | None = None,
    runs_dir: Path = Path("runs"),
) -> int:
    """Write a run in another form.

    Args:
        run: Folder, name, short id, or `latest`.
        to: html (one self-contained page), jsonl or parquet (one row per rollout with its reward and verdicts).
        out: The file to write; default RUN.html, RUN.jsonl or RUN.parquet here.
        runs_dir: Where run folders are looked for.
    """
    folder = runs.find_run(run, runs_dir)
    target = out or Path(f"{folder.name}.{to}")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"--out {target}: the folder {target.parent} does not exist")
    with RunStore.open(folder, read_only=True) as store:
        if to == "html":
            from assay.reports.html import write_report

            write_report(folder, store=store, target=target)
        else:
            from assay.store import export_jsonl, export_parquet

            (export_jsonl if to == "jsonl" else export_parquet)(store, target)
    say(f"wrote {target}")
    return 0
