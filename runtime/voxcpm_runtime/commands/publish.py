"""`publish`: a bundle uploaded to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from voxcpm_constants.errors import InputError
from voxcpm_constants.hub import is_branch, is_hub_id
from voxcpm_constants.manifest import MODEL_CARD_FILE
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.bundle.publishing import publishable_files, upload


def publish(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Hub id to upload it to.")],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private; one that exists stays as it is.")
    ] = False,
    branch: Annotated[
        str | None, typer.Option(help="Branch to upload to; made if it is absent. Default: main.")
    ] = None,
    message: Annotated[
        str | None, typer.Option(help="Message of the commit. Default: what is in it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the bundle, list the files, upload nothing.")
    ] = False,
) -> None:
    """Check every file of a bundle and upload it to the Hugging Face hub, where `ORG/NAME` opens it again."""
    if not is_hub_id(repository):
        raise InputError(f"{repository}: expected a hub id to upload to, organisation/name")
    if branch is not None and not is_branch(branch):
        raise InputError(f"--branch {branch!r}: expected a name that git allows for a branch, such as v2")
    if not user_path(bundle).is_dir():
        raise InputError(f"{bundle}: expected the folder of a bundle")
    opened = open_bundle(bundle, verify=True)
    files = publishable_files(opened.folder, opened.manifest)
    if MODEL_CARD_FILE not in files:
        typer.echo(
            f"warning: {bundle} has no {MODEL_CARD_FILE}, so its page on the hub will be empty", err=True
        )
    if dry_run:
        for name, size in files.items():
            typer.echo(f"{size:>13,}  {name}")
    typer.echo(f"{len(files)} files, {sum(files.values()) / 1e6:.1f} MB, every digest checked", err=True)
    if dry_run:
        typer.echo(f"dry run: nothing was uploaded to {repository}", err=True)
        return
    typer.echo(
        upload(opened.folder, opened.manifest, repository, private=private, branch=branch, message=message)
    )
    if branch is None:
        typer.echo(f"open it with: voxcpm-coreml inspect {repository}", err=True)
