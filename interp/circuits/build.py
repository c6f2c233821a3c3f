"""`build_circuit`: a hand-built induction circuit as a model like any other."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field

from interp.circuits.absolute import Absolute
from interp.circuits.built import MOST_SHARP, Layer
from interp.circuits.rotary import Rotary
from interp.errors import InputError, Seed, Whole, checked
from interp.kinds.probes import passages
from interp.models import Model, assembled

BITS = (5, 6, 7, 8)
"""Sizes of the code words that are tried: they have 2^bits - 1 numbers, the stream 8 * 2^bits."""

Share = Annotated[float, Field(strict=True, ge=0, le=1)]


@checked
def build_circuit(
    positions: Annotated[Literal["absolute", "rotary"], Field()],
    vocabulary: Annotated[Whole, Field(ge=8, le=4 ** BITS[-1] // 2 + 1)],
    length: Annotated[Whole, Field(ge=8, le=4096)],
    *,
    sharpness: Annotated[float, Field(strict=True, gt=0, le=10 * MOST_SHARP)] | None = None,
    bos: Annotated[Whole, Field(ge=0)] = 0,
    kv_heads: Annotated[Literal[1, 2, 4], Field()] | None = None,
    previous: bool = True,
    match: bool = True,
    blur: Share = 0.0,
    wrong_copy: Share = 0.0,
    seed: Seed = 0,
) -> Model:
    """Build a two-layer induction circuit by hand: right by construction, or wrong as asked.

    Head `L0H3` (rotary: `L0H1`) attends to the previous token and writes it to the current
    position; `L1H5` (rotary: `L1H2`) looks for the position whose previous token is the current
    token, and copies the token there. Without a match, and in all other heads, attention goes to
    BOS, and every logit is 0. A text without BOS has no sink. The derivation is in
    `interp.circuits.built`.

    Args:
        positions: `absolute` (a `GPT2LMHeadModel`) or `rotary` (a `LlamaForCausalLM`).
        vocabulary: Number of ids, BOS among them, from 8 to 32,769.
        length: Number of positions, BOS among them, from 8 to 4,096.
        sharpness: Score, in nats before the softmax, of the right key, in both heads; all others
            score less. If left out, the least at which every query puts 0.9999 of its attention
            on its targets: from 27 to about 90, by vocabulary and length. That is for float32;
            in bfloat16 the previous-token head keeps 0.98 of it at least, 0.999 on average.
        bos: Id of the sink.
        kv_heads: Key-value heads for the four heads of the rotary circuit; 2 if left out.
        previous: Whether there is a previous-token head.
        match: Whether the induction head matches; if not, it always attends to BOS.
        blur: Share of the previous-token head's attention that goes two tokens back.
        wrong_copy: Share of the tokens that are copied as another one, by the right attention.
        seed: Seed of the directions, the tokens' code words, and the idle heads' weights. The
            global generator is not used.

    Returns:
        A `Model`; `.plain` is the transformers model, `.tokenizer` has one token a word. The
        width is the least that holds vocabulary and length: 256 up to 513 ids, 512 up to 2,049,
        1,024 up to 8,193, then 2,048; a rotary circuit of some 3,000 positions needs 512 at least.

    Example:
        >>> toy = build_circuit("absolute", vocabulary=16, length=16)
        >>> toy.plain.generate(toy.to_tokens([[0, 5, 6, 7, 5]]), max_new_tokens=2)[0].tolist()
        [0, 5, 6, 7, 5, 6, 7]
    """
    if bos >= vocabulary:
        raise InputError(f"bos must be below the vocabulary of {vocabulary} ids, got {bos}")
    if kv_heads is not None and positions == "absolute":
        raise InputError(f"kv_heads must be left out with absolute positions, got {kv_heads}")
    if wrong_copy > 0 and round(wrong_copy * (vocabulary - 1)) < 2:
        least = f"0 or two tokens of {vocabulary - 1} at least"
        raise InputError(f"wrong_copy must be {least}, got {wrong_copy}")
    asked: dict[str, Any] = {"previous": previous, "match": match, "blur": blur}
    asked |= {"wrong_copy": wrong_copy, "seed": seed}
    plan, needed = smallest(positions, vocabulary, length, bos, kv_heads, **asked)
    sharpness = needed if sharpness is None else float(sharpness)
    return model_of(plan, plan.layers(sharpness), positions=positions, sharpness=sharpness, **asked)


def smallest(
    positions: str,
    vocabulary: int,
    length: int,
    bos: int = 0,
    kv_heads: int | None = None,
    **asked: Any,
) -> tuple[Absolute | Rotary, float]:
    """The plan of the least width that holds vocabulary and length, and the sharpness it needs."""
    kind = Absolute if positions == "absolute" else Rotary
    plans = (
        kind(bits, vocabulary, length, bos, kv_heads or kind.kv_heads, **asked)
        for bits in BITS
        if vocabulary - 1 <= 4**bits // 2
    )
    return next((plan, s) for plan in plans if (s := plan.needed()) is not None)


def model_of(plan: Absolute | Rotary, layers: Sequence[Layer], **made: Any) -> Model:
    """The model of a plan with the weights of its `layers`, edited or not; `made` is recorded."""
    heads = {"previous_token_head": plan.previous_head, "induction_head": plan.induction_head}
    record = {**made, **{name: str(head) for name, head in heads.items()}}
    settings = {**plan.settings(), "num_hidden_layers": len(layers), "hand_built": record}
    return assembled(
        plan.family,
        settings,
        plan.build(layers),
        bos=plan.bos,
        words=words(plan.vocabulary, plan.bos),
        name=f"hand-built-{made['positions']}",
    )


def words(vocabulary: int, bos: int) -> list[str]:
    """The text of each id: `<s>`, `<unk>`, then words of the project's texts, commonest first.

    After these, id 900 is `w900`.
    """
    found = re.findall(r"\w+|[^\w\s]+", " ".join(passages().values()))
    others = chain(["<unk>"], (word for word, _ in Counter(found).most_common()))
    return ["<s>" if i == bos else next(others, f"w{i}") for i in range(vocabulary)]
