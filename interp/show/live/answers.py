"""What the live page shows of a prompt, piece by piece, while the model runs."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from interp.effects.ablate import ablated, parsed_heads
from interp.effects.replaced import last_logits
from interp.errors import InputError
from interp.heads import Head
from interp.models import Model, attention_layers
from interp.models.hooks import run
from interp.patterns.classify import classify_heads
from interp.scan.table import HeadScan
from interp.show.pages.gallery import packed_prompt
from interp.show.pages.packing import PackedPrompt

MOST = 512
"""Most tokens of a prompt that is typed."""

_NEXT = 10
"""Next tokens that are shown."""


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid")
    role: str = Field(max_length=40)
    content: str = Field(max_length=20_000)


class Ask(BaseModel):
    """What a page asks for: a prompt or a chat, without some heads."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["run"]
    id: int = Field(ge=0, le=2**31)
    prompt: str | list[Message] = Field(max_length=20_000)
    without: list[str] = Field(default=[], max_length=4096)


class Stopped(Exception):
    """A newer prompt took the place of this one."""


@dataclass(frozen=True, eq=False)
class Answers:
    """A model with its scan; one prompt runs at a time."""

    model: Model
    scan: HeadScan
    lock: Any

    @classmethod
    def of(cls, model: Model, scan: HeadScan) -> "Answers":
        """Answers of `model`, which must be causal."""
        if model.direction != "causal":
            raise InputError(f"model must be causal for the live page, got {model.name}")
        return cls(model, scan, threading.Lock())

    def answer(
        self, ask: Ask, send: Callable[[dict[str, Any]], None], stopped: Callable[[], bool]
    ) -> PackedPrompt:
        """Run a prompt and `send` its tokens, each layer, its scores and the next tokens.

        Raises:
            InputError: If the prompt or a head is wrong.
            Stopped: Soon after `stopped()` is true.
        """
        with self.lock:
            return self._answer(ask, send, stopped)

    def _answer(
        self, ask: Ask, send: Callable[[dict[str, Any]], None], stopped: Callable[[], bool]
    ) -> PackedPrompt:
        if stopped():
            raise Stopped
        model = self.model
        known = [Head(i, h) for i in attention_layers(model, None) for h in range(model.n_heads)]
        without = parsed_heads("without", ask.without, known, model.name)
        given: Any = ask.prompt
        if isinstance(given, list):
            given = [message.model_dump() for message in given]
        elif model.tokenizer is None:
            given = [_ids(given)]
        rows = model.rows_of(given)
        if (length := rows.tokens.shape[1]) > MOST:
            raise InputError(f"prompt must have at most {MOST} tokens here, got {length}")
        prompt = packed_prompt(model, self.scan, rows, None)
        frame = self.scan.frame
        sinks = {Head.parse(name) for name in frame.loc[frame["label"] == "sink", "name"]}
        send({"type": "prompt", "prompt": prompt.to_json(())})
        layers: dict[int, Float[Tensor, "head query key"]] = {}

        def visit(layer: int, pattern: Float[Tensor, "batch head query key"]) -> None:
            if stopped():
                raise Stopped
            layers[layer] = pattern[0].cpu()
            prompt.add(layer, pattern[0], known)
            heads = [head for head in prompt.weights if head.layer == layer]
            weights = {str(head): prompt.weights[head] for head in heads}
            resting = {str(head): prompt.sinks[head] for head in heads if head in sinks}
            send({"type": "layer", "layer": layer, "weights": weights, "sinks": resting})

        whole = last_logits(model, rows.tokens)
        with ablated(model, without) if without else nullcontext():
            changed = last_logits(model, rows.tokens) if without else whole
            send({"type": "next", **self._next(whole[0], changed[0] if without else None)})
            run(model, rows.tokens, visit)
        labels = classify_heads(
            torch.stack([*layers.values()])[:, None],
            rows.tokens,
            special=model.special,
            layers=[*layers],
            kinds=[*self.scan.kinds.values()],
        )
        scores = {str(one.head): {k: round(v, 4) for k, v in one.scores.items()} for one in labels}
        send({"type": "scores", "scores": scores})
        return prompt

    def _next(
        self, whole: Float[Tensor, " id"], changed: Float[Tensor, " id"] | None
    ) -> dict[str, Any]:
        """The most probable next tokens of the model, and without the heads that were taken out."""

        def most(logits: Float[Tensor, " id"]) -> list[list[Any]]:
            shares, ids = logits.float().softmax(-1).topk(min(_NEXT, len(logits)))
            texts = self.model.texts_of(ids)
            return [[text, round(share, 4)] for text, share in zip(texts, shares.tolist())]

        return {"whole": most(whole), "without": None if changed is None else most(changed)}


def _ids(text: str) -> list[int]:
    """Token ids that were typed, for a model without a tokenizer."""
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isascii() and part.isdecimal() for part in parts):
        raise InputError("prompt must be token ids, as the model has no tokenizer")
    return [int(part[:18]) for part in parts]
