"""A small trained model that ships with the package, so that first tries need no training.

Made by `scripts/train_two_layer.py` with its default settings: see `README.md` next to the weights.
"""

from pathlib import Path

from interp.models import Model, load_model

FOLDER = Path(__file__).parent
"""The model as Hugging Face keeps models, for `interp.load_model`."""


def load_learned() -> Model:
    """The trained two-layer model: previous-token heads in layer 0, induction heads in layer 1.

    It takes ids: 0 is BOS, all others are ordinary tokens. There is no tokenizer.
    """
    return load_model(FOLDER)
