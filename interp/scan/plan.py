"""Which tokens a scan runs: repeated rows, natural text, and copies at growing distances."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from interp.errors import InputError
from interp.kinds import probes
from interp.kinds.kind import Kind
from interp.kinds.targets import NONE
from interp.scan.columns import AT_DISTANCE

if TYPE_CHECKING:
    from interp.models import Model

LENGTH = 129
"""Tokens in a probe's row, if the model's context allows: BOS and 128 more."""

SHORTEST = 32
"""Shortest distance between two copies; each next one is twice as long."""

KNOWN = 0.25
"""Least share of a passage's tokens that a tokenizer must know for it to be run."""

NO_TEXT = "natural text was not run: the tokenizer lacks the letters or words of the built-in texts"

AT_ONCE = 2048
"""Tokens that run at once, if a row is not longer."""


def row_length(model: "Model", length: int | None = None) -> int:
    """Tokens in a row: `length`, or if None 129 or the model's context if that is shorter."""
    length, most = min(LENGTH, model.n_ctx) if length is None else length, model.n_ctx
    if length > most:
        raise InputError(f"length must fit the model's context of {most} tokens, got {length}")
    return length


def scan_probes(
    model: "Model", rows: int, seed: int, length: int, n_bos: int, *, texts: bool = True
) -> list[probes.Probe]:
    """Random rows that repeat, and half as many of natural text if the model has a tokenizer.

    Without `texts` there is no natural text. Rows have `length` tokens, with `n_bos` BOS, and with
    the token that closes texts if the model is bidirectional.
    """
    bos = model.bos if n_bos else None
    again, least = n_bos == 2 and bos is not None, probes.SHORTEST + 2
    if again and length < least:
        raise InputError(f"length must be at least {least} tokens with two BOS, got {length}")
    closing = model.closing if n_bos else None
    length -= again + (closing is not None)
    made = [probes.repeated(model.vocabulary, rows=rows, length=length, bos=bos, seed=seed)]
    natural = text_probe(model, max(1, rows // 2), length, bos) if texts else None
    made += [natural] if natural is not None else []
    return framed(model, made, n_bos)


def framed(model: "Model", made: list[probes.Probe], n_bos: int) -> list[probes.Probe]:
    """The rows with the token that closes a bidirectional model's texts, and a second BOS if asked.

    Without BOS neither is added.
    """
    if n_bos and model.closing is not None:
        made = [probes.extended(probe, model.closing, front=False) for probe in made]
    if n_bos == 2 and model.bos is not None:
        made = [probes.extended(probe, model.bos, front=True) for probe in made]
    return made


def kind_probes(
    model: "Model", plan: list[probes.Probe], kinds: Mapping[str, Kind], seed: int, *, quick: bool
) -> list[probes.Probe]:
    """`plan` with the prompts of the kinds that have their own, and with the nulls of text.

    Texts are left out for a model without a tokenizer, and nulls from a `quick` scan.
    """
    nulls = () if quick else {kind.null_part for kind in kinds.values()}
    own = []
    for kind in kinds.values():
        prompts = () if isinstance(kind.on, str) else kind.on
        if model.tokenizer is None and any(isinstance(prompt, str) for prompt in prompts):
            continue
        by_length: dict[int, list[torch.Tensor]] = {}
        for prompt in prompts:
            row = model.rows_of(prompt).tokens[0]
            by_length.setdefault(len(row), []).append(row)
        for rows in map(torch.stack, by_length.values()):
            own.append(probes.Probe(rows, {kind.part: torch.ones_like(rows, dtype=torch.bool)}))
    made = []
    for probe in [*plan, *own]:
        (part, *others) = probe.parts
        made += [probe] if others else probes.with_nulls(probe, part, nulls, seed=seed)
    return made


def text_probe(model: "Model", rows: int, length: int, bos: int | None) -> probes.Probe | None:
    """Rows of natural text, at most as long as the shortest passage; None without a tokenizer."""
    if not (encoded := encoded_passages(model)):
        return None
    # A row never joins two passages.
    shortest = min(map(len, encoded.values())) + (bos is not None)
    return probes.text(encoded.values(), rows=rows, length=min(length, shortest), bos=bos)


def encoded_passages(model: "Model") -> dict[str, torch.Tensor]:
    """The toolkit's own texts in the model's tokens, without those that it mostly cannot write.

    There are none without a tokenizer, or with one that lacks their letters.
    """
    if (encode := model.tokenizer) is None:
        return {}
    encoded = {}
    for name, text in probes.passages().items():
        try:
            ids = torch.tensor(encode(text, add_special_tokens=False)["input_ids"])
        except Exception:  # A tokenizer without an unknown token raises its own error.
            continue
        unknown = NONE if encode.unk_token_id is None else encode.unk_token_id
        if (ids != unknown).sum() >= KNOWN * len(ids) > 0:
            encoded[name] = ids
    if any(ids.max() > model.vocabulary.max() for ids in encoded.values()):
        raise InputError(f"tokenizer must belong to the model, got ids beyond {model.name}'s")
    return encoded


def far_probes(model: "Model", rows: int, seed: int, length: int, n_bos: int) -> list[probes.Probe]:
    """Two copies at distances of 32, 64, 128 ... tokens, as far as `length` allows."""
    made, period = [], SHORTEST
    bos = model.bos if n_bos else None
    while (size := 2 * period + (bos is not None)) <= length:
        number = max(1, min(rows, AT_ONCE // (2 * period)))
        options = {"rows": number, "length": size, "bos": bos, "seed": seed, "period": period}
        probe = probes.repeated(model.vocabulary, **options)
        far = {f"{AT_DISTANCE}{period}": probe.parts["repeated"]}
        made.append(probes.Probe(probe.tokens, far, probe.periods))
        period *= 2
    return made
