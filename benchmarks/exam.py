"""Grade methods that find circuits on the models of `interp.trust.exam`, and on compiled programs.

Next to the exam's own methods is `attribution_patch` of TransformerLens, on edges, and next to its
models are programs in RASP that tracr compiles to weights (`pip install tracr-pypi`). Writes
exam.csv and the figure exam.png to the folder OUT.
"""

import math
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from torch import Tensor, nn
from tracr.compiler import compiling, lib
from tracr.rasp import rasp
from transformer_lens.tools.analysis import attribution_patching

import interp
from interp import command, files
from interp.heads import Head
from interp.show import figures
from interp.trust import exam

PREVIOUS = rasp.Select(rasp.indices, rasp.indices, lambda key, query: key == query - 1)

LETTERS, LENGTH, PAIRS = "abcdefghijkl", 13, 8
"""Vocabulary of the programs, tokens after BOS, and pairs of texts."""


def induction() -> rasp.SOp:
    """The token after the last token's earlier copy."""
    before = rasp.Aggregate(PREVIOUS, rasp.tokens).named("before")
    return rasp.Aggregate(rasp.Select(before, rasp.tokens, rasp.Comparison.EQ), rasp.tokens)


def two_back() -> rasp.SOp:
    """The token before the previous one, in two steps."""
    return rasp.Aggregate(PREVIOUS, rasp.Aggregate(PREVIOUS, rasp.tokens).named("before"))


PROGRAMS = {
    "induction": induction,
    "token before the previous": two_back,
    "share of a": lambda: lib.make_frac_prevs(rasp.tokens == "a"),
    "balance of a and b": lambda: lib.make_pair_balance(rasp.tokens, "a", "b"),
}


def lens(question: exam.Question) -> Tensor:
    """Edge attribution by TransformerLens; NaN where it refuses a model."""
    scores = dict.fromkeys(question.edges, 0.0)
    config = attribution_patching.EdgeAttributionConfig(granularity="edge")
    rows = zip(question.clean, question.corrupted, question.right, question.wrong, strict=True)
    for clean, corrupted, right, wrong in rows:

        def metric(logits: Tensor, right: int = right, wrong: int = wrong) -> Tensor:
            return logits[0, -1, right] - logits[0, -1, wrong]

        try:
            found = attribution_patching.attribution_patch(
                question.model.bridge, clean[None], corrupted[None], metric, config
            )
        except (ValueError, AttributeError) as error:
            command.show(f"TransformerLens refuses {question.name}: {error}")
            return torch.full((len(scores),), math.nan)
        for (source, target), score in found.edge_scores.items():
            scores[(_name(source), *_target(target))] += score / len(question.clean)
    return torch.tensor([*scores.values()])


def _name(node: Any) -> str:
    kinds = {
        "embed": "embedding",
        "logits": "logits",
        "attn_head_out": f"L{node.layer}H{node.head}",
    }
    return kinds.get(node.kind, f"L{node.layer} MLP")


def _target(node: Any) -> tuple[str, str]:
    if node.kind in ("q_input", "k_input", "v_input"):
        return f"L{node.layer}H{node.head}", node.kind[0]
    return _name(node), ""


def compiled(name: str) -> exam.Question:
    """A program as a GPT-2 without norms, with texts on which it gives different answers."""
    program = PROGRAMS[name]().named("answer")
    made = compiling.compile_rasp_to_model(program, {*LETTERS}, LENGTH, causal=True)
    answers = [i for i, label in enumerate(made.residual_labels) if label.startswith("answer")]
    plain = _gpt2(made, answers)
    values = getattr(made.output_encoder, "encoding_map", None)
    ids, generator = made.input_encoder.encoding_map, torch.Generator().manual_seed(0)
    rows: list[tuple[float, int, list[int]]] = []
    while len(rows) < 2 * PAIRS:
        if name == "induction":  # The last token has one earlier copy.
            drawn = torch.randperm(len(LETTERS), generator=generator)[:8]
            drawn = torch.cat([drawn, drawn[: LENGTH - 8]])
        else:
            drawn = torch.randint(4, (LENGTH,), generator=generator)
        text = ["compiler_bos", *(LETTERS[i] for i in drawn)]
        tokens = [ids[token] for token in text]
        theirs = made.apply(text).decoded[-1]
        given = plain(torch.tensor([tokens])).logits[0, -1, 1 : len(answers) + 1]
        answer = values[theirs] if values else 0
        if given.argmax() != answer if values else abs(given[0] - theirs) > 1e-3:
            raise AssertionError(f"{name} must give {theirs} for {text}, got {given}")
        row = float(answer if values else theirs), answer + 1, tokens
        if len(rows) % 2 == 0 or row[0] != rows[-1][0]:
            rows.append(row)
    pairs = [sorted(pair, reverse=True) for pair in zip(rows[::2], rows[1::2], strict=True)]
    (_, right, clean), (_, wrong, corrupted) = (zip(*some) for some in zip(*pairs))
    clean, corrupted = torch.tensor(clean), torch.tensor(corrupted)
    if not values:
        wrong = (2,) * PAIRS  # Its logit is 0, so that the metric is the number.
    model = interp.load_model(plain)
    question = exam.Question(
        f"compiled, {name}", "compiled", model, clean, corrupted, right, wrong, frozenset()
    )
    return replace(question, truth=_wired(question))


def _gpt2(made: Any, answers: list[int]) -> Any:
    """The weights of a compiled program as a GPT-2 without norms; id 1 is the first answer."""
    settings, width = made.model_config, len(made.residual_labels)
    heads, size = settings.num_heads, settings.key_size
    wide = max(size, -(-width // heads))
    config = transformers.GPT2Config(
        vocab_size=max(len(made.input_encoder.encoding_map), len(answers) + 1, 3),
        n_positions=LENGTH + 1,
        n_embd=heads * wide,
        n_layer=settings.num_layers,
        n_head=heads,
        n_inner=settings.mlp_hidden_size,
        activation_function="relu",
        tie_word_embeddings=False,
    )
    plain = transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)
    parts = {
        f"{module}/{name}": torch.tensor(W.__array__())
        for module, part in made.params.items()
        for name, W in part.items()
    }
    for weight in plain.parameters():
        weight.zero_()

    def put(weight: Tensor, name: str, split: int | None = None, factor: float = 1.0) -> None:
        """Set a weight that may be wider, and whose heads are, along dimension `split`."""
        W = parts[name] * factor
        if split is not None:
            weight, W = weight.unflatten(split, (heads, wide)), W.unflatten(split, (heads, size))
        weight[tuple(map(slice, W.shape))] = W

    body = plain.transformer
    put(body.wte.weight, "token_embed/embeddings")
    put(body.wpe.weight, "pos_embed/embeddings")
    plain.lm_head.weight[torch.arange(len(answers)) + 1, answers] = 1
    for i, block in enumerate(body.h):
        block.ln_1, block.ln_2 = nn.Identity(), nn.Identity()
        layer, attention = f"transformer/layer_{i}", block.attn
        for j, part in enumerate(("query", "key", "value")):
            at = slice(j * heads * wide, (j + 1) * heads * wide)
            factor = math.sqrt(wide / size) if part == "query" else 1.0  # Of GPT-2's scale.
            put(attention.c_attn.weight[:, at], f"{layer}/attn/{part}/w", 1, factor)
            put(attention.c_attn.bias[at], f"{layer}/attn/{part}/b", 0, factor)
        put(attention.c_proj.weight, f"{layer}/attn/linear/w", 0)
        put(attention.c_proj.bias, f"{layer}/attn/linear/b")
        for ours, theirs in (("c_fc", "linear_1"), ("c_proj", "linear_2")):
            put(getattr(block.mlp, ours).weight, f"{layer}/mlp/{theirs}/w")
            put(getattr(block.mlp, ours).bias, f"{layer}/mlp/{theirs}/b")
    body.ln_f = nn.Identity()
    return plain


def _wired(question: exam.Question) -> frozenset[exam.Edge]:
    """The edges by which a difference between the prompts gets from the embedding to the logits.

    Each target has weights other than 0 for what differs in its source.
    """
    wiring, plain = question.pairs.wiring, question.model.plain
    clean, corrupted = (
        wiring.run(tokens).outputs for tokens in (question.clean, question.corrupted)
    )
    assert clean is not None
    assert corrupted is not None
    differ = torch.zeros_like(wiring.edges)
    for at, (target, path) in enumerate(wiring.targets):
        change = clean - corrupted
        if target == "logits":
            weight, change = plain.lm_head.weight.mT, change[:, :, -1:]
        elif path:
            layer, head = Head.parse(target)
            c_attn = plain.transformer.h[layer].attn.c_attn.weight
            weight = c_attn.unflatten(1, (3, question.model.n_heads, -1))[
                :, "qkv".index(path), head
            ]
        else:
            weight = plain.transformer.h[int(target[1:].split()[0])].mlp.c_fc.weight
        differ[:, at] = (change @ weight).abs().amax((1, 2, 3)) > 1e-4
    wired = wiring.connected(differ & wiring.edges)[wiring.edges]
    return frozenset(
        edge for edge, true in zip(question.edges, wired.tolist(), strict=True) if true
    )


def main(
    out: Annotated[Path, typer.Option(help="Folder for exam.csv and the figure.")] = Path(
        "figures"
    ),
) -> None:
    questions = chain(exam.all_questions(), map(compiled, PROGRAMS))
    with files.staged(out) as scratch:
        table = exam.exam(questions, {**exam.METHODS, "TransformerLens": lens})
        table.round(4).to_csv(scratch / "exam.csv", index=False)
        figures.save_figure(figures.exam_scores(table), scratch / "exam.png")
    typer.echo(table.groupby("method")[["auroc", "average_precision"]].median().to_string())


if __name__ == "__main__":
    command.run(main)
