"""The app's door: who is let in, by Host, Origin and token; each request to the middleware itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

TOKEN = "the-token-of-this-start"
COOKIE = f"driftscope-8501={TOKEN}"
PATHS = (
    "/",
    "/compare",
    "/_stcore/health",
    "/_stcore/host-config",
    "/_stcore/upload_file/a/b",
    "/media/x.png",
    "/static/x.js",
)


def ask(kind: str = "http", path: str = "/", query: str = "", method: str = "GET", **headers: str | list[str]) -> Any:
    """What comes back: (status, headers, body), "inside" as the body where the request was let in."""
    from driftscope_app.door import Door

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"ALLOW")]})
        await send({"type": "http.response.body", "body": b"inside"})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    raw = []
    for name, values in ({"host": "127.0.0.1:8501"} | headers).items():
        for value in [values] if isinstance(values, str) else values:
            raw.append((name.encode(), value.encode("latin-1")))
    scope = {
        **{"type": kind, "path": path, "query_string": query.encode(), "headers": raw, "method": method},
        "scheme": "ws" if kind == "websocket" else "http",
    }
    door = Door(inside, token=TOKEN, hosts=["127.0.0.1", "localhost", "::1", "0.0.0.0", "Proxy.example"])
    asyncio.run(door(scope, receive, send))
    if kind == "websocket":
        return sent[0]["type"]
    headers_sent = [(n.decode(), v.decode()) for n, v in sent[0]["headers"]]
    return sent[0]["status"], headers_sent, b"".join(m.get("body", b"") for m in sent[1:]).decode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "POST"])
def test_nothing_is_seen_without_the_token(path: str, method: str) -> None:
    status, _, body = ask(path=path, method=method)
    assert status == 403
    assert "inside" not in body
    assert TOKEN not in body
    assert ask(path=path, method=method, cookie=COOKIE)[2] == "inside"
    assert ask("websocket", path) == "websocket.close"
    assert ask("websocket", path, cookie=COOKIE) == "websocket.accept"


OTHER_COOKIES = (
    *("", f"driftscope-8502={TOKEN}", f"driftscope={TOKEN}", f"token={TOKEN}", "driftscope-8501="),
    *("driftscope-8501=the-token-of-this-star", f"driftscope-8501={TOKEN}x", f"driftscope-8501={TOKEN.upper()}"),
    "driftscope-8501=\xe9\xff",
)
OTHER_HOSTS = (
    *("evil.example", "evil.example:8501", "127.0.0.1.evil.example:8501", "127.0.0.1@evil.example", "localhost.evil"),
    *(
        "evil.example#127.0.0.1",
        "127.0.0.1:8501/",
        "127.0.0.1:x",
        "127.0.0.1:99999",
        "",
        "127.0.0.2:8501",
        "[::2]:8501",
    ),
    *("[::1", "0.0.0.0:8501", "proxy.example.evil", "xproxy.example", "2130706433", "\xe9"),
)


@pytest.mark.parametrize("cookie", OTHER_COOKIES)
def test_another_cookie_opens_nothing(cookie: str) -> None:
    assert ask(cookie=cookie)[0] == 403
    assert ask("websocket", cookie=cookie) == "websocket.close"


@pytest.mark.parametrize(
    "query", ["token=", "token=x", "Token=" + TOKEN, "token=" + TOKEN + "%00", "token=%ff", "x=" + TOKEN]
)
def test_another_token_opens_nothing(query: str) -> None:
    assert ask(query=query)[0] == 403


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_a_name_that_was_not_asked_for_sees_nothing(host: str) -> None:
    for cookie in (COOKIE, f"driftscope={TOKEN}"):
        status, _, body = ask(host=host, cookie=cookie, query=f"token={TOKEN}")
        assert (status, "inside" in body) == (403, False)
        assert ask("websocket", host=host, cookie=cookie, query=f"token={TOKEN}") == "websocket.close"


def test_two_hosts_or_none_see_nothing() -> None:
    assert ask(host=["127.0.0.1:8501", "evil.example"], cookie=COOKIE)[0] == 403
    assert ask(host=["evil.example", "127.0.0.1:8501"], cookie=COOKIE)[0] == 403
    assert ask(host=[], cookie=COOKIE)[0] == 403


@pytest.mark.parametrize(
    ("host", "cookie"),
    [
        ("127.0.0.1:8501", "driftscope-8501"),
        ("LOCALHOST:9000", "driftscope-9000"),  # ssh -L 9000:127.0.0.1:8501
        ("[::1]:8501", "driftscope-8501"),
        ("proxy.example", "driftscope"),
        ("proxy.example:443", "driftscope-443"),
    ],
)
def test_a_name_that_was_asked_for_is_let_in_and_has_a_cookie_of_its_own(host: str, cookie: str) -> None:
    status, headers, body = ask(host=host, query=f"token={TOKEN}")
    assert (status, body) == (200, "inside")
    assert ("set-cookie", f"{cookie}={TOKEN}; Path=/; HttpOnly; SameSite=Strict") in headers
    assert ask(host=host, cookie=f"other=1; {cookie}={TOKEN}")[2] == "inside"


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [
        ("http://127.0.0.1:8501", True),
        ("http://127.0.0.1:9999", False),  # another server of this machine: the same site, so it has the cookie
        ("http://localhost:8501", False),
        ("http://evil.example", False),
        ("null", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_pages_of_others_see_nothing(origin: str, is_let_in: bool) -> None:
    assert ask("websocket", cookie=COOKIE, origin=origin) == f"websocket.{'accept' if is_let_in else 'close'}"
    assert (ask(cookie=COOKIE, origin=origin)[2] == "inside") is is_let_in


def test_a_browser_goes_on_without_the_token_in_its_address() -> None:
    status, headers, body = ask(path="/compare", query=f"run=demo&token={TOKEN}", accept="text/html,*/*")
    assert status == 200
    assert "location.replace" in body
    assert TOKEN not in body
    assert dict(headers)["cache-control"] == "no-store"
    assert any(name == "set-cookie" and value.startswith(COOKIE) for name, value in headers)


def test_no_other_page_may_frame_the_app() -> None:
    for answer in (
        ask(cookie=COOKIE),
        ask(),
        ask(host="evil.example"),
        ask(query=f"token={TOKEN}", accept="text/html"),
    ):
        headers = answer[1]
        assert ("content-security-policy", "frame-ancestors 'none'") in headers
        assert [value for name, value in headers if name == "x-frame-options"] == ["DENY"]


def test_the_server_itself_starts_and_ends_behind_the_door() -> None:
    from driftscope_app.door import Door

    seen = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(Door(inside, token=TOKEN, hosts=[])({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]
