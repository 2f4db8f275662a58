"""Who is let in: a request for a name that was asked for, from this app's own pages, with the token of this start.

An ASGI middleware before everything else (pages, static files, uploads, media, the websocket). Knows no Streamlit.

Host: a web page whose name was made to point to this machine (DNS rebinding) sends its own name. Ports are not compared:
they differ behind `ssh -L` and proxies. Origin: pages of other ports count as the same site for cookies, so SameSite alone
does not keep them out. Token: other users of this machine reach 127.0.0.1 too.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WILDCARDS = ("0.0.0.0", "::")  # where to listen, never a name in a request
TOKEN = "token"
FORBIDDEN = 403
POLICY_VIOLATION = 1008  # uvicorn answers 403 to a websocket that is closed before it was accepted

HEADERS = {
    "content-security-policy": "frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # addresses hold names of runs and prompts, once the token
}

# The cookie is sent with the second request only, which begins here: SameSite=Strict withholds it from one that begins
# elsewhere. The token leaves the address, so that a copied link does not hold it.
_ENTER = f"""<!doctype html><meta charset="utf-8"><title>driftscope</title><script>
const here = new URL(location.href); here.searchParams.delete("{TOKEN}"); location.replace(here);
</script>"""

_NO_TOKEN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>driftscope</title>
<body style="font:16px/1.5 sans-serif;max-width:38em;margin:3em auto">
<h1>This app wants its token</h1>
<p>Open the address that the start of the app printed: it ends in <code>?token=...</code>. Each start makes a new one.</p>
<p>If you have opened it in this browser already and came here by a link: <a href="">open this page again</a>.</p>
"""


class Door:
    """Lets a request pass, or answers it with 403."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.lower() for host in hosts} - set(WILDCARDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):  # start and end of the server
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        query = QueryParams(scope["query_string"])
        is_token_given = any(self._is_token(value) for value in query.getlist(TOKEN))
        refusal = self._why_not(headers) or (
            None if is_token_given or self._is_token(_cookie(headers)) else HTMLResponse(_NO_TOKEN, FORBIDDEN)
        )
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own[name] = value
                if is_token_given:
                    own.append("set-cookie", self._set_cookie(headers, is_secure=scope["scheme"] in ("https", "wss")))
            await send(message)

        if is_token_given and "text/html" in headers.get("accept", ""):
            enter = HTMLResponse(_ENTER, headers={"cache-control": "no-store"})
            await enter(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _why_not(self, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        name = _name(hosts[0]) if len(hosts) == 1 else None
        if name not in self._hosts:
            return PlainTextResponse(
                "This app was not started for this name. Start it with: driftscope app --allow-host NAME\n", FORBIDDEN
            )
        if any(_place(origin) != hosts[0].lower() for origin in headers.getlist("origin")):
            return PlainTextResponse("This app answers to its own pages only.\n", FORBIDDEN)
        return None

    def _is_token(self, value: str) -> bool:
        return secrets.compare_digest(value.encode("utf-8", "replace"), self._token.encode())

    def _set_cookie(self, headers: Headers, *, is_secure: bool) -> str:
        secure = "; Secure" if is_secure else ""
        return f"{_cookie_name(headers)}={self._token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _name(host: str) -> str | None:
    """The name in a Host header, lower case; None where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  # raises for what is no port
    except ValueError:
        return None
    is_bare = parts.netloc == host and parts.username is None and not (parts.path or parts.query or parts.fragment)
    return parts.hostname if is_bare else None


def _place(origin: str) -> str:
    """Name and port in an Origin header; nothing in `null` and what is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _cookie_name(headers: Headers) -> str:
    """Browsers keep cookies by name of the host, not by port: two apps on one machine must not take each other's."""
    port = urlsplit(f"//{headers['host']}").port
    return f"driftscope-{port}" if port is not None else "driftscope"


def _cookie(headers: Headers) -> str:
    return cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers), "")


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    response.headers.update({**HEADERS, "cache-control": "no-store"})
    await response(scope, receive, send)
