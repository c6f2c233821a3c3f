"""What callers set in the libraries: log levels, warnings, progress bars, where errors go."""

import logging
import sys
import warnings
from typing import Any

import transformers
from huggingface_hub import utils as hub


def settings_of_libraries() -> tuple[Any, ...]:
    names = ("transformers", "transformer_lens", "huggingface_hub")
    levels = [logging.getLogger(name).level for name in names]
    bars = transformers.utils.logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    return levels, list(warnings.filters), bars, sys.stderr
