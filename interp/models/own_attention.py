"""Attention of families that do not use transformers' attention interface once, made to do so.

Each function below does what the forward pass of its family's attention module does, and calls
`attend` with queries, keys and values where the module would compute a pattern. `attend` makes its
own causal mask.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import InputError

Attend = Callable[..., tuple[Tensor, None]]
"""A function of transformers' attention interface, which returns heads' outputs and no pattern."""

Output = tuple[Tensor, None]


def own_forwards(model: nn.Module, attend: Attend) -> dict[nn.Module, Callable[..., Any]]:
    """For each attention module that is known here, a forward pass that calls `attend`.

    Modules on the interface are not among them, nor those whose forward pass somebody changed.
    """
    forwards = {}
    for module in model.modules():
        forward = type(module).forward
        name = f"{forward.__module__}.{getattr(forward, '__qualname__', '')}"
        if name in _FORWARDS and "forward" not in vars(module):
            forwards[module] = partial(_FORWARDS[name], module, attend)
    return forwards


def _bloom(
    module: Any, attend: Attend, x: Tensor, residual: Tensor, *, alibi: Tensor, **_: Any
) -> Output:
    if alibi.dtype.itemsize < 4:
        raise InputError(f"model must have an exact ALiBi bias, got {alibi.dtype}: use float32")
    q, k, v = module._reshape(module.query_key_value(x))
    slopes = alibi[: module.num_heads, 0, :2].diff().sum(-1)  # 0 of a single token.
    z = attend(module, q, k, v, None, scaling=module.inv_norm_factor, slopes=slopes)[0]
    return module.dense(z.flatten(2)) + residual, None


def _diff_llama(
    module: Any, attend: Attend, hidden_states: Tensor, *, position_embeddings: Any, **_: Any
) -> Output:
    from transformers.models.diffllama.modeling_diffllama import apply_rotary_pos_emb

    projections = module.q_proj, module.k_proj, module.v_proj
    q, k, v = (
        projection(hidden_states).unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
        for projection in projections
    )
    q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    v = torch.cat(v.chunk(2, dim=1), -1).repeat(1, 2, 1, 1)  # The module attends to each half.
    z = attend(module, q, k, v, None, scaling=module.scaling)[0]
    first, second = z.chunk(2, dim=2)
    plus, minus = (
        (a * b).sum(dtype=torch.float32).exp().to(q.dtype)
        for a, b in ((module.lambda_q1, module.lambda_k1), (module.lambda_q2, module.lambda_k2))
    )
    z = first - (plus - minus + module.lambda_init) * second
    z = (1 - module.lambda_init) * module.groupnorm(z)
    return module.o_proj(z.flatten(2)), None


def _refuse(what: str, *_: Any, **__: Any) -> Output:
    raise InputError(f"attention must be from each token to those before it, got {what}")


def _falcon(
    module: Any, attend: Attend, x: Tensor, *, position_embeddings: Any, alibi: Any, **_: Any
) -> Output:
    from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb

    if alibi is not None:
        raise InputError("model must have an exact ALiBi bias, got Falcon's, which is rounded")
    q, k, v = (part.transpose(1, 2) for part in module._split_heads(module.query_key_value(x)))
    if module.new_decoder_architecture:  # Keys and values are repeated for the heads of a group.
        group = module.num_heads // module.num_kv_heads
        k, v = k[:, ::group], v[:, ::group]
    q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    z = attend(module, q, k, v, None, scaling=module.inv_norm_factor)[0]
    return module.dense(z.flatten(2)), None


def _gpt(module: Any, attend: Attend, x: Tensor, **_: Any) -> list[Tensor]:
    parts = module.c_attn(x).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (module.n_head, -1)).transpose(1, 2) for part in parts)
    return [module.c_proj(attend(module, q, k, v, None)[0].flatten(2))]


def _separate(
    module: Any, attend: Attend, hidden_states: Tensor, key_value_states: None = None, **_: Any
) -> Output:
    """GPT-Neo, XGLM, and decoders such as TrOCR's by themselves."""
    if key_value_states is not None:
        raise InputError("attention must be to the text itself, got another's keys")
    projections = module.q_proj, module.k_proj, module.v_proj
    q, k, v = (
        projection(hidden_states).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for projection in projections
    )
    z = attend(module, q, k, v, None, scaling=getattr(module, "scaling", 1.0))[0]
    return module.out_proj(z.flatten(2)), None


def _mpt(module: Any, attend: Attend, x: Tensor, *, position_bias: Tensor, **_: Any) -> Output:
    fused = module.Wqkv(x)
    if module.clip_qkv:
        fused = fused.clamp(-module.clip_qkv, module.clip_qkv)
    q, k, v = fused.unflatten(-1, (3, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    slopes = position_bias[:, 0, -2:].diff().sum(-1)
    z = attend(module, q, k, v, None, scaling=module.softmax_scale, slopes=slopes)[0]
    return module.out_proj(z.flatten(2)), None


_FORWARDS: dict[str, Callable[..., Any]] = {
    "transformers.models.bloom.modeling_bloom.BloomAttention.forward": _bloom,
    "transformers.models.deepseek_v4.modeling_deepseek_v4.DeepseekV4Attention.forward": partial(
        _refuse, "DeepSeek-V4's, which also attends to compressed tokens"
    ),
    "transformers.models.diffllama.modeling_diffllama.DiffLlamaAttention.forward": _diff_llama,
    "transformers.models.doge.modeling_doge.DogeAttention.forward": partial(
        _refuse, "Doge's, whose mask depends on the values"
    ),
    "transformers.models.falcon.modeling_falcon.FalconAttention.forward": _falcon,
    "transformers.models.gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention.forward": _separate,
    "transformers.models.mpt.modeling_mpt.MptAttention.forward": _mpt,
    "transformers.models.mvp.modeling_mvp.MvpAttention.forward": _separate,
    "transformers.models.openai.modeling_openai.Attention.forward": _gpt,
    "transformers.models.trocr.modeling_trocr.TrOCRAttention.forward": _separate,
    "transformers.models.xglm.modeling_xglm.XGLMAttention.forward": _separate,
}
"""By the name of the forward pass that each one replaces."""
