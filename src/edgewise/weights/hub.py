"""Published UMA checkpoints, through huggingface_hub with the user's own cache and token."""

from __future__ import annotations

from pathlib import Path

from edgewise.errors import ModelAccessError, ModelNotFoundError

REPOSITORY = "facebook/UMA"
FOLDER = "checkpoints"
FILES = {
    "uma-s-1p1": "uma-s-1p1.pt",
    "uma-s-1p2": "uma-s-1p2.pt",
    "uma-s-1p2p1": "uma-s-1p2p1.pt",
    "uma-m-1p1": "uma-m-1p1.pt",
    "uma-s-1p2p1-ft-d4rev": "uma-s-1p2p1-ft-d4rev.pt",
    "uma-s-1p2p1-ft-r2scan": "uma-s-1p2p1-ft-r2scan.pt",
}


def published_names() -> tuple[str, ...]:
    """Return the names of published models."""
    return tuple(FILES)


def download(name: str, revision: str | None = None) -> Path:
    """Return the file of a published model, downloaded if the user's cache does not hold it.

    Args:
        name: One of `published_names`.
        revision: Branch, tag or commit; None takes the newest.

    Raises:
        ModelNotFoundError: The repository does not have the revision or the file.
        ModelAccessError: The model is gated, or out of reach; three lines say what to do.
    """
    import huggingface_hub
    from huggingface_hub import errors

    page = f"https://huggingface.co/{REPOSITORY}"
    offline_way = f'3. or pass the path of a file that you already have: edgewise.load("{FILES[name]}")'
    try:
        return Path(huggingface_hub.hf_hub_download(REPOSITORY, FILES[name], subfolder=FOLDER, revision=revision))
    except (errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        message = f"{page} has no {FOLDER}/{FILES[name]} in revision {revision or 'main'}; see {page}/tree/main"
        raise ModelNotFoundError(message) from error
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        message = (
            f"1. {name} is gated: accept its licence at {page} with your Hugging Face account\n"
            f"2. then run `hf auth login` with a token of that account and load it again\n{offline_way}"
        )
        raise ModelAccessError(message) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        message = (
            f"1. {name} is not in your Hugging Face cache and cannot be downloaded (offline, or HF_HUB_OFFLINE is set)\n"
            f"2. with a connection, run `hf download {REPOSITORY} {FOLDER}/{FILES[name]}` once\n{offline_way}"
        )
        raise ModelAccessError(message) from error
    # `errors.HTTPError` is the base of the library's transport, whichever that is; its time-outs are no OSError.
    except (errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
        message = (
            f"1. {name} could not be downloaded: {str(error).splitlines()[0] if str(error) else type(error).__name__}\n"
            f"2. check the connection and {page}, then load it again; finished parts are kept\n{offline_way}"
        )
        raise ModelAccessError(message) from error
