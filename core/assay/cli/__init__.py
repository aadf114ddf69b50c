"""The command line: one module per command, imported only when that command runs."""

import logging
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import cyclopts

import assay
from assay.cli.output import complain
from assay.errors import AssayError, ConfigError, did_you_mean


class Command(NamedTuple):
    """One subcommand: where its function is, and the line that `--help` shows without importing it."""

    target: str
    summary: str


COMMANDS = {
    "demo": Command("assay.cli.demo:demo", "Train a tiny model for a few steps on this machine and write a report."),
    "train": Command("assay.cli.train:train", "Run a config: reinforcement learning from verified rewards."),
    "score": Command("assay.cli.score:score", "Judge the answers of a file, or of a stored run again."),
    "audit": Command("assay.cli.audit:audit", "Try a verifier on data, or look for suspects in a run."),
    "check": Command("assay.cli.check:check", "Run the conformance suite of one component."),
    "label": Command("assay.cli.label:label", "Label the steps of solutions by continuing them, with any engine."),
    "rerank": Command(
        "assay.cli.rerank:rerank_command", "Best-of-n by a reward model beside majority vote, or where errors begin."
    ),
    "show": Command("assay.cli.show:show", "Show a run, or explain one reward."),
    "compare": Command("assay.cli.compare:compare", "Show two runs side by side: paired differences, flips, pass@k."),
    "export": Command("assay.cli.export:export", "Write a run as one HTML page, JSONL or Parquet."),
    "serve": Command("assay.cli.serve:serve", "Judge over HTTP what other programs send."),
    "plugins": Command("assay.cli.plugins:plugins", "List what is installed: sources, optimizers, engines, sandboxes."),
    "new": Command("assay.cli.new:new", "Write a plugin package that passes its own tests at once."),
    "doctor": Command("assay.cli.doctor:doctor", "Say what works on this machine and what a missing thing costs."),
}
"""Name to command; a command that is not listed does not exist."""


def build_app() -> cyclopts.App:
    """The application with assay's own commands."""
    app = cyclopts.App(
        name="assay",
        help="Rewards that can be trusted, for reinforcement learning of language models.",
        version=assay.__version__,
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        help_format="plaintext",
        default_parameter=cyclopts.Parameter(negative=""),
    )
    for name, command in COMMANDS.items():
        app.command(command.target, name=name, help=command.summary)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 our defect, 2 a mistake, 3 past a limit, 130 interrupted."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    app = build_app()
    try:
        if tokens and tokens[0] not in COMMANDS and not tokens[0].startswith("-"):
            _add_plugin_commands(app)
            if tokens[0] not in app:
                known = sorted(name for name in app if not name.startswith("-"))
                raise ConfigError(
                    f"no command {tokens[0]!r}; known: {', '.join(known)}.{did_you_mean(tokens[0], known)}"
                )
        result: object = app(tokens)
    except AssayError as error:
        complain(str(error))
        return error.exit_code
    except cyclopts.CycloptsError as error:
        if isinstance(error, cyclopts.UnknownOptionError) and error.app is not None:
            error.argument_collection = error.app.assemble_argument_collection()  # for the nearest one
        complain(f"{' '.join(['assay', *tokens[:1]])}: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        complain("interrupted; what was finished is kept")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    # The last line of defence: whatever is not an AssayError is our defect, shown whole and named as such.
    except Exception:
        complain(traceback.format_exc().rstrip())
        complain("this is a defect of assay or of a plugin named above; please report it with the lines above")
        return 1
    return result if isinstance(result, int) else 0


def _add_plugin_commands(app: cyclopts.App) -> None:
    from assay.registry import Registry  # reads the manifest; not needed for assay's own commands

    Registry.load().commands().hook.assay_commands(commands=app)
