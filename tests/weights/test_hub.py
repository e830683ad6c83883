"""Published models: what happens when they are gated, offline, or there; without any connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors

import edgewise
from edgewise.errors import ModelAccessError, ModelNotFoundError
from edgewise.weights import hub, read_checkpoint
from tests.cases import GOLDEN


def raising(error: Exception) -> Any:
    def download(*args: Any, **kwargs: Any) -> str:
        raise error

    return download


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://example.org"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.GatedRepoError("gated", response=response(403)), ["accept its licence", "hf auth login"]),
        (errors.RepositoryNotFoundError("missing", response=response(401)), ["hf auth login"]),
        (errors.LocalEntryNotFoundError("not cached"), ["HF_HUB_OFFLINE", "hf download"]),
        (errors.OfflineModeIsEnabled("offline"), ["HF_HUB_OFFLINE"]),
        (errors.HfHubHTTPError("server error", response=response(500)), ["server error", "check the connection"]),
        (ConnectionError("no route to host"), ["no route to host"]),
        (httpx2.ReadTimeout("timed out"), ["timed out", "finished parts are kept"]),
    ],
)
def test_failures_say_what_to_do_in_three_lines(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: list[str]
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(error))
    with pytest.raises(ModelAccessError) as caught:
        edgewise.load("uma-s-1p2p1", task="omat")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for word in [*words, "edgewise.load("]:
        assert word in str(caught.value)


def test_a_download_goes_through_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEWISE_CACHE", str(tmp_path))
    asked: list[Any] = []

    def download(*args: Any, **kwargs: Any) -> str:
        asked.append((args, kwargs))
        return str(GOLDEN / "plain.pt")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    potential = edgewise.load("uma-s-1p1")
    assert potential.name == "uma-s-1p1"
    assert asked == [(("facebook/UMA", "uma-s-1p1.pt"), {"subfolder": "checkpoints", "revision": None})]
    assert len(list(tmp_path.glob("uma-s-1p1-*.safetensors"))) == 1


def test_a_revision_is_passed_on_and_its_lack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = errors.RevisionNotFoundError("no such revision", response=response(404))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(missing))
    with pytest.raises(ModelNotFoundError, match="revision v9"):
        read_checkpoint("uma-s-1p1", revision="v9")


def test_every_published_name_has_a_file() -> None:
    assert "uma-s-1p2p1" in hub.published_names()
    assert all(hub.FILES[name].endswith(".pt") for name in hub.published_names())
