"""The help of a command in plain text: every option with its whole name and a placeholder, by heading.

typer's own help reads square brackets as colours, cuts long option names, and shows Python types in place of names.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""`context_settings` of the whole command line."""


class PlainCommand(TyperCommand):
    """A command with plain help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS]` and the arguments, in brackets if they may be left out."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        names = [(_argument_name(each), each.required) for each in arguments]
        return ["[OPTIONS]", *(name if required else f"[{name}]" for name, required in names)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        _write_parameters(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands with plain help, where summaries of commands are not cut."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write commands, arguments and options."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.short_help or each.help or "") for name, each in commands])
        _write_parameters(self, ctx, formatter)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)  # None if hidden; its help text has the default and the range
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            name = _argument_name(parameter) if is_argument else _option_names(parameter)
            sections.setdefault(panel, []).append((name, record[1]))
    for panel, rows in sections.items():
        if rows:
            with formatter.section(panel):
                formatter.write_dl(rows)


def _argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option_names(option: Any) -> str:
    """All names of an option, short ones first, and a placeholder for its value unless it is a flag."""
    names = ", ".join([*sorted(option.opts, key=lambda name: name.startswith("--")), *option.secondary_opts])
    long = next(name for name in option.opts if name.startswith("--"))
    placeholder = option.metavar or f"<{long[2:].replace('-', '_').upper()}>"
    return names if option.is_flag else f"{names} {placeholder}"
