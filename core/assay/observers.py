"""Calls the observers and trackers that plugins offer; one that raises costs itself and is named."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.component import BuildContext
from assay.config.refs import Use, build
from assay.contracts import Candidate, Judgement, RunInfo, RunOutcome, UpdateReport
from assay.events import Emit
from assay.protocols import Tracker
from assay.registry import Registry


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


class Trackers:
    """Copies metrics to every tracker of a run; one that raises is told once and left out from then on."""

    def __init__(self, trackers: Mapping[str, Tracker], emit: Emit) -> None:
        """Copy to `trackers`, each under the name that an alert uses."""
        self._trackers = dict(trackers)
        self._emit = emit

    @classmethod
    def open(cls, uses: Sequence[Use], *, registry: Registry, context: BuildContext, emit: Emit) -> "Trackers":
        """The trackers of a config, built; raises `ConfigError` or `PluginError` for one that cannot be."""
        built: dict[str, Tracker] = {}
        for index, use in enumerate(uses):
            where = f"trackers[{index}]"
            built[f"{where} ({use.use})"] = build(registry, "tracker", use.use, use.options, context, where=where)
        return cls(built, emit)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Copy the metrics of one step."""
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, lambda tracker=tracker: tracker.log(step, metrics))

    def close(self) -> None:
        """Flush and let go of all."""
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, tracker.close)

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        # A tracker only copies what the run's own log keeps: whatever it raises costs the tracker alone.
        except Exception as error:
            del self._trackers[name]
            text = f"{name}: {type(error).__name__}: {error}; the run goes on without it, its own log is complete"
            self._emit({"event": "alert", "text": text})
