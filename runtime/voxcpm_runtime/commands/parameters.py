"""Dataclasses as groups of command-line parameters: a command takes a dataclass, and typer sees its fields.

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

    A field may be a dataclass, too. The command's parameters are keyword-only, so that those with a default may come
    before a group. hidden: fields that help does not list.
    """

    def decorated(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}

        @functools.wraps(command)
        def flat(**given: Any) -> None:
            built = {name: _built(group, given) for name, group in groups.items()}
            command(**given, **built)

        parameters = [
            flattened
            for parameter in inspect.signature(command).parameters.values()
            for flattened in _flattened(parameter.replace(annotation=hints[parameter.name]), None, hidden)
        ]
        flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return flat

    return decorated


def _built(group: Any, given: dict[str, Any]) -> Any:
    """A group, built from the parameters that are its fields, which are removed from `given`."""
    hints = get_type_hints(group)
    nested = {name for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    fields = [field.name for field in dataclasses.fields(group)]
    return group(**{n: _built(hints[n], given) if n in nested else given.pop(n) for n in fields})


def _flattened(
    parameter: inspect.Parameter, panel: str | None, hidden: Collection[str]
) -> Iterator[inspect.Parameter]:
    name, annotation = parameter.name, parameter.annotation
    if dataclasses.is_dataclass(annotation):
        hints = get_type_hints(annotation, include_extras=True)
        panel = _PANELS.get(getattr(annotation, "__name__", ""))
        for field in dataclasses.fields(annotation):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            keyword = inspect.Parameter.KEYWORD_ONLY
            nested = inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name])
            yield from _flattened(nested, panel, hidden)
        return
    type_, declared = (*get_args(annotation), None, None)[:2]
    if isinstance(declared, Option):
        flags = declared.flags or (f"--{name.replace('_', '-')}",)
        option = typer.Option(*flags, help=declared.full_help, rich_help_panel=panel, hidden=name in hidden)
        parameter = parameter.replace(annotation=Annotated[type_, option])
    yield parameter
