"""What is known of a model before its weights are read."""

import os
from pathlib import Path

import transformers

from interp.models.load import DEFAULT, FULL_NAME
from interp.models.settings import check_settings
from interp.models.switches import quiet


def name_of(model: str | os.PathLike[str]) -> str:
    """What the model that `load_model` opens by this name will be called."""
    given, path = os.fspath(model), _path(model)
    if given == DEFAULT:
        return FULL_NAME
    if path.is_file():
        return path.name
    return path.resolve().name if path.is_dir() else given


def context_of(model: str | os.PathLike[str]) -> int | None:
    """The longest prompt that a model in a folder takes; None if only loading it will tell."""
    path = _path(model)
    if not (path / "config.json").is_file():
        return None
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        check_settings(config.to_dict())
        return getattr(config.get_text_config(), "max_position_embeddings", None)
    except Exception:
        return None  # Settings that cannot be read are refused, with the reason, by loading.


def _path(model: str | os.PathLike[str]) -> Path:
    try:
        return Path(model).expanduser()
    except RuntimeError:  # Of a user who is not there: loading says so.
        return Path(model)
