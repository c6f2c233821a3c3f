"""Texts of figures: labels that the font can draw, and models, prompts and heads in words."""

import math
import re
from functools import lru_cache
from typing import Any

import torch
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path

from interp import text as plain
from interp.errors import InputError
from interp.heads import Head
from interp.kinds.builtin import kind_of, kinds_of
from interp.kinds.kind import Kind
from interp.kinds.targets import NONE, earlier_copies
from interp.scan.table import HeadScan
from interp.show.about import probe_of, scored_elsewhere, scored_over
from interp.show.figures.style import FONT, STYLE
from interp.show.prompt import Prompt, Text


def legible(text: str) -> str:
    r"""`text` as a label that the font can draw: `interp.text.visible`, then `drawable`.

    Example:
        >>> legible(" the"), legible("$x$"), legible("\U0010ffff")
        ('␣the', '$x$', 'U+10FFFF')
    """
    return drawable(plain.visible(text))


def drawable(label: str) -> str:
    """`label` with the number of each character that the font lacks."""
    glyphs = _glyphs()
    return "".join(c if ord(c) in glyphs else f"U+{ord(c):04X}" for c in label)


@lru_cache
def _glyphs() -> frozenset[int]:
    return frozenset(FT2Font(findfont(FONT)).get_charmap())


def prose(text: str) -> str:
    """`legible`, but a space stays a space: for names in running text."""
    return drawable(plain.prose(text))


@lru_cache(4096)
def inches(text: str, size: float) -> float:
    """Width of `text` in the font of the figures, at `size` points."""
    font = FontProperties(family=FONT, size=size)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def wrapped(text: str, width: float, size: float = STYLE["font.size"]) -> str:
    """Text in lines of at most `width` inches; a percent sign stays with its number."""
    lines: list[str] = []
    for part in text.split("\n"):
        line = ""
        for word in re.split(" (?!%)", part):
            longer = f"{line} {word}".lstrip(" ")
            if inches(longer, size) > width:
                lines += [line] * bool(line)
                while inches(word, size) > width:
                    fits = (
                        n for n in range(len(word) - 1, 0, -1) if inches(word[:n], size) <= width
                    )
                    lines.append(word[: (cut := next(fits, 1))])
                    word = word[cut:]
                longer = word
            line = longer
        lines.append(line)
    return "\n".join(lines)


def labels_of(text: Text, *, width: float, size: float) -> list[str]:
    """Each token as a label; a label wider than `width` inches is cut and ends in ….

    Different tokens whose labels are the same get their ids.
    """
    words = []
    for label in map(legible, text.texts):
        shown, dots = label, ""
        while inches(shown + dots, size) > width:
            shown, dots = shown[:200][:-1], "…"
        words.append(shown + dots)
    return plain.distinct(words, text.ids.tolist())


def model_name(scan: HeadScan) -> str:
    """The model's name; of a long one the end."""
    return ending(scan.made_by.get("model", "attention patterns"), 4.2)


def ending(name: str, width: float) -> str:
    """A name as text of a title; of one wider than `width` inches the end."""
    name = prose(name)
    name = name if len(name) < 200 else "…" + name[-199:]
    while inches(name, 10.0) > width:
        name = "…" + name[2:]
    return name


def what_was_run(scan: HeadScan) -> str:
    """The probe that the scores come from, in words."""
    probe, others = probe_of(scan), ", ".join(scored_elsewhere(scan))
    if probe is None:
        return "Labels of attention patterns from outside: there is no record of the model's run."
    bos = "" if scan.made_by.get("bos") is None else "BOS, then "
    return (
        f"{probe['rows']} prompts of {probe['length']} tokens: {bos}random tokens that repeat"
        f" every {min(probe['periods'])} to {max(probe['periods'])} tokens"
        f" (seed {scan.made_by.get('seed')}, {scan.made_by.get('dtype')}). Scored from the first"
        f" repeat on{f', but {others}' if others else ''}."
    )


def of_head(scan: HeadScan | None, head: Head, prompt: Prompt) -> tuple[str, str, str, Kind | None]:
    """The head with its model; its label and score; what that is; its kind, if it has targets."""
    if scan is None:
        return str(head), "", "", None
    rows = scan.frame.loc[scan.frame["name"] == str(head)].to_dict("records")
    if not rows:
        raise InputError(f"scan must hold {head}, got {len(scan.frame)} heads without it")
    label, about = rows[0]["label"], ""
    kind, words = kind_of(label, scan.kinds), label
    if kind and kind.label == label:
        words += f" {rows[0][kind.name]:.2f}"
        about = f" The score is the mean attention mass on the targets over {scored_over(scan)}."
    known = kinds_of(prompt.causal, scan.kinds) if prompt.keys is None else ()
    targeted = kind and label in kind.scored_labels and kind.name in known and kind.has_rule
    return f"{model_name(scan)}: {head}", words, about, kind if targeted else None


def in_words(prompt: Prompt, made_by: dict[str, Any]) -> str:
    """The prompt in words: how long, BOS or not, where it repeats, how it begins."""
    tokens, texts = prompt.text.ids, [prompt.text]
    words, bos = [size(prompt)], made_by.get("bos")
    if prompt.keys is not None:
        texts.append(prompt.keys)
        words.append(f"attending to {_counted(len(prompt.keys))} of another text")
    opening = int((tokens == bos).int().cumprod(0).sum()) if bos is not None else 0
    if "bos" in made_by:
        words.append(["no BOS", "BOS first", "BOS twice"][min(opening, 2)])
    body = tokens[opening:]
    copies = enumerate(earlier_copies(body[None])[0, :, 0].tolist())
    period = next((here - copy for here, copy in copies if copy != NONE), None)
    if period is None:
        words.append("no token repeats")
    elif torch.equal(body[period:], body[:-period]):
        words.append(f"then {period} tokens that repeat from position {opening + period} on")
    else:
        words.append("some tokens repeat")
    if added := len(prompt.templated):
        words.append(f"{_counted(added)} of the chat template")
    begins = " The other text begins: ".join(map(_begins, texts))
    return f"Prompt: {', '.join(words)}. It begins: {begins}"


def _begins(text: Text) -> str:
    labels = (legible(token) for token in text.texts[:10])
    # The dot stays on the line of the token before it.
    begins = "\u00a0· ".join(label if len(label) < 25 else label[:23] + "…" for label in labels)
    return f"{begins}{' …' if len(text) > 10 else ''}"


def size(prompt: Prompt) -> str:
    """The number of tokens in words, as `the first 1,024 of 3,000 tokens`."""
    shown, words = len(prompt.text), _counted(prompt.whole)
    if shown == prompt.whole:
        return words
    rest = "" if prompt.causal else ", whose attention to the others is not shown"
    return f"the first {shown:,} of {words}{rest}"


def _counted(tokens: int) -> str:
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


def pooled_note(prompt: Prompt, size: float) -> str:
    """A sentence for a panel of `size` inches that has no dot for each cell."""
    pool = pooled(prompt.longest, size)
    return f" Each dot is the largest weight of {pool} x {pool} cells." if pool > 1 else ""


def pooled(cells: int, side: float) -> int:
    """How many cells share a dot where so many lie along `side` inches."""
    return math.ceil(round(cells / (300 * side), 6))
