"""Chat messages: their token ids, and which of them the chat template added."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from interp.errors import InputError, quoted, told

_WRITTEN = ("content", "text", "reasoning_content")
"""Entries of a message that its author wrote; the text of all others counts as the template's."""

_MARK = "qx{}zq7e1fb"
_MARKS = re.compile(_MARK.format(r"(\d+)"))


def messages_of(value: Any) -> dict[str, Any] | None:
    """The arguments of `apply_chat_template`, if `value` is one conversation.

    That is a list of messages with `role`, or a mapping that has such a list as `messages`, and
    maybe `tools`.
    """
    if isinstance(value, Mapping) and "messages" in value:
        return {"conversation": value["messages"], "tools": value.get("tools")}
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if is_list and all(isinstance(one, Mapping) and "role" in one for one in value):
        return {"conversation": [*value], "tools": None}
    return None


def encode_messages(tokenizer: Any, messages: dict[str, Any]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and whether each token is the template's.

    The template is rendered twice: with the messages, and with a mark in place of each text. What
    stands between the marks is the template's. A token that has a character of a message belongs
    to the message.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("messages must be given to a tokenizer with a chat template, got none")
    render = partial(tokenizer.apply_chat_template, tools=messages["tools"])
    texts: list[str] = []
    marked = _marked(messages["conversation"], texts)
    try:
        whole = render(messages["conversation"], tokenize=False)
        frame = _MARKS.split(render(marked, tokenize=False))
        ids = render(messages["conversation"], return_dict=True)["input_ids"]
        again = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    except Exception as error:  # Templates and libraries raise errors of many kinds.
        shown = quoted(messages["conversation"])
        raise InputError(
            f"messages must be what the chat template reads, got {shown}: {told(error)}"
        ) from error
    forms = [re.escape(frame[0])]
    for number, after in zip(frame[1::2], frame[2::2], strict=True):
        text = texts[int(number)]
        trimmed = dict.fromkeys([text, text.strip(), text.lstrip(), text.rstrip()])
        forms += [f"({'|'.join(map(re.escape, trimmed))})", re.escape(after)]
    found = re.fullmatch("".join(forms), whole)
    if found is None or ids != again["input_ids"]:
        raise InputError(
            "messages must have texts that the chat template leaves as they are, got others: give"
            " the ids of apply_chat_template, and with positions those that count"
        )
    spans = [found.span(1 + group) for group in range(found.re.groups)]
    return ids, [
        not any(start < end_of and begin < end for begin, end_of in spans)
        for start, end in again["offset_mapping"]
    ]


def _marked(value: Any, texts: list[str], name: str = "") -> Any:
    """The messages with a numbered mark in place of each text, which goes to `texts`."""
    if isinstance(value, Mapping):
        return {key: _marked(inner, texts, key) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(inner, texts, name) for inner in value]
    if not isinstance(value, str) or name not in _WRITTEN or not value.strip():
        return value
    texts.append(value)
    return _MARK.format(len(texts) - 1)
