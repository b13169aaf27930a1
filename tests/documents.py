"""The project's documents, and the code in them."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from voxcpm_runtime.commands import cli

REPOSITORY = Path(__file__).resolve().parents[1]
MANUALS = sorted((REPOSITORY / "docs").glob("*.md"))
DOCUMENTS = [*(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "TRIALS.md")), *MANUALS]
CARDS = [
    REPOSITORY / "examples" / "swift" / "README.md",
    REPOSITORY / "training" / "README.md",
    REPOSITORY / "conversion" / "voxcpm_conversion" / "default_checkpoint" / "README.md",
]

BY_NAME = {path.name: path for path in MANUALS}


# A fenced block, or an indented one after an empty line.
_BLOCK = re.compile(
    r"^```(\w+)\n(.*?)^```$|(?<=\n\n)((?:    [^\n]*\n|\n(?=    ))+)", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    language: str
    """The fence's info string; empty for an indented block."""
    code: str


def blocks(path: Path) -> Iterator[Block]:
    """Fenced and indented blocks of code, in order."""
    for language, fenced, indented in _BLOCK.findall(path.read_text(encoding="utf-8")):
        yield Block(language, fenced or textwrap.dedent(indented))


def run_python(path: Path, **names: Any) -> dict[str, Any]:
    """Run the blocks of Python in order and return their namespace."""
    names["__name__"] = "example"
    for block in blocks(path):
        if block.language == "python":
            name = f"{path.name}: {block.code.partition(chr(10))[0]}"
            exec(compile(block.code, name, "exec"), names)  # noqa: S102 - our own documents
    return names


def parsed(arguments: list[str]) -> Any:
    """Parse a command line of this program without running it. Raises click's usage errors."""
    command, parent, name = typer.main.get_command(cli.build_app(arguments[0])), None, "voxcpm-coreml"
    while hasattr(command, "resolve_command"):
        parent = command.context_class(command, info_name=name, parent=parent)
        name, command, arguments = command.resolve_command(parent, list(arguments))
    return command.make_context(name, list(arguments), parent=parent)
