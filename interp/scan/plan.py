"""Which tokens a scan runs: repeated rows, natural text, and copies at growing distances."""

from typing import TYPE_CHECKING

import torch

from interp.errors import InputError
from interp.kinds import probes
from interp.scan.columns import AT_DISTANCE

if TYPE_CHECKING:
    from interp.models import Model

LENGTH = 129
"""Tokens in a probe's row, if the model's context allows: BOS and 128 more."""

SHORTEST = 32
"""Shortest distance between two copies; each next one is twice as long."""

AT_ONCE = 2048
"""Tokens that run at once, if a row is not longer."""


def row_length(model: "Model", length: int | None = None) -> int:
    """Tokens in a row: `length`, or if None 129 or the model's context if that is shorter.

    Raises:
        InputError: If the context is shorter than `length`.
    """
    length = min(LENGTH, model.n_ctx) if length is None else length
    if length > model.n_ctx:
        raise InputError(
            f"length must fit the model's context of {model.n_ctx} tokens, got {length}"
        )
    return length


def scan_probes(
    model: "Model", rows: int, seed: int, length: int, n_bos: int
) -> list[probes.Probe]:
    """Random rows that repeat, and natural text if the model has a tokenizer.

    A bidirectional model's rows also end with the token that closes its texts.

    Args:
        model: The model whose vocabulary and tokenizer are used.
        rows: Rows of random tokens; half as many of text.
        seed: Random seed.
        length: Tokens in a row, all BOS and the closing token included.
        n_bos: BOS tokens that open a row.
    """
    bos = model.bos if n_bos else None
    again = n_bos == 2 and bos is not None
    if again and length < probes.SHORTEST + 2:
        raise InputError(
            f"length must be at least {probes.SHORTEST + 2} tokens with two BOS, got {length}"
        )
    closing = model.closing if n_bos else None
    length -= again + (closing is not None)
    made = [probes.repeated(model.vocabulary, rows=rows, length=length, bos=bos, seed=seed)]
    if encoded := encoded_passages(model):
        # A row never joins two passages, so rows of text are as long as the shortest at most.
        shortest = min(map(len, encoded)) + (bos is not None)
        natural = probes.text(
            encoded, rows=max(1, rows // 2), length=min(length, shortest), bos=bos
        )
        made += [natural] if natural is not None else []
    if closing is not None:
        made = [probes.closed_by(probe, closing) for probe in made]
    return (
        [probes.opened_again(probe, bos) for probe in made] if again and bos is not None else made
    )


def encoded_passages(model: "Model") -> list[torch.Tensor]:
    """The toolkit's own texts in the model's tokens; none without a tokenizer.

    Raises:
        InputError: If the tokenizer belongs to another model.
    """
    if model.tokenizer is None:
        return []
    encoded = [
        torch.tensor(model.tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in probes.passages().values()
    ]
    if any(ids.max() > model.vocabulary.max() for ids in encoded):
        raise InputError(
            f"tokenizer must belong to the model, got one with ids beyond {model.name}'s"
        )
    return encoded


def far_probes(model: "Model", rows: int, seed: int, length: int, n_bos: int) -> list[probes.Probe]:
    """Two copies at distances of 32, 64, 128 ... tokens, as far as `length` allows."""
    made = []
    bos = model.bos if n_bos else None
    period, opening = SHORTEST, int(bos is not None)
    while 2 * period + opening <= length:
        probe = probes.repeated(
            model.vocabulary,
            rows=max(1, min(rows, AT_ONCE // (2 * period))),
            length=2 * period + opening,
            bos=bos,
            seed=seed,
            period=period,
        )
        far = {f"{AT_DISTANCE}{period}": probe.parts["repeated"]}
        made.append(probes.Probe(probe.tokens, far, probe.periods))
        period *= 2
    return made
