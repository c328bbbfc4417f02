"""The program: all commands under one name, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

from headrace import __version__
from headrace.cli import add, assign, dlq, doctor, look, pipeline, report, run
from headrace.cli.ask import AsJson
from headrace.cli.show import Show, plain
from headrace.errors import CodecError, ConfigError, HeadraceError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

# click's own class, wherever the installed typer keeps it: an installed package, or a copy inside typer.
UsageError: type[Any] = typer.BadParameter.__bases__[0]
ClickException: type[Any] = UsageError.__bases__[0]

program = typer.Typer(
    name="headrace",
    help="Self-healing workers for Redis Streams.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@program.callback(invoke_without_command=True)
def headrace(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """Self-healing workers for Redis Streams."""
    if version:
        show_version()
        raise typer.Exit(OK)
    if context.invoked_subcommand is None:
        print(context.get_help())


program.command("run")(run.run)
program.command("add")(add.add)
program.command("pending")(look.pending)
program.command("owners")(look.owners)
program.command("groups")(look.groups)
program.command("backlog")(look.backlog)
program.command("assignments")(assign.assignments)
program.command("announce")(assign.announce)
program.add_typer(dlq.program, name="dlq")
program.command("doctor")(doctor.doctor)
program.add_typer(pipeline.program, name="pipeline")
program.command("report")(report.report)


@program.command("version")
def show_version(as_json: AsJson = False) -> None:
    """The versions of Headrace and of what it stands on."""
    about = {
        "headrace": __version__,
        "python": platform.python_version(),
        "redis-py": metadata.version("redis"),
    }
    show = Show(as_json=as_json)
    if as_json:
        show.json(about)
    else:
        show.line(", ".join(f"{name} {version}" for name, version in about.items()))


def run_program(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Every error we know is one line on stderr; what is left is a bug and shows its trace."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(program(words, prog_name="headrace", standalone_mode=False) or OK)
    except HeadraceError as error:
        return _failed(str(error), BAD_INPUT if isinstance(error, (ConfigError, CodecError)) else FAILED)
    except UsageError as error:
        path = error.ctx.command_path if error.ctx else "headrace"
        return _failed(f"{error.format_message().rstrip('.')} (see {path} --help)", BAD_INPUT)
    except ClickException as error:
        return _failed(error.format_message(), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _failed("interrupted", INTERRUPTED)


def _failed(words: str, code: int) -> int:
    print("headrace: " + plain(" ".join(words.split())), file=sys.stderr)
    return code
