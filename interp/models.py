"""The one door to transformers and TransformerLens: from a name to a `Model`.

`load_model` takes a name, a folder, a file or a loaded model. What is then done with the
hooks is in `interp.hooks`.
"""

import contextlib
import copy
import io
import itertools
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
import torch
import transformers
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import (
    build_bridge_from_module,
    detect_tokenizer_bos_eos,
)

from interp import fetch
from interp.circuits.built import Built
from interp.errors import InputError, whole
from interp.files import staged
from interp.targets import NONE

DEFAULT = "SmolLM2-135M"
"""What to ask for to get the model that needs no hub: see `interp.fetch`."""

FULL_NAME = "SmolLM2-135M-Instruct (Q4_1)"
"""What that model is: tuned for chat, its weights rounded to four bits."""

_Held = TypeVar("_Held")

STREAM = "interp_stream"
"""Name of the attention of `interp.stream` among those that transformers knows."""

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, eq=False)
class Model:
    """A language model ready to be looked into.

    Attributes:
        bridge: TransformerLens' view of it, with its hooks.
        plain: The same weights as transformers runs them; None for a bridge made elsewhere.
        tokenizer: As it came with the model; None if there is none, and then only token ids
            can be run.
        name: The hub's id, or the name of the folder or file.
        revision: The hub's commit, or the file's SHA-256, where there is one.
        windows: For each layer how far back it may look, the query included; None: no limit.
    """

    bridge: TransformerBridge
    plain: Any
    tokenizer: Any
    name: str
    revision: str | None
    windows: tuple[int | None, ...]

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers of {self.n_heads} heads"
        return f"Model({self.name}: {size}, {self.dtype_name}, {self.device})"

    @property
    def n_layers(self) -> int:
        """Layers, with or without attention."""
        return len(self.windows)

    @property
    def n_heads(self) -> int:
        """Query heads in a layer."""
        return int(self.bridge.cfg.n_heads)

    @property
    def n_ctx(self) -> int:
        """The longest prompt, in tokens, that the model takes."""
        return int(self.bridge.cfg.n_ctx)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.bridge.parameters()).device

    @property
    def dtype_name(self) -> str:
        """Of the weights, such as `float32`."""
        return str(next(self.bridge.parameters()).dtype).removeprefix("torch.")

    @property
    def bos(self) -> int | None:
        """Id of the token that opens a text, or None if the model has none."""
        named = self._config if self.tokenizer is None else self.tokenizer
        bos = getattr(named, "bos_token_id", None)
        return bos if bos is not None and bos < self._n_embeddings else None

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids that stand for no text: BOS, EOS, padding, chat markers and the like."""
        if self.tokenizer is not None:
            listed = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
            return frozenset(listed)
        ends = [getattr(self._config, f"{end}_token_id", None) for end in ("bos", "eos", "pad")]
        return frozenset(
            i for end in ends for i in (end if isinstance(end, list) else [end]) if i is not None
        )

    @cached_property
    def vocabulary(self) -> Int[Tensor, " id"]:
        """Ids of ordinary tokens: known to the model and to the tokenizer, and not special."""
        ids = torch.arange(self._n_embeddings)
        if self.tokenizer is not None:
            ids = ids[: len(self.tokenizer)]
        return ids[~torch.isin(ids, torch.tensor(sorted(self.special), dtype=torch.long))]

    def to_tokens(
        self, inputs: str | Sequence[str] | Any, *, bos: bool = True
    ) -> Int[Tensor, "batch pos"]:
        """The ids that are run for `inputs`; shorter rows are filled up with -1 on the right.

        Args:
            inputs: A text, several texts, or token ids (`[pos]`, `[batch, pos]` or a list of
                rows). Ids are run as they are.
            bos: Whether a text is to open with BOS. It does so once, also where the text
                spells BOS out; a model without BOS opens with the text.

        Raises:
            InputError: If there is nothing to run, an id is not the model's, or a row is longer
                than the model's context.
        """
        texts = [inputs] if isinstance(inputs, str) else inputs
        if isinstance(texts, list | tuple) and texts and all(isinstance(t, str) for t in texts):
            rows = [self._encode(text, bos) for text in texts]
        else:
            rows = _rows_of_ids(inputs)
        for index, row in enumerate(rows):
            if not row or set(row) == {NONE}:
                raise InputError(f"prompt must have at least one token, got none in row {index}")
            if len(row) > self.n_ctx:
                raise InputError(
                    f"prompt must fit the model's context of {self.n_ctx} tokens,"
                    f" got {len(row)} in row {index}"
                )
            if (worst := max(row, key=abs)) >= self._n_embeddings or min(row) < NONE:
                raise InputError(
                    f"token ids must be from 0 to {self._n_embeddings - 1},"
                    f" got {worst} in row {index}"
                )
            if NONE in row and NONE in row[: len(row) - row.count(NONE)]:
                raise InputError(
                    f"padding (-1) must be on the right, got it elsewhere in row {index}"
                )
            if self.bos is not None and row[:2] == [self.bos, self.bos]:
                warnings.warn(f"row {index} opens with BOS twice", stacklevel=2)
        length = max(map(len, rows))
        return torch.tensor([row + [NONE] * (length - len(row)) for row in rows])

    def texts_of(self, tokens: Int[Tensor, " pos"]) -> list[str]:
        """The text of each token by itself; `<id>` where the tokenizer does not know it."""
        if self.tokenizer is None:
            return [f"<{i}>" for i in tokens.tolist()]
        known = len(self.tokenizer)
        return [self.tokenizer.decode([i]) if i < known else f"<{i}>" for i in tokens.tolist()]

    def _encode(self, text: str, bos: bool) -> list[int]:
        if self.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer: give token ids, not text")
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise InputError("prompt must have at least one token, got an empty text")
        opening = self.bos if bos else None
        return ids if opening is None or ids[0] == opening else [opening, *ids]

    @cached_property
    def learned_sinks(self) -> bool:
        """Whether part of the attention goes to learned sinks that are no key (gpt-oss)."""
        # transformers' models name the parameter alike.
        return any(name.endswith(".sinks") for name, _ in self.inner.named_parameters())

    @property
    def chunked(self) -> bool:
        """Whether a layer attends within blocks of fixed places (Llama 4), not within a window."""
        kinds = getattr(self._config, "layer_types", None) or ()
        return "chunked_attention" in kinds

    @property
    def inner(self) -> Any:
        """The model that the bridge wraps, as transformers knows it."""
        return self.bridge.original_model

    @property
    def _config(self) -> Any:
        return _text_config(self.inner)

    @property
    def _n_embeddings(self) -> int:
        return int(self.bridge.cfg.d_vocab)


def load_model(
    model: Any = DEFAULT,
    tokenizer: Any = None,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "auto",
    revision: str | None = None,
) -> Model:
    """Load a language model and open it to hooks.

    Args:
        model: The default model's name (from the package index, no hub needed), a hub id
            such as `gpt2`, a Hugging Face folder, a `.gguf` file, a loaded Hugging Face
            model, or a `TransformerBridge`. A loaded model is not changed: its weights are
            shared, its settings are not.
        tokenizer: For a loaded model; without one it takes token ids only.
        dtype: Of weights and arithmetic, for a model loaded here.
        device: `auto` is the CUDA device if there is one, else the CPU.
        revision: Of a hub id.

    Raises:
        InputError: If the model cannot be had; the message says what to do. Weights are
            read from safetensors or GGUF only, never unpickled, and no code that comes
            with a model is run.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, TransformerBridge):
        name = str(getattr(model.cfg, "model_name", None) or "bridge")
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
        return _opened(model, None, tokenizer, name, None)
    if isinstance(model, transformers.PreTrainedModel):
        return _bridged(_twin(model), tokenizer, model.name_or_path or type(model).__name__, None)
    if isinstance(model, torch.nn.Module):
        raise InputError(
            "model must be a transformers model itself, got"
            f" {type(model).__name__}: give what it wraps (PEFT: merge_and_unload(),"
            " torch.compile: _orig_mod)"
        )
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise InputError(f"model must be a name, a path or a loaded model, got {model!r}")

    options = {"dtype": _as_dtype(dtype), "device": _as_device(device)}
    name = os.fspath(model)
    path = _as_path(name)
    if name == DEFAULT:
        loaded, tokenizer = _load(_default_folder(), local=True, **options)
        return _bridged(loaded, tokenizer, FULL_NAME, f"sha256:{fetch.SHA256}")
    if path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"model file must be a .gguf file, got {name}")
        loaded, tokenizer = _load(path.parent, local=True, gguf_file=path.name, **options)
        return _bridged(loaded, tokenizer, path.name, f"sha256:{fetch.sha256(path)}")
    if path.is_dir():
        loaded, tokenizer = _load(path, local=True, **options)
        return _bridged(loaded, tokenizer, path.resolve().name, None)
    if path.is_absolute() or name[0] in "~." or name.count("/") > 1 or path.suffix == ".gguf":
        raise InputError(
            "model must be a hub id, a folder or a .gguf file,"
            f" got {name!r}: no such file or folder"
        )
    loaded, tokenizer = _load(name, local=False, revision=revision, **options)
    return _bridged(loaded, tokenizer, name, getattr(loaded.config, "_commit_hash", None))


def assembled(built: Built, words: Sequence[str], name: str) -> Model:
    """The model that hand-set weights belong to.

    Args:
        built: Weights and settings.
        words: The text of each id: BOS is `<s>`, and `<unk>` stands for words that are not there.
        name: What to call it.
    """
    ends = {"bos_token_id": built.bos, "eos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(built.family, **built.settings, **ends)
    with _quiet(), torch.random.fork_rng(devices=[]):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(built.weights)
    ids = {word: i for i, word in enumerate(words)}
    by_word = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    by_word.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=by_word, bos_token="<s>", unk_token="<unk>"
    )
    return _bridged(model, tokenizer, name, None)


def attention_only(
    *, n_ids: int, n_ctx: int, d_model: int, n_heads: int, n_layers: int, seed: int
) -> transformers.GPT2LMHeadModel:
    """A random GPT-2 to be trained, of attention and norms alone; id 0 is its BOS.

    Its MLPs have width 1, are zero and ask for no gradient. The unembedding is not tied to the
    embedding. Weights are drawn with spread `d_model ** -0.5`, which leaves attention free to
    become sharp early; with GPT-2's own 0.02 other ways to lower the loss are found first.
    """
    config = transformers.GPT2Config(
        vocab_size=n_ids,
        n_positions=n_ctx,
        n_embd=d_model,
        n_layer=n_layers,
        n_head=n_heads,
        n_inner=1,
        initializer_range=d_model**-0.5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(config)
    model.set_attn_implementation("eager")
    for name, weight in model.named_parameters():
        if ".mlp." in name or ".ln_2." in name:
            weight.requires_grad = False
            if ".mlp." in name:
                torch.nn.init.zeros_(weight)
    return model.eval()


def save(model: Model, folder: str | os.PathLike[str]) -> None:
    """Write a model and its tokenizer as a Hugging Face folder: whole, or not at all.

    Raises:
        InputError: If the folder cannot be written to, or has files of something else in it, or
            the model is not at hand as transformers runs it.
    """
    if model.plain is None:
        raise InputError(f"model must be one of transformers, got a bridge made elsewhere: {model}")
    folder = Path(folder)
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(there - {*_CONVERTED, "generation_config.json"}):
        raise InputError(f"{folder} must be a folder of the model alone, got {others[0]} in it")
    with staged(folder) as scratch, _quiet():
        model.plain.save_pretrained(scratch)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(scratch)


_CONVERTED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def _default_folder() -> Path:
    """The default model as safetensors, converted from its GGUF file the first time."""
    folder = fetch.cache_folder() / f"{DEFAULT}-{fetch.SHA256[:12]}"
    if all((folder / name).exists() for name in _CONVERTED):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    gguf = fetch.default_gguf()
    fetch.LOG.info("converting the default model to safetensors (once)")
    fetch.check_sha256(gguf)
    model, tokenizer = _load(
        gguf.parent,
        local=True,
        gguf_file=gguf.name,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    # The weights are plain float32 by now, but transformers refuses to save what it still
    # takes for quantised.
    del model.hf_quantizer
    delattr(model.config, "quantization_config")
    setattr(model, "is_quantized", False)  # noqa: B010  # Not a submodule, whatever types say.
    with staged(folder.parent) as scratch, _quiet():
        model.save_pretrained(scratch / folder.name)
        tokenizer.save_pretrained(scratch / folder.name)
    return folder


def _load(
    source: str | Path,
    *,
    local: bool,
    dtype: torch.dtype,
    device: torch.device,
    gguf_file: str | None = None,
    revision: str | None = None,
) -> tuple[transformers.PreTrainedModel, Any]:
    """Model and tokenizer as transformers loads them, or one line that says why not."""
    where = {"local_files_only": local, "trust_remote_code": False}
    where |= {"gguf_file": gguf_file} if gguf_file else {}
    where |= {"revision": revision} if revision else {}
    shown = Path(source) / gguf_file if gguf_file else source
    try:
        if local and not gguf_file:
            fetch.check_safetensors(Path(source))
        with _quiet():
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                attn_implementation="eager",
                use_safetensors=True,
                output_loading_info=True,
                **where,
            )
            model, info = loaded
            tokenizer = _load_tokenizer(source, where)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model {str(shown)!r} could not be loaded: {_reason(error)}") from error
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"model {str(shown)!r} lacks {len(missing)} weights, {missing[0]} among them:"
            " it is incomplete"
        )
    return model.to(device).eval(), tokenizer


def _load_tokenizer(source: str | Path, where: dict[str, Any]) -> Any:
    if Path(source).is_dir() and "gguf_file" not in where:
        names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
        if not any((Path(source) / name).exists() for name in names):
            return None
    return transformers.AutoTokenizer.from_pretrained(source, **where)


def _reason(error: Exception) -> str:
    """The first telling line of what transformers raised, and what to do about it."""
    text = str(error)
    if "couldn't connect" in text or "offline mode" in text or "LocalEntryNotFound" in text:
        return (
            "it is not on this machine and the hub cannot be reached;"
            " check the network, or name a local folder"
        )
    if "not a valid model identifier" in text or "404" in text:
        return "there is no such model on the hub, or it needs a login"
    if "no file named model.safetensors" in text or "does not appear to have a file named" in text:
        return (
            "it has no safetensors weights; pickled weights are never loaded,"
            " convert them to safetensors first"
        )
    told = f"{type(error).__name__}: {' '.join(text.split())[:200]}"
    if isinstance(error, OSError | ValueError | KeyError | NotImplementedError | ImportError):
        return told.removeprefix("OSError: ").removeprefix("ValueError: ")
    return f"the file is damaged or of an unknown kind ({told})"


def _twin(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """A second model over the same weights, since a bridge rebuilds the modules it wraps."""
    shared = {id(t): t for t in itertools.chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)


def _bridged(
    model: transformers.PreTrainedModel, tokenizer: Any, name: str, revision: str | None
) -> Model:
    architecture = type(model).__name__
    model.eval()
    model.set_attn_implementation("eager")
    model.config.architectures = [architecture]
    plain = _twin(model)
    try:
        # Some adapters draw random numbers while they build.
        with _quiet(), torch.random.fork_rng(devices=[]):
            bridge = build_bridge_from_module(
                model,
                architecture,
                hf_config=model.config,
                model_name=name,
            )
    except Exception as error:
        raise InputError(
            f"TransformerLens cannot open a {architecture}: {_reason(error)}"
        ) from error
    if tokenizer is not None:
        # Given at once, the bridge would load another one by name, perhaps from the hub.
        bridge.tokenizer = tokenizer
        ends = detect_tokenizer_bos_eos(tokenizer)
        bridge.cfg.tokenizer_prepends_bos, bridge.cfg.tokenizer_appends_eos = ends
    return _opened(bridge, plain, tokenizer, name, revision)


def _opened(
    bridge: TransformerBridge, plain: Any, tokenizer: Any, name: str, revision: str | None
) -> Model:
    if not any(hook.endswith("attn.hook_pattern") for hook in bridge.hook_dict):
        raise InputError(f"model must have attention, got {name}, which has none")
    windows = _windows(_text_config(bridge.original_model), int(bridge.cfg.n_layers))
    return Model(bridge, plain, tokenizer, name, revision, windows)


def _text_config(model: Any) -> Any:
    """The settings of the language model, also where it is one part of several."""
    config = getattr(model, "config", None)
    return getattr(config, "get_text_config", lambda: config)()


def _windows(config: Any, n_layers: int) -> tuple[int | None, ...]:
    """How far back each layer may look, from the model's own list of layer kinds."""
    width = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    if not width or getattr(config, "use_sliding_window", True) is False:
        return (None,) * n_layers
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds is None:
        return (width,) * n_layers
    return tuple(width if kind in ("sliding_attention", "local") else None for kind in kinds)


@contextmanager
def attend_with(model: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let `function` be the model's attention, and put the model's own back afterwards."""
    transformers.AttentionInterface.register(name, function)
    own = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(own)


@contextmanager
def holding(variable: ContextVar[_Held], value: _Held) -> Iterator[None]:
    """Let `variable` hold `value`: how a function of `attend_with` learns what it is asked for."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars or advice from the libraries; their settings back afterwards."""
    names = ("transformers", "transformer_lens", "huggingface_hub")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        # The GGUF reader shows a bar of its own, whatever transformers' switch says.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def _as_path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"model must be a name or a path, got {name[:80]!r}: {error}") from None
    return path


def _as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    known = {**_DTYPES, **{str(value): value for value in _DTYPES.values()}}
    if str(dtype) not in known:
        raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype}")
    return known[str(dtype)]


def _as_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.ones(1, device=device).item()  # The device "meta" has no numbers, and fails here.
        return torch.device(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        told = str(error).splitlines()[0]
        raise InputError(f"device must be one that is here, got {device}: {told}") from None


def _rows_of_ids(inputs: Any) -> list[list[int]]:
    rows = inputs.tolist() if hasattr(inputs, "tolist") else inputs
    if not isinstance(rows, list | tuple):
        raise InputError(f"inputs must be text or token ids, got {type(inputs).__name__}")
    if not rows:
        raise InputError("prompt must have at least one token, got none")
    rows = [list(row) for row in rows] if isinstance(rows[0], list | tuple) else [list(rows)]
    try:
        return [[whole("token id", i) for i in row] for row in rows]
    except InputError:
        raise InputError(
            "inputs must be text or whole token ids, got something else among them"
        ) from None
