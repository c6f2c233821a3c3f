"""`live`: a page that answers typed prompts, for a loaded model."""

import logging
import threading
import webbrowser
from typing import Annotated, Any

from pydantic import Field

from interp.errors import InputError, checked
from interp.models import load_model
from interp.scan.record import check_made_by
from interp.scan.scan import scan_heads
from interp.scan.table import HeadScan

LOG = logging.getLogger("interp")

FIRST = "When Mary and John went to the store, John gave a drink to"
"""The prompt that a page begins with."""


@checked
def live(
    model: Any,
    scan: HeadScan | None = None,
    *,
    prompt: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, Field(ge=0, le=65535)] = 0,
    open_browser: bool = True,
) -> Any:
    """Start a page in the browser that answers typed prompts with all heads of a model.

    Each head is shown with its label, its score in the scan and its score on the prompt. Heads can
    be taken out, to see how the probabilities of the next token change. The page is for this
    machine alone: it listens on 127.0.0.1, and its address has a token that works once.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal.
        scan: Scan of this model; a new one if left out.
        prompt: Prompt that the page begins with.
        host: Address to listen at. Any other than the machine's own lets others use the model.
        port: Port; a free one if 0.
        open_browser: Whether to open the page.

    Returns:
        The running page, with `address`, `port` and `stop()`.

    Raises:
        InputError: If the extra `live` is not installed, the port is taken, or the model is not
            causal.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> page = interp.live(toy, prompt="5 6 7 5", open_browser=False)
        >>> page.address.startswith("http://127.0.0.1:")
        True
        >>> page.stop()
    """
    page = made(model, scan, prompt=prompt, host=host, port=port).start()
    if open_browser:
        webbrowser.open(page.address)
    return page


def made(model: Any, scan: HeadScan | None, *, prompt: str | None, host: str, port: int) -> Any:
    """The page of `live`, which does not run yet."""
    try:
        from interp.show.live.answers import Answers, Ask
        from interp.show.live.server import Live
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} must be installed for live pages: pip install 'interp[live]'"
        ) from error
    model = load_model(model)
    if scan is None:
        scan = scan_heads(model)
    else:
        check_made_by(scan.made_by, model, "scan")
    answers = Answers.of(model, scan)
    if prompt is None:
        ids = model.vocabulary[:6].tolist()
        prompt = FIRST if model.tokenizer is not None else " ".join(map(str, ids + ids))
    ask = Ask(type="run", id=0, prompt=prompt)
    never = threading.Event()
    first = answers.answer(ask, lambda message: None, never.is_set)
    return Live(answers, first, prompt, host=host, port=port)
