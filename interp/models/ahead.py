"""What is known about a model before its weights are read."""

import os

import transformers

from interp.models.families import check_settings
from interp.models.load import DEFAULT, FULL_NAME, as_path
from interp.models.switches import quiet


def name_of(model: str | os.PathLike[str]) -> str:
    """Name of the model that `load_model` opens for this argument."""
    given, path = os.fspath(model), as_path(model)
    if given == DEFAULT:
        return FULL_NAME
    if path.is_file():
        return path.name
    return path.resolve().name if path.is_dir() else given


def context_of(model: str | os.PathLike[str]) -> int | None:
    """Longest prompt of a model in a folder, in tokens; None if only loading shows it."""
    path = as_path(model)
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
        return None  # Loading refuses such settings, with the reason.
