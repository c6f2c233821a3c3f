"""Small random models and a tokenizer for them, made on the spot."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import interp

SIZES: dict[str, Any] = {"vocab_size": 200, "max_position_embeddings": 64}
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
GROUPED: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "head_dim": 8,
}

MIXED = ["sliding_attention", "full_attention"]

CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, n_positions=64, vocab_size=200
    ),
    "neox": lambda: transformers.GPTNeoXConfig(**SIZES, **SMALL, intermediate_size=64),
    "llama": lambda: transformers.LlamaConfig(**SIZES, **GROUPED),
    "mistral": lambda: transformers.MistralConfig(**SIZES, **GROUPED, sliding_window=4),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, **GROUPED, sliding_window=4),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, **{**GROUPED, "num_key_value_heads": 1}, sliding_window=4, layer_types=MIXED
    ),
    "gptoss": lambda: transformers.GptOssConfig(
        **SIZES, **GROUPED, num_local_experts=4, sliding_window=4
    ),
    "opt": lambda: transformers.OPTConfig(**SIZES, **SMALL, ffn_dim=64, word_embed_proj_dim=32),
    "phi": lambda: transformers.PhiConfig(**SIZES, **SMALL, intermediate_size=64),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, **GROUPED),
    "bloom": lambda: transformers.BloomConfig(n_layer=2, n_head=4, hidden_size=32, vocab_size=200),
    "neo": lambda: transformers.GPTNeoConfig(
        **SIZES,
        num_layers=2,
        num_heads=4,
        hidden_size=32,
        window_size=4,
        attention_types=[[["global", "local"], 1]],
    ),
}
"""Families that most tests go through."""

HYBRID: dict[str, Any] = {**GROUPED, "num_hidden_layers": 4}
del HYBRID["head_dim"]  # Not all of them know it.
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
}

FURTHER = {
    "gptj": lambda: transformers.GPTJConfig(
        n_layer=2, n_head=4, n_embd=32, n_positions=64, vocab_size=200, rotary_dim=4
    ),
    "mpt": lambda: transformers.MptConfig(
        n_layers=2, n_heads=4, d_model=32, max_seq_len=64, vocab_size=200
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, **GROUPED),
    "llama4": lambda: transformers.Llama4TextConfig(
        **SIZES,
        **GROUPED,
        num_local_experts=2,
        intermediate_size_mlp=64,
        attention_chunk_size=8,
        layer_types=["chunked_attention", "full_attention"],
    ),
    "deepseek2": lambda: transformers.DeepseekV2Config(
        **SIZES,
        **SMALL,
        **EXPERTS,
        **LATENT,
        intermediate_size=64,
        num_key_value_heads=4,
        v_head_dim=6,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
    ),
    "falcon": lambda: transformers.FalconConfig(**SIZES, **SMALL),
    "jamba": lambda: transformers.JambaConfig(
        **SIZES,
        **HYBRID,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "lfm2": lambda: transformers.Lfm2Config(
        **SIZES,
        **HYBRID,
        layer_types=["conv", "full_attention"] * 2,
    ),
    "granite": lambda: transformers.GraniteMoeHybridConfig(
        **SIZES,
        **HYBRID,
        shared_intermediate_size=64,
        num_local_experts=0,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=4,
        layer_types=["mamba", "attention"] * 2,
    ),
    "qwen3next": lambda: transformers.Qwen3NextConfig(
        **SIZES,
        **HYBRID,
        **EXPERTS,
        head_dim=8,
        num_experts=4,
        shared_expert_intermediate_size=32,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
}
"""More families; in the last four every other layer, from the first on, has no attention."""


def named(name: str, **settings: object) -> Callable[[], transformers.PreTrainedConfig]:
    """Makes the settings of a family from its name in transformers."""
    return lambda: getattr(transformers, f"{name}Config")(**SIZES, **settings)


LATER = {
    "olmo2": named("Olmo2", **GROUPED),
    "olmo3": named("Olmo3", **GROUPED, sliding_window=4, layer_types=MIXED),
    "cohere2": named("Cohere2", **GROUPED, sliding_window=4, layer_types=MIXED),
    "granite3": named(
        "Granite", **GROUPED, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0
    ),
    "phi3": named("Phi3", **GROUPED, pad_token_id=0),
    "stablelm": named("StableLm", **GROUPED, qk_layernorm=True, use_parallel_residual=True),
    "smollm3": named("SmolLM3", **GROUPED, no_rope_layer_interval=2),
    "glm4": named("Glm4", **GROUPED, pad_token_id=0),
    "mixtral": named("Mixtral", **GROUPED, num_local_experts=4),
    "qwen2moe": named(
        "Qwen2Moe", **GROUPED, **EXPERTS, num_experts=4, shared_expert_intermediate_size=32
    ),
    "qwen3moe": named("Qwen3Moe", **GROUPED, **EXPERTS, num_experts=4),
    "gemma3n": named(
        "Gemma3nText",
        **{**GROUPED, "num_hidden_layers": 4},
        sliding_window=4,
        layer_types=MIXED * 2,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=200,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
    ),
    "helium": named("Helium", **GROUPED),
    "persimmon": named("Persimmon", **SMALL, intermediate_size=64),
    "biogpt": named("BioGpt", **SMALL, intermediate_size=64),
    "diffllama": named("DiffLlama", **GROUPED),
    "minicpm3": named(
        "MiniCPM3", **SMALL, **LATENT, intermediate_size=64, num_key_value_heads=4, v_head_dim=8
    ),
    "recurrentgemma": named(
        "RecurrentGemma",
        **HYBRID,
        lru_width=32,
        attention_window_size=4,
        block_types=["recurrent", "attention"],
    ),
    "xglm": named(
        "XGLM", num_layers=2, attention_heads=4, d_model=32, ffn_dim=64, scale_embedding=False
    ),
    "gpt": lambda: transformers.OpenAIGPTConfig(
        n_layer=2, n_head=4, n_embd=32, n_positions=64, vocab_size=200
    ),
    "ctrl": lambda: transformers.CTRLConfig(
        n_layer=2, n_head=4, n_embd=32, dff=64, n_positions=64, vocab_size=200
    ),
    "nemotronh": named(
        "NemotronH",
        **HYBRID,
        head_dim=8,
        layers_block_type=["mamba", "attention", "mlp", "attention"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=4,
        n_groups=1,
        chunk_size=8,
        use_mamba_kernels=False,
    ),
}
"""Families whose rows of the table are measured before a release."""

BART: tuple[tuple[str, Any], ...] = (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))

AROUND = {
    "bert": lambda: transformers.BertConfig(**SIZES, **SMALL, intermediate_size=64),
    "roberta": lambda: transformers.RobertaConfig(
        **SIZES, **SMALL, intermediate_size=64, pad_token_id=1
    ),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZES,
        **SMALL,
        intermediate_size=64,
        **{"global_attn_every_n_layers": 2, "local_attention": 8},
        **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 1),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    ),
    "t5": lambda: transformers.T5Config(
        vocab_size=200, num_layers=2, num_heads=4, d_model=32, d_kv=8, d_ff=64
    ),
    "bart": lambda: transformers.BartConfig(
        **SIZES,
        d_model=32,
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in BART},
    ),
}
"""Not causal: their attention is what transformers returns."""


ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def tiny(family: str, **changes: object) -> Any:
    """A small random model whose attention is far from uniform, in evaluation mode."""
    config = {**CONFIGS, **FURTHER, **LATER, **AROUND}[family]()
    if family not in AROUND:
        return made(config, **{**ENDS, **changes})
    masked = family.endswith("bert") or family == "roberta"
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForSeq2SeqLM
    return made(config, kind, **changes)


def made(
    config: transformers.PreTrainedConfig,
    kind: Any = transformers.AutoModelForCausalLM,
    **changes: object,
) -> Any:
    """As `tiny`, from any settings."""
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind.from_config(config)
    return scaled(model)


def scaled(model: transformers.PreTrainedModel) -> Any:
    """The model with weights so large that attention is far from uniform."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight *= 15
    return model.eval()


def words_tokenizer(bos: str | None = "<s>") -> transformers.PreTrainedTokenizerBase:
    """One token a word: w3 ... w199 are ids 3 to 199, other words are id 0."""
    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, 200))]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token="</s>", unk_token="<unk>"
    )


CHAT = "{% for m in messages %}<s> w100 w101 {{ m.role }} {{ m.content }} </s> {% endfor %}"


def chat_model(template: str | None = CHAT) -> interp.Model:
    """A tiny Llama whose tokenizer writes messages as `template` says."""
    tokenizer = words_tokenizer()
    tokenizer.chat_template = template
    return interp.load_model(tiny("llama"), tokenizer)


class Marker:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")
