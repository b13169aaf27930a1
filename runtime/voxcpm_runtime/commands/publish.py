"""`publish`: upload a bundle's listed files, manifest and model card to the hub, in one commit."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from voxcpm_constants.errors import BundleError, InputError, first_line
from voxcpm_constants.json_files import printed_json
from voxcpm_constants.manifest import MANIFEST_DIGEST_FILE, MANIFEST_FILE, MODEL_CARD_FILE
from voxcpm_constants.step_models import PRECISIONS
from voxcpm_constants.user_folders import is_hub_id, user_path
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.commands.shared_arguments import Json

_HINTS = {
    401: "invalid token; log in with `hf auth login`, or set HF_TOKEN",
    403: "the token has no write access to this organisation or user; use one that has",
    404: "no such repository or branch, or the token cannot see it; check the name and the token",
}
"""HTTP status of the hub -> what to do."""


def publish(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Hub id to upload to.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    branch: Annotated[str | None, typer.Option(help="Branch, created if missing. Default: main.")] = None,
    message: Annotated[str | None, typer.Option(help="Commit message.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Verify and list the files without uploading.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify a bundle and upload it to the Hugging Face Hub, to be opened by its id."""
    if not is_hub_id(repository):
        raise InputError(f"{repository}: expected a hub id to upload to, organisation/name")
    if not user_path(bundle).is_dir():
        raise InputError(f"{bundle}: expected the folder of a bundle")
    opened_bundle = open_bundle(bundle, verify=True)
    folder, manifest = opened_bundle.folder, opened_bundle.manifest
    names = (*manifest.files, MANIFEST_FILE, MANIFEST_DIGEST_FILE, MODEL_CARD_FILE)
    files = {name: (folder / name).stat().st_size for name in sorted(names) if (folder / name).exists()}
    if (folder / MODEL_CARD_FILE).is_symlink():
        # It has no digest, so it could be any file of this machine.
        raise BundleError(
            f"{folder / MODEL_CARD_FILE}: links are not published; copy the bundle with `cp -RL` and publish the copy"
        )
    typer.echo(f"{len(files)} files, {sum(files.values()) / 1e6:.1f} MB, all checksums verified", err=True)
    result = {"repository": repository, "files": files, "commit": None}
    if dry_run:
        listed = "\n".join(f"{size:>13,}  {name}" for name, size in files.items())
        typer.echo(printed_json(result) if as_json else listed)
        typer.echo(f"dry run: nothing was uploaded to {repository}", err=True)
        return
    message = message or f"{manifest.source.checkpoint} for Core ML: {', '.join(manifest.precisions)}"
    try:
        commit = _upload(folder, files, repository, private, branch, message)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the hub's HTTP library, and its errors, differ by release
        status = getattr(getattr(error, "response", None), "status_code", None)
        known = _HINTS.get(status) if isinstance(status, int) else None
        reason = f"{status}: {known}" if known else first_line(error)
        raise InputError(f"{repository}: not published ({reason})") from None
    typer.echo(printed_json({**result, "commit": commit}) if as_json else commit)
    if branch is None:
        typer.echo(f"open it with: voxcpm-coreml inspect {repository}", err=True)


def _upload(
    folder: Path, files: Collection[str], repository: str, private: bool, branch: str | None, message: str
) -> str:
    """Upload the files, replacing those of an earlier bundle, and return the URL of the commit.

    Files already on the hub are not sent again, so the same call resumes an interrupted upload. Raises InputError
    without a token and for files that the hub left out, and the errors of the hub's client.
    """
    # Slow to import, and only this command needs it.
    from huggingface_hub import HfApi, constants, get_token

    if get_token() is None:
        raise InputError(
            "publishing needs a Hugging Face token: log in with `hf auth login`, or set HF_TOKEN"
        )
    # Git LFS, even if `hf-xet` is installed, whose errors have no HTTP status for `_HINTS`.
    constants.HF_HUB_DISABLE_XET = True
    api = HfApi()
    # None: public, unless the organisation's own default is private.
    api.create_repo(repository, private=private or None, exist_ok=True)
    if branch is not None:
        api.create_branch(repository, branch=branch, exist_ok=True)
    # An earlier bundle's compiled model would be loaded instead of the new package, and its manifest digest would
    # reject the new manifest.
    folders = {PurePosixPath(name).parts[0] for name in files if "/" in name}
    commit = api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        allow_patterns=list(files),
        delete_patterns=[MANIFEST_DIGEST_FILE, *(f"{name}/*" for name in sorted({*PRECISIONS, *folders}))],
        commit_message=message,
        revision=branch,
    )
    # The hub silently leaves out files matched by a .gitignore in the repository.
    if missing := sorted(set(files) - set(api.list_repo_files(repository, revision=branch))):
        raise InputError(
            f"{repository}: the hub left out {missing[0]} ({len(missing)} of {len(files)} files are missing); "
            "remove the repository's .gitignore and run the same command again"
        )
    return str(commit.commit_url)
