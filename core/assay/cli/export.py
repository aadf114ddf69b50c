"""`assay export`: a run as one HTML page, as its rows, or as a data set that another trainer reads."""

from pathlib import Path
from typing import Literal

from assay import runs
from assay.cli.output import say
from assay.errors import ConfigError
from assay.store import RunStore
from assay.store.datasets import SUFFIXES, Choice, Form, export_dataset


def export(
    run: str,
    /,
    *,
    to: Literal[
        "html", "jsonl", "parquet", "trl", "trl-preference", "trl-unpaired", "trl-prm", "verl", "openrlhf"
    ] = "html",
    out: Path | None = None,
    source: str | None = None,
    threshold: float = 0.5,
    runs_dir: Path = Path("runs"),
) -> int:
    """Write a run in another form.

    Args:
        run: Folder, name, short id, or `latest`.
        to: html (one self-contained page), jsonl or parquet (one row per rollout with its reward and verdicts), or a
            data set: trl (prompts), trl-preference (best and worst of each group), trl-unpaired (good or not), trl-prm
            (labelled steps), verl, openrlhf (prompts with the gold answer).
        out: The file to write; default RUN and the form's suffix, here.
        source: For trl-prm: the source whose step scores are taken; default the first that has any.
        threshold: For trl-unpaired and trl-prm: a score from this value on is good.
        runs_dir: Where run folders are looked for.
    """
    folder = runs.find_run(run, runs_dir)
    form: Form | None = to if to in SUFFIXES else None
    target = out or Path(f"{folder.name}.{SUFFIXES[form] if form else to}")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"--out {target}: the folder {target.parent} does not exist")
    if source is not None and to != "trl-prm":
        raise ConfigError(f"--source {source}: it is for --to trl-prm; found --to {to}: leave one of the two out")
    with RunStore.open(folder, read_only=True) as store:
        if form is not None:
            written = export_dataset(store, target, form, Choice(threshold, source))
            left = "".join(f"; left out {count:,} {reason}" for reason, count in written.left_out.items())
            say(f"wrote {target}: {written.rows:,} rows{left}")
            return 0
        if to == "html":
            from assay.reports.html import write_report

            write_report(folder, store=store, target=target)
        else:
            from assay.store import export_jsonl, export_parquet

            (export_jsonl if to == "jsonl" else export_parquet)(store, target)
    say(f"wrote {target}")
    return 0
