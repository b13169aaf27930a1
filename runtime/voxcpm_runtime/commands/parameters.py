"""From declarations to command-line parameters: a command takes a dataclass, typer sees its fields.

An option that several commands share is thus declared once, with flags, help and default: in `shared_arguments` or
`options`. A field is annotated with typer's own `Option`, or with the runtime's, which Python and JSONL use as well.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, get_args, get_type_hints

import typer

from voxcpm_runtime.options import Option

Command = Callable[..., None]
_PANELS = {"GenerationOptions": "Speech", "RecordingArguments": "Voice", "VoiceArguments": "Voice"}


def takes_groups(*, hidden: Collection[str] = ()) -> Callable[[Command], Command]:
    """A decorator that shows typer a command's parameters, each dataclass among them replaced by its fields.

    The command's parameters are keyword-only, so that those with a default may come before a group. hidden: fields
    that help does not list.
    """

    def decorated(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        groups: dict[str, Any] = {
            name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
        }

        @functools.wraps(command)
        def flat(**given: Any) -> None:
            for name, group in groups.items():
                fields = [field.name for field in dataclasses.fields(group)]
                given[name] = group(**{field: given.pop(field) for field in fields})
            command(**given)

        parameters = list(_flattened(command, hints, groups, hidden))
        flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return flat

    return decorated


def _flattened(
    command: Command, hints: dict[str, Any], groups: dict[str, Any], hidden: Collection[str]
) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            yield parameter.replace(annotation=hints[parameter.name])
            continue
        group = groups[parameter.name]
        fields = get_type_hints(group, include_extras=True)
        for field in dataclasses.fields(group):
            yield inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=_annotation(
                    field.name, fields[field.name], _PANELS.get(group.__name__), field.name in hidden
                ),
            )


def _annotation(name: str, hint: Any, panel: str | None, hidden: bool) -> Any:
    """The field's annotation with typer's declaration of it."""
    type_, declared = get_args(hint)[:2]
    if not isinstance(declared, Option):
        return hint
    flags = declared.flags or (f"--{name.replace('_', '-')}",)
    option = typer.Option(*flags, help=declared.full_help, rich_help_panel=panel, hidden=hidden)
    return Annotated[type_, option]
