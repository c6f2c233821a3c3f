"""What each attention head of a language model does.

Start with `load_model` and `scan_heads`, or, with attention patterns of your own,
`classify_heads`. Nothing is imported before it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interp.circuits.build import build_circuit
    from interp.circuits.compare import compare_circuits
    from interp.effects import verify
    from interp.effects.paths import path_effects
    from interp.errors import InputError
    from interp.heads import Head
    from interp.kinds.labels import HeadLabel
    from interp.kinds.scores import Thresholds
    from interp.models import Model, load_model
    from interp.models.hooks import attention_patterns
    from interp.patterns.classify import classify_heads
    from interp.patterns.definitions import scores_by_definition
    from interp.patterns.read import read_patterns
    from interp.patterns.tensor import AttentionPatterns
    from interp.scan.prompts import PromptScores, score_prompts
    from interp.scan.scan import scan_heads
    from interp.scan.table import HeadScan
    from interp.show.pages.gallery import gallery
    from interp.show.pages.page import Gallery
    from interp.trust.published import compare_with_published, published_heads
    from interp.weights.folded import composition_scores

__version__ = "0.1.0"

__all__ = [
    "AttentionPatterns",
    "Gallery",
    "Head",
    "HeadLabel",
    "HeadScan",
    "InputError",
    "Model",
    "PromptScores",
    "Thresholds",
    "attention_patterns",
    "build_circuit",
    "classify_heads",
    "compare_circuits",
    "compare_with_published",
    "composition_scores",
    "gallery",
    "load_model",
    "path_effects",
    "published_heads",
    "read_patterns",
    "scan_heads",
    "score_prompts",
    "scores_by_definition",
    "verify",
]

_HOME = {
    "AttentionPatterns": "patterns.tensor",
    "Gallery": "show.pages.page",
    "Head": "heads",
    "HeadLabel": "kinds.labels",
    "HeadScan": "scan.table",
    "InputError": "errors",
    "Model": "models",
    "PromptScores": "scan.prompts",
    "Thresholds": "kinds.scores",
    "attention_patterns": "models.hooks",
    "build_circuit": "circuits.build",
    "classify_heads": "patterns.classify",
    "compare_circuits": "circuits.compare",
    "compare_with_published": "trust.published",
    "composition_scores": "weights.folded",
    "gallery": "show.pages.gallery",
    "load_model": "models",
    "path_effects": "effects.paths",
    "published_heads": "trust.published",
    "read_patterns": "patterns.read",
    "scan_heads": "scan.scan",
    "score_prompts": "scan.prompts",
    "scores_by_definition": "patterns.definitions",
    "verify": "effects.verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
