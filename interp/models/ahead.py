"""What is known of a model before its weights are read."""

import os

import transformers

from interp.models.load import DEFAULT, FULL_NAME, as_path
from interp.models.settings import check_settings
from interp.models.switches import quiet


def name_of(model: str | os.PathLike[str]) -> str:
    """What the model that `load_model` opens by this name will be called.

    Raises:
        InputError: If it is a name that no model can have.
    """
    given, path = os.fspath(model), as_path(model)
    if given == DEFAULT:
        return FULL_NAME
    if path.is_file():
        return path.name
    return path.resolve().name if path.is_dir() else given


def context_of(model: str | os.PathLike[str]) -> int | None:
    """The longest prompt that a model in a folder takes; None if only loading it will tell.

    Raises:
        InputError: As `name_of`.
    """
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
        return None  # Settings that cannot be read are refused, with the reason, by loading.
