"""Small galleries to look at: planted heads, and texts that try to break out of the page."""

import torch
from encoders import CLS, SEP, bert_tokenizer, planted
from tiny_models import tiny

from interp.kinds.builtin import KINDS
from interp.kinds.targets import NONE
from interp.models import load_model
from interp.models.hooks import AttentionPatterns, attention_patterns
from interp.patterns.classify import classify_heads
from interp.patterns.read import read_patterns
from interp.scan.table import HeadScan
from interp.show.pages.gallery import gallery

PERIOD = 12
TOKENS = torch.tensor([0, *range(10, 10 + PERIOD), *range(10, 10 + PERIOD)])
PLAN = [
    ["previous_token", "sink", "random"],
    ["induction", "duplicate_token", "random"],
    ["current_token", "induction", "sink"],
]
BREAKOUTS = [
    "</script><script>window.X=1</script>",
    "<b>",
    '"><img src=x onerror="window.X=1">',
    "&lt;",
    "<!--",
    "]]>",
    "${window.X=1}",
    "$title",
    "'",
    "\\",
]
ODD = ["", " ", "\n", "\n\n", "\t", "\r", "\x00", "\x01", "\u200b", "\u202e", "\u2028", "\ud800"]
ODD += ["the", " the", "東", "한", "é", "e\u0301", "🙂", "👩‍👩‍👧", "\u0627", "𓀀", "𓀁", "�"]


def pattern(kind, tokens=TOKENS, seed=0):
    """A head that attends to the kind's targets, a little everywhere, and else to the start."""
    length = len(tokens)
    if kind == "random":
        generator = torch.Generator().manual_seed(seed)
        scores = 2 * torch.randn(length, length, generator=generator)
        return scores.masked_fill(torch.ones(length, length).triu(1).bool(), -1e9).softmax(-1)
    keys = KINDS[kind](tokens[None])[0]
    sharp = torch.eye(length)[torch.where(keys == NONE, 0, keys)[:, 0]]
    even = torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None]
    return 0.9 * sharp + 0.1 * even


def patterns_of(plan=PLAN, tokens=TOKENS, texts=None):
    stack = torch.stack(
        [
            torch.stack([pattern(kind, tokens, seed=10 * i + j) for j, kind in enumerate(layer)])
            for i, layer in enumerate(plan)
        ]
    )
    patterns = stack[:, None].as_subclass(AttentionPatterns)
    patterns.tokens = tokens[None]
    patterns.learned_sinks = False
    patterns.layers = tuple(range(len(plan)))
    patterns.texts = [texts or [f" t{token}" for token in tokens.tolist()]]
    return patterns


def scan_of(patterns, model="planted"):
    return HeadScan.of(classify_heads(patterns), made_by={"model": model, "bos": 0})


def looking_ahead():
    """Heads of every kind that looks both ways, one for each, over two sentences."""
    planted_heads, tokens = planted()
    patterns = read_patterns(torch.stack([*planted_heads.values()]), tokens, causal=False)
    patterns.special = frozenset({CLS, SEP})
    patterns.texts = [[f" t{token}" for token in tokens.tolist()]]
    return patterns


def looking_across():
    """A random T5's attention to one text of another: 4 queries and 9 keys, and 9 of 4."""
    model = load_model(tiny("t5", decoder_start_token_id=0), bert_tokenizer())
    short, long = "w100 w101 w102", "w4 w5 w6 w7 w8 w9 w10"
    return [
        attention_patterns(model, read, stack="cross", decoder_inputs=written)
        for read, written in ((long, short), (short, f"{long} w11"))
    ]


def hostile():
    """A gallery all of whose texts try to be more than text."""
    texts = BREAKOUTS + ODD
    tokens = torch.arange(len(texts))
    patterns = patterns_of(tokens=tokens, texts=texts)
    scan = scan_of(patterns, model=BREAKOUTS[0])
    return gallery(scan, patterns, titles=[BREAKOUTS[2]], title=BREAKOUTS[0]), texts


def plain():
    patterns = patterns_of()
    return gallery(scan_of(patterns), patterns), patterns
