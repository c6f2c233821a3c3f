"""The server of the live page, for the person at this machine alone.

It listens on 127.0.0.1, at a random port. The address that is printed has a token, which the first
browser exchanges for a cookie and which works once. A request must have the cookie,
and name this server as its host and, if it has one, as its origin, so that no other page in the
browser reaches it. Requests name no files.
"""

import asyncio
import ipaddress
import json
import logging
import secrets
import socket
import threading
from collections import deque
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn import Config, Server

from interp.errors import InputError
from interp.show.live.answers import Answers, Ask, Stopped
from interp.show.pages.gallery import gallery_of_prompts
from interp.show.pages.packing import PackedPrompt

LOG = logging.getLogger("interp")

LARGEST = 2**16
"""Most bytes of a message from the page."""

PAGES = 32
"""Most pages that are connected at once."""

_SLOW = 20.0
"""Seconds that a page may take to read one message."""

_BAD = 20
"""Wrong messages after which a page is disconnected."""


class Live:
    """A running live page; from `interp.live`.

    Attributes:
        address: Address with the token, for one browser.
    """

    def __init__(
        self, answers: Answers, first: PackedPrompt, typed: str, *, host: str, port: int
    ) -> None:
        self._answers, self._first, self._typed = answers, first, typed
        self._socket = _listening(host, port)
        self.port = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self._hosts = {f"{name}:{self.port}" for name in (shown, "127.0.0.1", "localhost")}
        self._token, self._session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._cookie = f"interp_{self.port}"
        self._pages: set[WebSocket] = set()
        self.address = f"http://{shown}:{self.port}/?token={self._token}"
        routes = [
            Route("/", self._page),
            Route("/gallery.html", self._saved),
            WebSocketRoute("/ws", self._socket_of_page),
        ]
        config = Config(
            _Guard(Starlette(routes=routes), self),
            log_level="error",
            lifespan="off",
            ws_max_size=LARGEST,
            ws_max_queue=4,
            ws_ping_interval=20,
            limit_concurrency=256,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        self._server = Server(config)
        self._thread: threading.Thread | None = None
        self._last: PackedPrompt = first

    def __repr__(self) -> str:
        state = "stopped" if self._server.should_exit else "running"
        return f"Live({self._answers.model.name}, {state} at port {self.port})"

    def run(self) -> None:
        """Serve until an interrupt."""
        self._server.run(sockets=[self._socket])

    def start(self) -> "Live":
        """Serve in a thread, until `stop`."""
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the server and its connections."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)

    def allows(self, headers: Headers) -> bool:
        """Whether a request names this server as its host and origin."""
        origins = {f"http://{host}" for host in self._hosts}
        origin = headers.get("origin")
        return headers.get("host") in self._hosts and (origin is None or origin in origins)

    def _is_known(self, cookies: dict[str, str]) -> bool:
        return secrets.compare_digest(cookies.get(self._cookie, ""), self._session)

    async def _page(self, request: Request) -> Response:
        if (token := request.query_params.get("token")) is not None:
            if not self._token or not secrets.compare_digest(token.encode(), self._token.encode()):
                text = "This address was used already, or is of another run: start the page again."
                return PlainTextResponse(text, 403)
            self._token = ""
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
            return answer
        if not self._is_known(request.cookies):
            text = "Open the address that was printed when the page was started."
            return PlainTextResponse(text, 403)
        return HTMLResponse(self._html(self._first, live=self._typed))

    async def _saved(self, request: Request) -> Response:
        if not self._is_known(request.cookies):
            return PlainTextResponse("Open the page first.", 403)
        name = {"content-disposition": 'attachment; filename="gallery.html"'}
        return HTMLResponse(self._html(self._last), headers=name)

    def _html(self, prompt: PackedPrompt, live: str | None = None) -> str:
        return gallery_of_prompts(self._answers.scan, [prompt], live=live).to_html()

    async def _socket_of_page(self, page: WebSocket) -> None:
        if not self._is_known(page.cookies) or page.headers.get("origin") is None:
            await page.close(1008)
        elif len(self._pages) >= PAGES:
            await page.close(1013)
        else:
            self._pages.add(page)
            try:
                await page.accept()
                await self._talk(page)
            except (WebSocketDisconnect, RuntimeError, TimeoutError):
                pass  # The page is gone, or does not read.
            finally:
                self._pages.discard(page)

    async def _talk(self, page: WebSocket) -> None:
        """Answer each prompt of a page; a newer one stops the one before."""
        loop, waiting, changed = asyncio.get_running_loop(), deque[str](), asyncio.Event()
        current: threading.Event | None = None
        work: set[asyncio.Future[Any]] = set()

        async def write() -> None:
            while True:
                await changed.wait()
                changed.clear()
                while waiting:
                    await asyncio.wait_for(page.send_text(waiting.popleft()), _SLOW)

        def put(message: dict[str, Any], stop: threading.Event | None) -> None:
            if stop is None or not stop.is_set():
                waiting.append(json.dumps(message))
                changed.set()

        def answer(ask: Ask, stop: threading.Event) -> None:
            def send(message: dict[str, Any]) -> None:
                loop.call_soon_threadsafe(put, {**message, "id": ask.id}, stop)

            try:
                self._last = self._answers.answer(ask, send, stop.is_set)
                send({"type": "done"})
            except Stopped:
                pass
            except InputError as error:
                send({"type": "error", "message": str(error)})
            except Exception as error:
                LOG.exception("a prompt of the live page failed")
                send({"type": "error", "message": f"{type(error).__name__}: see the terminal"})

        async def read() -> None:
            nonlocal current
            bad = 0
            while bad < _BAD:
                message = await page.receive()
                if message["type"] == "websocket.disconnect":
                    return
                try:
                    ask = Ask.model_validate_json(message.get("text") or "")
                except ValidationError as error:
                    bad += 1
                    why = error.errors(include_url=False)[0]["msg"]
                    put({"type": "error", "message": f"not a request: {why}"}, None)
                    continue
                if current is not None:
                    current.set()
                    waiting.clear()
                current = threading.Event()
                future = loop.run_in_executor(None, answer, ask, current)
                work.add(future)
                future.add_done_callback(work.discard)
            await page.close(1008)

        tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            if current is not None:
                current.set()
            for task in tasks:
                task.cancel()


class _Guard:
    """Refuses requests of other hosts and origins, and adds the headers of every answer."""

    def __init__(self, app: Any, live: Live) -> None:
        self._app, self._live = app, live

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        if not self._live.allows(Headers(scope=scope)):
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            else:
                await PlainTextResponse("not this server", 403)(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "no-referrer"
                headers["cache-control"] = "no-store"
                headers["cross-origin-resource-policy"] = "same-origin"
                headers["x-frame-options"] = "DENY"
            await send(message)

        await self._app(scope, receive, with_headers)


def _listening(host: str, port: int) -> socket.socket:
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        LOG.warning("%s can be reached from other machines, over a connection without TLS", host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"port must be free at {host}, got {port}: {error}") from error
