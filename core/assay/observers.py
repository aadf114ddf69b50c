"""Calls the observers that plugins offer; one that raises costs itself and is named."""

from collections import Counter
from typing import Any

from assay.contracts import Candidate, Judgement, RunInfo, RunOutcome, UpdateReport
from assay.events import Emit


class Observers:
    """Calls observers one by one; one that raises is named and counted, and the run goes on."""

    def __init__(self, hook: Any, emit: Emit) -> None:
        """Call through pluggy's `hook`; failures are told by `emit`."""
        self._hook = hook
        self._emit = emit
        self._failures: Counter[str] = Counter()

    def run_started(self, run: RunInfo) -> None:
        """Before the first rollout."""
        self._call("assay_run_started", run=run)

    def judged(self, candidate: Candidate, judgement: Judgement) -> None:
        """After a verdict is stored."""
        self._call("assay_judged", candidate=candidate, judgement=judgement)

    def updated(self, update: UpdateReport) -> None:
        """After an optimizer step."""
        self._call("assay_updated", update=update)

    def run_finished(self, run: RunInfo, outcome: RunOutcome) -> None:
        """At the end, also after a failure."""
        self._call("assay_run_finished", run=run, outcome=outcome)

    def _call(self, name: str, **arguments: Any) -> None:
        for implementation in getattr(self._hook, name).get_hookimpls():
            wanted = {key: arguments[key] for key in implementation.argnames}
            try:
                implementation.function(**wanted)
            # An observer only watches: whatever it raises costs the observer alone and is reported with its name.
            except Exception as error:
                self._failures[implementation.plugin_name] += 1
                if self._failures[implementation.plugin_name] == 1:
                    text = f"observer {implementation.plugin_name}: {name}: {type(error).__name__}: {error}"
                    self._emit({"event": "alert", "text": text})
