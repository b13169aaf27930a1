"""The project's documents, and the code in them."""

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


class Block(NamedTuple):
    language: str
    """The fence's info string; empty for an indented block."""
    lines: list[str]


def blocks(path: Path) -> Iterator[Block]:
    """Fenced and indented blocks of code, in order."""
    block: Block | None = None
    after_text = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = block is not None and block.language != "indented"
            if block is not None:
                yield block
            block = None if fenced else Block(line[3:].strip() or "fenced", [])
        elif block is not None and (block.language != "indented" or line.startswith("    ") or not line):
            block.lines.append(line.removeprefix("    ") if block.language == "indented" else line)
        else:
            if block is not None:
                yield block
            is_code = line.startswith("    ") and not after_text
            block = Block("indented", [line.removeprefix("    ")]) if is_code else None
        after_text = bool(line.strip()) and block is None and not line.startswith("```")
    if block is not None:
        yield block


def run_python(path: Path, **names: Any) -> dict[str, Any]:
    """Run the blocks of Python in order and return their namespace."""
    names["__name__"] = "example"
    for block in blocks(path):
        if block.language == "python":
            source = "\n".join(block.lines)
            exec(compile(source, f"{path.name}: {block.lines[0]}", "exec"), names)  # noqa: S102 - our own documents
    return names


def parsed(arguments: list[str]) -> Any:
    """Parse a command line of this program without running it. Raises click's usage errors."""
    command, parent, name = typer.main.get_command(cli.build_app(arguments[0])), None, "voxcpm-coreml"
    while hasattr(command, "resolve_command"):
        parent = command.context_class(command, info_name=name, parent=parent)
        name, command, arguments = command.resolve_command(parent, list(arguments))
    return command.make_context(name, list(arguments), parent=parent)
