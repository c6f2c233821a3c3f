"""`logit_attribution`: the logit of an answer as a sum over heads, source tokens and MLPs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.head_effects import HeadEffects, ids_as_text, row_of
from interp.effects.metrics import answer_id
from interp.effects.saved import Saved
from interp.errors import InputError, checked
from interp.heads import Head
from interp.kinds.mass import FromQK
from interp.models import Model, load_model
from interp.models.rows import rows_by_length
from interp.scan.record import Record
from interp.weights.direct import Readout, parts_of

_TOKENS = 1024
"""Tokens that run at once, if a prompt is not longer."""

_WHERE = ["prompt", "layer", "head", "source"]
_COLUMNS = ["prompt", "part", "layer", "head", "source", "effect"]


@dataclass(frozen=True, eq=False, repr=False)
class LogitAttribution(Saved):
    """The parts of the logits of answers, from `interp.logit_attribution`.

    Attributes:
        frame: Table as `to_frame` returns it.
        total: Table with a row for each prompt: `logit`, what the model gives, and `sum` of the
            parts.
        made_by: Model, prompts as token ids, answers, versions.
    """

    frame: pd.DataFrame
    total: pd.DataFrame
    made_by: dict[str, Any] = field(default_factory=dict)
    _indent = None

    def __repr__(self) -> str:
        made = {"model": "a model", "unit": "logit", **self.made_by}
        by_part = self.frame.pivot_table(columns="part", values="effect", aggfunc="sum")
        means = (by_part.iloc[0] / len(self.total)).to_dict()
        parts = ", ".join(f"{part} {mean:+.2f}" for part, mean in means.items())
        top = self.heads().strongest(3).to_dict("records")
        largest = ", ".join(f"{row['name']} {row['effect']:+.2f}" for row in top)
        return (
            f"LogitAttribution({made['model']}: {len(self.total)} prompts, {made['unit']}"
            f" {self.total['logit'].mean():+.2f} = {parts}; largest heads: {largest}; parts sum to"
            f" it within {self.error:.0e})"
        )

    @property
    def error(self) -> float:
        """Largest difference of a sum from its logit, as a share of the largest logit."""
        sums, logits = self.total[["sum", "logit"]].to_numpy().T
        return float(abs(sums - logits).max() / abs(logits).max())

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each part of each prompt's logit.

        Columns: `prompt`, its number; `part`, which is `head`, `mlp` (all that a layer adds
        otherwise), `attention bias`, `embedding` or `constant` (biases of norms and of the
        unembedding); `layer` and `head`; `source`, the number of the token whose values a head
        brings; `effect` in logits. -1 where a column does not apply.
        """
        return self.frame.copy()

    def heads(self, seed: int = 0) -> HeadEffects:
        """Each head's mean effect over the prompts, all sources together, with an interval."""
        of_heads = self.frame[self.frame["part"] == "head"]
        table = of_heads.pivot_table("effect", ["layer", "head"], "prompt", aggfunc="sum")
        rows = [row_of(Head(*index)) for index in table.index.tolist()]
        changes = torch.tensor(table.to_numpy(), dtype=torch.double)
        return HeadEffects.of(rows, changes, torch.ones_like(changes[0]), seed, self.made_by)

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        tables = {"parts": self.frame, "total": self.total}
        return {n: each.to_dict("list") for n, each in tables.items()} | {"made_by": self.made_by}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "LogitAttribution":
        """The result that `to_json` wrote."""
        return cls(
            pd.DataFrame(content["parts"]), pd.DataFrame(content["total"]), content["made_by"]
        )


@checked
def logit_attribution(
    model: Any,
    prompts: Any,
    answers: Sequence[str | int],
    wrong: Sequence[str | int] | None = None,
) -> LogitAttribution:
    """The logit of each prompt's answer, after its last token, as a sum of what heads and MLPs add.

    What the unembedding reads is a sum of parts, and with the scales of norms held at those of the
    run, the logit is a sum too (direct logit attribution: Elhage et al. 2021; nostalgebraist 2020).
    The part of a head is a sum over the tokens that it attends to, `A_qk v_k W_O`. These are
    direct effects: what a part does through later layers counts as theirs.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal.
        prompts: Prompts, as for `Model.to_tokens`.
        answers: Answer to each prompt: a single token, such as ` Mary`, or its id.
        wrong: Another answer to each prompt, whose logit is subtracted; without it, the mean logit
            of the vocabulary is.

    Returns:
        Effects in logits, before a cap (Gemma 2), for each prompt. They sum to `total`.

    Raises:
        InputError: If the model's attention cannot be streamed, or its parts do not sum to the
            logits.

    Example:
        >>> import torch
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> parts = interp.logit_attribution(toy, torch.tensor([[0, 5, 6, 7, 5]]), [6], wrong=[9])
        >>> best = parts.to_frame().sort_values("effect").tail(1)
        >>> best[["layer", "head", "source"]].values.tolist()  # From the 6 after the first 5.
        [[1, 5, 2]]
    """
    model = load_model(model)
    tokens = model.to_tokens(prompts)
    named = [answers] if wrong is None else [answers, wrong]
    for each in named:
        if len(each) != len(tokens):
            got = f"got {len(each)} for {len(tokens)} prompts"
            raise InputError(f"answers must be one for each prompt, {got}")
    ids = torch.tensor([[answer_id(model, answer) for answer in each] for each in named])
    readout = Readout(model)
    tables, logits = [], torch.zeros(len(tokens), dtype=torch.double)
    for (length,), group in rows_by_length(tokens).items():
        for rows in torch.tensor(group).split(max(1, _TOKENS // length)):
            parts, logits[rows] = _attributed(readout, tokens[rows, :length], ids[:, rows])
            tables.append(_table(model, parts, rows))
    frame = pd.concat(tables).sort_values("prompt", kind="stable", ignore_index=True)
    sums = np.bincount(frame["prompt"], frame["effect"])
    total = pd.DataFrame({"prompt": range(len(sums)), "logit": logits.numpy(), "sum": sums})
    made_by = Record.of_model(
        model,
        unit="logit" if wrong is None else "logit difference",
        what="direct effect",
        norms="scales held",
        prompts=ids_as_text(tokens),
        answers=ids.T.tolist(),
    )
    return LogitAttribution(frame, total, made_by)


def _attributed(
    readout: Readout, tokens: Int[Tensor, "batch pos"], ids: Int[Tensor, "answer batch"]
) -> tuple[dict[str, Tensor], Float[Tensor, " batch"]]:
    """Each part's effect on the first answer's logit minus the second's, and that difference."""
    tokens = tokens.to(readout.model.device)
    parts: dict[str, Tensor] = {}
    logit = torch.zeros(len(tokens), dtype=torch.double)
    for sign, answer in zip((1, -1), ids):
        layers: dict[int, FromQK] = {}
        answer = answer.to(tokens)[:, None].expand_as(tokens)
        run, found, logits = parts_of(readout, tokens, answer, layers.__setitem__)
        gradients = run.gradients(readout.towards(answer), [run.heads[i] for i in layers])
        by_source = (_by_source(*each) for each in zip(layers.values(), gradients, strict=True))
        for name, part in {
            "head": torch.stack([*by_source], 1),
            "mlp": found["mlp"][..., -1].T,
            "attention bias": found["attention_bias"][..., -1].T,
            "embedding": found["embedding"][:, -1],
            "constant": found["constant"][:, -1],
        }.items():
            parts[name] = parts.get(name, 0) + sign * part.double().cpu()
        logit += sign * logits[:, -1].double().cpu()
    return parts, logit


def _by_source(
    attention: FromQK, gradient: Float[Tensor, "batch pos head d_value"]
) -> Float[Tensor, "batch head key"]:
    """What the last query of each head brings from each key, along the gradient."""
    assert attention.v is not None  # A stream gives them.
    last = torch.full((len(gradient), 1), gradient.shape[1] - 1, device=gradient.device)
    kv = attention.v.shape[1]
    towards = rearrange(gradient[:, -1].float(), "b (kv g) d -> b kv g d", kv=kv)
    along = einsum(attention.v.float(), towards, "b kv k d, b kv g d -> b kv g k")
    return attention.rows(last)[:, :, 0] * along.flatten(1, 2)


def _table(model: Model, parts: dict[str, Tensor], prompts: Int[Tensor, " batch"]) -> pd.DataFrame:
    """The rows of some prompts: for each part, one for each of its numbers."""
    tables = []
    for name, part in parts.items():
        numbers = torch.cartesian_prod(*map(torch.arange, part.shape)).view(-1, part.dim())
        place = dict(zip(_WHERE, numbers.T.numpy()))
        place["prompt"] = prompts.numpy()[place["prompt"]]
        if name == "head":
            place["layer"] = np.array(model.attending)[place["layer"]]
        tables.append(pd.DataFrame({"part": name, **place, "effect": part.flatten().numpy()}))
    table = pd.concat(tables).fillna(-1).astype(dict.fromkeys(_WHERE, int))
    return pd.DataFrame(table, columns=pd.Index(_COLUMNS))
