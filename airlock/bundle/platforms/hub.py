"""A repository of the Hugging Face Hub: a model card, the weights as safetensors, and the bundle that proves them.

    README.md           the model card: front matter that the Hub reads, then the bundle's own README.md
    model.safetensors   the weights, byte for byte those of the bundle
    bundle/             the bundle, whole and unchanged: `airlock verify bundle`

The Hub adds files of its own (.gitattributes), and nothing may be added to a bundle, which is why it has a folder to
itself. Figures in the front matter are those of the card, which are paid for, and nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from airlock.bundle.bundle import Bundle
from airlock.bundle.card import Card
from airlock.bundle.contents import README, SAFETENSORS
from airlock.bundle.packing import packing_of
from airlock.bundle.platforms.layout import WHOLE, Files, files_of, write_folder
from airlock.errors import ConfigError, OutputError, install_hint

KEYS = ("license", "license_name", "license_link")
_IMAGE_AXES = 3
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.]+")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
_ABOUT = (
    f"> A release made with Airlock. The bundle is in the folder `{WHOLE}`, unchanged: `airlock verify {WHOLE}` checks "
    "it, and with `--signer` that it is the holder's. What stands beside that folder, this page and a copy of the "
    "weights, is under no signature. The page below is the bundle's own, and the file names on it are those in that "
    "folder.\n"
)


class Hub(Protocol):
    """What is used of `huggingface_hub.HfApi`."""

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> Any:
        """Make a repository, or find it there."""
        ...

    def list_repo_files(self, repo_id: str) -> list[str]:
        """The paths in it."""
        ...

    def create_commit(self, repo_id: str, operations: Any, *, commit_message: str) -> Any:
        """Add and remove files at once."""
        ...


def repository(bundle: Bundle, said: Mapping[str, object] | None = None) -> Files:
    """The files of the repository.

    Args:
        bundle: As it was verified.
        said: What the user says about the license: `license`, an identifier of the Hub such as "apache-2.0";
            `license_name` and `license_link` for another one.

    Raises:
        ConfigError: Something else is said.
        Refused: The bundle was not verified.
    """
    front = front_matter(bundle.card, said)
    files = files_of(bundle)
    body = files[f"{WHOLE}/{README}"].decode("utf-8").split("---\n", 2)[2]
    readme = f"---\n{front}---\n\n{_ABOUT}{body}"
    return {README: readme.encode(), SAFETENSORS: files[f"{WHOLE}/{SAFETENSORS}"], **files}


def write(out: Path, bundle: Bundle, said: Mapping[str, object] | None = None) -> list[Path]:
    """A new folder with the repository's files, for `git` or `hf upload`."""
    return write_folder(out, repository(bundle, said))


def push(
    bundle: Bundle,
    repo: str,
    said: Mapping[str, object] | None = None,
    *,
    private: bool = True,
    message: str | None = None,
    api: Hub | None = None,
) -> str:
    """Upload the repository's files in one commit; returns its address, or its name where the Hub says none.

    What an earlier release left in the bundle's folder there is removed by the same commit. Other files stay.

    Args:
        bundle: As it was verified.
        repo: OWNER/NAME; made if it is not there.
        said: As in `repository`.
        private: Whether a new repository is private; one that is there stays as it is.
        message: Of the commit.
        api: An HfApi with a token or an address of its own; the user's login if left out.

    Raises:
        ConfigError: `repo` is no such name, or huggingface_hub is not installed.
        OutputError: The Hub did not take it; then none of the files is there.
    """
    check_upload(repo)
    import huggingface_hub

    files = repository(bundle, said)
    hub: Hub = huggingface_hub.HfApi() if api is None else api
    told = message or f"Release {bundle.card.release_id[:12]} by Airlock"
    try:
        hub.create_repo(repo, repo_type="model", private=private, exist_ok=True)
        there = [name for name in hub.list_repo_files(repo) if name.startswith(f"{WHOLE}/") and name not in files]
        operations: list[Any] = [
            huggingface_hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
            for name, content in files.items()
        ]
        operations += [huggingface_hub.CommitOperationDelete(path_in_repo=name) for name in there]
        made = hub.create_commit(repo, operations, commit_message=told)
    except Exception as error:
        raise OutputError(
            f"the Hub to take an upload to {repo}",
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            "Files are sent in one commit, so none of them is there.",
            "Log in with `hf auth login`, and check the name and your rights.",
        ) from error
    return str(getattr(made, "commit_url", None) or repo)


def check_upload(repo: str) -> None:
    """Refuse an upload that cannot be made, before anything is verified or written for it.

    Raises:
        ConfigError: `repo` is no such name, or huggingface_hub is not installed.
    """
    if not _REPO.fullmatch(repo):
        raise ConfigError(
            "OWNER/NAME as the repository", f"'{repo[:100]}'", "It is one on the Hub, yours or your organisation's."
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError("the extra 'hub'", "no huggingface_hub", do=f"Install it: {install_hint('hub')}.")


# The front matter.


def front_matter(card: Card, said: Mapping[str, object] | None = None) -> str:
    """The metadata that the Hub reads, as YAML: one JSON value for each key, which YAML takes as it is."""
    kind = "image" if len(card.data.shape) == _IMAGE_AXES else "tabular" if card.data.vocabulary is None else "text"
    task = f"{kind}-classification" if card.data.target is None else f"{kind}-regression"
    task = "text-generation" if card.data.language else task
    table: dict[str, Any] = {
        **_license(said or {}),
        "library_name": "airlock",
        "pipeline_tag": task,
        "tags": ["differential-privacy", "airlock", f"guarantee-{card.guarantee.status}", *_tags(card)],
    }
    figures = _figures(card)
    if figures:
        name = _slug(card.data.name)
        result = {
            "task": {"type": task},
            "dataset": {"name": card.data.name, "type": name},
            "metrics": figures,
        }
        table["metrics"] = [one["type"] for one in figures]
        table["model-index"] = [{"name": f"{name}-{card.channel}-{card.method}", "results": [result]}]
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=True)}\n" for key, value in table.items())


def _tags(card: Card) -> tuple[str, ...]:
    return tuple(packing_of(card.artefact).tags)


def _figures(card: Card) -> list[dict[str, object]]:
    """The figures of the card that the Hub has names for, each with its interval in words."""
    if card.language is not None:
        one = card.language.figures.perplexity
        words = f"Perplexity (95% interval {one.low:,.4g} to {one.high:,.4g})"
        return [{"type": "perplexity", "name": words, "value": round(one.value, 4)}]
    if card.utility is None:
        return []
    known = card.utility.figures
    named = (("accuracy", "Accuracy", known.accuracy), ("balanced_accuracy", "Mean recall", known.balanced_accuracy))
    return [
        {
            "type": kind,
            "name": f"{words} (95% interval {one.low:.1%} to {one.high:.1%})",
            "value": round(one.value, 4),
        }
        for kind, words, one in named
        if one is not None
    ]


def _license(said: Mapping[str, object]) -> dict[str, str]:
    """What the user says about the license; "other" if nothing.

    Raises:
        ConfigError: Another key, or no identifier.
    """
    unknown = next((key for key in said if key not in KEYS), None)
    if unknown is not None:
        raise ConfigError(f"{', '.join(KEYS)} as what is said of a repository", f"'{unknown}'")
    texts = {key: str(value) for key, value in said.items()}
    license_id = texts.get("license", "other")
    if not _LICENSE.fullmatch(license_id):
        raise ConfigError(
            "an identifier of the Hub as license",
            f"'{license_id[:60]}'",
            "The Hub shows no other.",
            'Take one such as "apache-2.0", or "other" with license_name and license_link.',
        )
    if license_id != "other" and len(texts) > 1:
        raise ConfigError('license_name and license_link only where license is "other"', f"'{license_id}'")
    return {"license": license_id, **{key: texts[key] for key in KEYS[1:] if key in texts}}


def _slug(text: str) -> str:
    """A name as the Hub takes it: letters, digits, dots and hyphens."""
    return _NOT_IN_A_NAME.sub("-", text).strip("-.")[:90] or "own-data"
