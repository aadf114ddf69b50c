"""Shows a training run: live lines on a terminal, one plain line per event elsewhere."""

import datetime
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from assay.reports.fit import data_sentence, evaluation_sentence
from assay.reports.metrics import interval_of, is_source


class Progress:
    """Prints events of a run; it never erases a warning, and every mean stands beside its counts."""

    def __init__(self) -> None:
        """Write to stdout; live only on a terminal."""
        self._console = Console(highlight=False, soft_wrap=not sys.stdout.isatty(), no_color="NO_COLOR" in os.environ)
        self._live = self._console.is_terminal
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
        )
        self._task: Any = None
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        """Start the live display where there is one."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the live display."""
        self._bar.stop()

    def handle(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        show: Callable[[Mapping[str, Any]], None] | None = getattr(self, f"_{event['event']}", None)
        if show is not None:
            show(event)

    def _say(self, line: str) -> None:
        stamp = "" if self._live else f"{datetime.datetime.now():%H:%M:%S} "
        self._console.print(stamp + line, markup=False)

    def _launch(self, event: Mapping[str, Any]) -> None:
        self._say(
            f"run {event['run']}  policy {event['policy']}  tasks {event['tasks']:,}  held out {event['held_out']:,}  "
            f"steps {event['steps']}  folder {event['folder']}"
        )
        self._task = self._bar.add_task("steps", total=event["steps"])

    def _resumed(self, event: Mapping[str, Any]) -> None:
        self._say(f"resumed after step {event['step']}; {event['kept_rollouts']} stored rollouts are used again")
        self._bar.update(self._task, completed=event["step"]) if self._task is not None else None

    def _note(self, event: Mapping[str, Any]) -> None:
        self._say(f"note: {event['text']}")

    def _waiting(self, event: Mapping[str, Any]) -> None:
        self._say(event["text"])

    def _alert(self, event: Mapping[str, Any]) -> None:
        self._say(f"! {event['text']}")

    def _evaluation(self, event: Mapping[str, Any]) -> None:
        facts = event["accuracy"]
        also = "".join(f"  {name} {interval_of(value)}" for name, value in event.items() if is_source(name, value))
        extracted = interval_of(facts, "extracted")
        self._say(
            f"held out after step {event['step']}: accuracy {interval_of(facts)} over {facts.get('of', 0)} answers "
            f"({facts['abstained']} abstained, {facts['failed']} failed); answer extracted {extracted}{also}"
        )
        if event.get("strategies"):
            best = max(event["strategies"].items(), key=lambda item: item[1])
            self._say(f"  best answer without understanding: {best[0]!r} {best[1]:.1%}")

    def _step(self, event: Mapping[str, Any]) -> None:
        spread = f" ±{event['reward_se']:.2f}" if event.get("reward_se") is not None else ""
        mean = "none" if event.get("reward") is None else f"{event['reward']:.3f}{spread}"
        judge = f"judge {event['judge_s']:.1f} ({event['judge_hidden']:.0%} hidden)"
        total = event["sample_s"] + event["train_s"] + event["publish_s"]
        counts = f"{event['scored']} scored, {event['abstained']} abstained, {event['failed']} failed"
        groups = f"kept {event['kept_groups']}/{event['groups']} groups ({event['equal_groups']} all equal)"
        phases = f"sample {event['sample_s']:.1f} {judge} train {event['train_s']:.1f}"
        self._say(
            f"step {event['step']}/{event['steps']}  reward {mean} ({counts})  {groups}  "
            f"len {event['length'] or 0:.0f}  {total:.1f} s: {phases}"
        )
        if self._task is not None:
            self._bar.update(self._task, completed=event["step"])

    def _done(self, event: Mapping[str, Any]) -> None:
        minutes = (time.monotonic() - self._started) / 60
        word = {"done": "finished", "stopped": "stopped after", "interrupted": "interrupted after"}.get(
            event["status"], "failed after"
        )
        self._say(f"{word} {event['steps']} steps in {minutes:.1f} min")
        self._say(f"report {event['report']}.  Next: assay show {event['run']}")


class FitProgress(Progress):
    """Prints the events of a run that learns from examples."""

    def _data(self, event: Mapping[str, Any]) -> None:
        self._say(f"data: {data_sentence(event)}")

    def _launch(self, event: Mapping[str, Any]) -> None:
        self._say(
            f"run {event['run']}  {event['kind']} {event['objective']}  policy {event['policy']}  "
            f"examples {event['examples']:,}  held out {event['held_out']:,}  steps {event['steps']}  "
            f"folder {event['folder']}"
        )
        self._task = self._bar.add_task("steps", total=event["steps"])

    def _resumed(self, event: Mapping[str, Any]) -> None:
        self._say(f"resumed after step {event['step']}")

    def _evaluation(self, event: Mapping[str, Any]) -> None:
        self._say(f"held out after step {event['step']}: {evaluation_sentence(event)}")

    def _step(self, event: Mapping[str, Any]) -> None:
        known = ("loss", "nll", "accuracy", "chosen_above", "margin", "judged_right", "best_first", "stream_loss")
        numbers = "  ".join(f"{name} {event[name]:.4g}" for name in known if name in event)
        self._say(
            f"step {event['step']}/{event['steps']}  epoch {event['epoch']}/{event['epochs']}  {numbers}  "
            f"grad {event.get('grad_norm', 0.0):.3g}  lr {event.get('lr', 0.0):.3g}  {event['update_s']:.1f} s"
        )
        if self._task is not None:
            self._bar.update(self._task, completed=event["step"])
