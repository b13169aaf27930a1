"""Uploading a bundle to the hub, from which `open_bundle("organisation/name")` opens it again.

What is uploaded is what the manifest lists, checked against its digests, with the manifest and the model card: never a
stray file, a hidden one, or a link. All files appear in one commit, so nobody downloads half of a bundle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from voxcpm_constants.errors import BundleError, InputError, first_line
from voxcpm_constants.hub import is_hub_id
from voxcpm_constants.manifest import MANIFEST_DIGEST_FILE, MANIFEST_FILE, MODEL_CARD_FILE, Manifest
from voxcpm_constants.step_models import PRECISIONS

_REFUSALS = {
    401: "the hub does not know the token; log in with `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there; use one with write access to this organisation or user",
    404: "no such repository or branch, or the token may not see it; check the name and the token",
    409: "the repository changed meanwhile; run the same command again",
    413: "the hub refuses files of this size",
    429: "the hub asks for a pause; run the same command again later",
}
"""HTTP status of the hub -> what to do."""


def publishable_files(folder: Path, manifest: Manifest) -> dict[str, int]:
    """Bytes of each file to upload, by POSIX path relative to the bundle, in the order of their names.

    Raises BundleError for a listed path that leads out of the bundle, is hidden, or is a link.
    """
    names = [*manifest.files, MANIFEST_FILE]
    names += [name for name in (MANIFEST_DIGEST_FILE, MODEL_CARD_FILE) if os.path.lexists(folder / name)]
    return {name: _checked(folder, name).stat().st_size for name in sorted(names)}


def upload(
    folder: Path,
    manifest: Manifest,
    repository: str,
    *,
    private: bool = False,
    branch: str | None = None,
    message: str | None = None,
) -> str:
    """Upload a bundle whose digests have been checked, and return the address of the commit.

    The repository and the branch are made if they are absent; `private` concerns a new repository only. In the bundle's
    own folders, files of an earlier bundle that this one lacks are removed. Files that the hub has already are not sent
    again, so an interrupted upload is continued by the same call.

    Raises InputError for a name that is no hub id, a missing token, a refusal of the hub and a network that fails.
    """
    if not is_hub_id(repository):
        raise InputError(f"{repository}: expected a hub id, organisation/name")
    # Takes time to import, and only this command needs it.
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise InputError("publishing needs a token of the hub: log in with `hf auth login`, or set HF_TOKEN")
    files = publishable_files(folder, manifest)
    try:
        with _without_xet():
            return _commit(HfApi(), folder, files, repository, private, branch, message or _message(manifest))
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the HTTP library below the hub's, and its errors, differ by release
        raise InputError(f"{repository}: not published ({_reason(error)})") from None


@contextmanager
def _without_xet() -> Iterator[None]:
    """A context in which the hub's library uploads over Git LFS, even if `hf-xet` is installed.

    Errors of hf-xet carry no HTTP status, so that `_REFUSALS` could not explain them, and the hub of our tests speaks
    LFS only.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_DISABLE_XET
    constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before


def _commit(
    api: Any,
    folder: Path,
    files: Mapping[str, int],
    repository: str,
    private: bool,
    branch: str | None,
    message: str,
) -> str:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    # None: public, unless the organisation's own default is private.
    api.create_repo(repository, private=private or None, exist_ok=True)
    if branch is not None:
        api.create_branch(repository, branch=branch, exist_ok=True)
    own = {
        MANIFEST_DIGEST_FILE,
        *PRECISIONS,
        *(PurePosixPath(name).parts[0] for name in files if "/" in name),
    }
    there = api.list_repo_files(repository, revision=branch)
    stale = [name for name in there if PurePosixPath(name).parts[0] in own and name not in files]
    commit = api.create_commit(
        repository,
        [
            *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in files),
            # A compiled model of an earlier bundle would be loaded in place of the new package beside it, and its
            # manifest's digest would refuse the new manifest.
            *(CommitOperationDelete(path_in_repo=name) for name in stale),
        ],
        commit_message=message,
        revision=branch,
    )
    # The hub leaves out what a .gitignore in the repository names, and says nothing.
    if lost := sorted(files.keys() - set(api.list_repo_files(repository, revision=branch))):
        raise InputError(
            f"{repository}: the hub did not take {lost[0]} ({len(lost)} of {len(files)} files are missing); "
            "remove the repository's .gitignore and run the same command again"
        )
    return str(commit.commit_url)


def _checked(folder: Path, name: str) -> Path:
    """The path of a regular file below the bundle. The manifest may come from anyone, so its paths are not trusted."""
    path = PurePosixPath(name)
    plain = not path.is_absolute() and "\\" not in name and path.as_posix() == name
    if not plain or any(part.startswith(".") for part in path.parts):
        raise BundleError(
            f"{folder / MANIFEST_FILE}: {name!r} is not a path of a bundle's file; convert again"
        )
    for part in (path, *path.parents[:-1]):
        if (folder / part).is_symlink():
            raise BundleError(
                f"{folder / part}: links are not published; copy the bundle with `cp -RL` and publish the copy"
            )
    if not (folder / path).is_file():
        raise BundleError(f"{folder / path}: expected a file")
    return folder / path


def _message(manifest: Manifest) -> str:
    return f"{manifest.source.checkpoint} for Core ML: {', '.join(manifest.precisions)}"


def _reason(error: Exception) -> str:
    """What to do about an error of the hub's library, by the status of the response if there was one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    known = _REFUSALS.get(status) if isinstance(status, int) else None
    return f"{status}: {known}" if known else first_line(error)
