"""Groups of options: a command takes a dataclass, typer sees its fields.

So an option that several commands share, its name, help and default, is declared once (`arguments`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is to see it: each parameter that is a dataclass replaced by that class's fields.

    The command's parameters are keyword-only, so that those with a default may come before a group.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        command(**given)

    parameters = list(_flattened(command, hints, groups))
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _flattened(
    command: Callable[..., None], hints: dict[str, Any], groups: dict[str, Any]
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
                annotation=fields[field.name],
            )
