"""Models, prompts and heads in words for a figure."""

from typing import Any

import torch

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import kind_of, kinds_of
from interp.kinds.targets import NONE, earlier_copies
from interp.scan.table import HeadScan
from interp.show.about import early_kinds, probe_of, scored_over
from interp.show.figures.page import pooled
from interp.show.figures.texts import ending, legible
from interp.show.prompt import Prompt, Text


def model_name(scan: HeadScan) -> str:
    """The model's name; of a long one the end."""
    return ending(str(scan.made_by.get("model", "attention patterns")), 4.2)


def what_was_run(scan: HeadScan) -> str:
    """The probe that the scores come from, in words."""
    probe, early = probe_of(scan), early_kinds(scan)
    if probe is None:
        return "Labels of attention patterns from outside: there is no record of the model's run."
    bos = "" if scan.made_by.get("bos") is None else "BOS, then "
    return (
        f"{probe['rows']} prompts of {probe['length']} tokens: {bos}random tokens that repeat"
        f" every {min(probe['periods'])} to {max(probe['periods'])} tokens"
        f" (seed {scan.made_by.get('seed')}, {scan.made_by.get('dtype')}). Scored from the first"
        f" repeat on{f', but {early} before it' if early else ''}."
    )


def head_name(scan: HeadScan | None, head: Head) -> str:
    """The head with the model's name, its label and that label's score, as far as known."""
    if scan is None:
        return str(head)
    rows = scan.frame.loc[scan.frame["name"] == str(head)].to_dict("records")
    if not rows:
        raise InputError(f"scan must hold {head}, got {len(scan.frame)} heads without it")
    label = rows[0]["label"]
    kind = kind_of(label)
    score = f" (score {rows[0][kind.name]:.2f})" if kind and kind.label == label else ""
    return f"{model_name(scan)}: {head}, {label}{score}"


def about_score(scan: HeadScan | None, head: Head) -> str:
    """What the score of `head_name` is, in a sentence; empty if there is no score."""
    if scan is None or "score" not in head_name(scan, head):
        return ""
    return f" The score is the mean attention mass on the targets over {scored_over(scan)}."


def kind_of_head(scan: HeadScan | None, head: Head, prompt: Prompt) -> str | None:
    """The kind of the head's label; None if there is none, or its window is forced."""
    if scan is None or prompt.keys is not None:
        return None
    label = "".join(scan.frame.loc[scan.frame["name"] == str(head), "label"])
    kind = kind_of(label)
    if kind is None or label not in kind.scored_labels or kind.name not in kinds_of(prompt.causal):
        return None
    return kind.name


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
