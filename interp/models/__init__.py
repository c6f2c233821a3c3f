"""The one door to transformers and TransformerLens: from a name to a `Model`, run and hooked."""

from interp.models.load import load_model
from interp.models.made import assembled, attention_only, save
from interp.models.model import Model, attention_layers
from interp.models.switches import alone, attend_with, cheap_forward, evaluating

__all__ = [
    "Model",
    "alone",
    "assembled",
    "attend_with",
    "attention_layers",
    "attention_only",
    "cheap_forward",
    "evaluating",
    "load_model",
    "save",
]
