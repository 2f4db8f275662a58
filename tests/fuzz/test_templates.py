"""Chat templates put together at random, some of them without end or width, on conversations with anything in them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.conftest import Reader
from tests.fuzz.hostile import damaged, hostile_values
from tests.fuzz.test_checkpoint_files import ANY_SPEED

VALUES = st.sampled_from(
    [
        *(
            "messages",
            "messages[0]",
            "messages[-1].content",
            "message.content",
            "message['role']",
            "tools",
            "bos_token",
        ),
        *(
            "loop.index",
            "namespace(x=1)",
            "dict(a=1)",
            "range(9)",
            "none",
            "'a\\ud800'",
            "'\\x00'",
            "1 / 0",
            "[1, 'a']",
        ),
        *(
            "'x'.center(1000)",
            "'a' * 99999",
            "'%9999d' % 1",
            "'{:9999}'.format(1)",
            "''.__class__",
            "strftime_now('%Y')",
        ),
        *("raise_exception('no')", "raise_exception(messages[0].content)", "cycler(1, 2)", "lipsum()", "x", "9 ** 999"),
    ]
)
FILTERS = st.sampled_from(
    [
        *(
            "",
            "|tojson",
            "|tojson(indent=99)",
            "|trim",
            "|upper",
            "|reverse|list",
            "|join('-')",
            "|length",
            "|indent(500)",
        ),
        *(
            "|e",
            "|replace('a', 'aaaaaaaaaa')",
            "|list|sort",
            "|map(attribute='content')|join",
            "|truncate(3)",
            "|no_such",
        ),
    ]
)
WITHOUT_END = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x'.center(10**9) }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
)
PIECES = st.one_of(
    st.builds(lambda value, change: f"{{{{ {value}{change} }}}}", VALUES, FILTERS),
    st.builds(lambda value, change: f"{{{{ {value}{change} }}}}", VALUES, FILTERS),
    st.builds(lambda value: f"{{% if {value} %}}a{{% else %}}b{{% endif %}}", VALUES),
    st.sampled_from(
        ["{% for message in messages %}", "{% endfor %}", "{% if %}", "{#", "<|im_start|>user\n", "{% generation %}"]
    ),
    st.text(max_size=4),
)


def loop(inside: list[str]) -> str:
    return "{% for message in messages %}<{{ message.role }}>{{ message.content }}" + "".join(inside) + "{% endfor %}"


TEMPLATES = st.one_of(
    st.lists(PIECES, max_size=4).map(loop),
    st.lists(PIECES, max_size=4).map(loop),
    st.lists(PIECES, min_size=1, max_size=4).map("".join),
)
CHATS: list[Any] = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Name a tree.\n"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": [1]}'}}]},
        {"role": "tool", "content": "3"},
    ],
]


def ask(reader: Reader, template: str, messages: Any, kwargs: Any) -> str:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "template.jinja"
        path.write_bytes(template.encode("utf-8", "surrogatepass"))
        return reader("template", path, messages=messages, kwargs=kwargs)


@ANY_SPEED
@given(
    template=TEMPLATES,
    messages=damaged(CHATS),
    kwargs=st.dictionaries(st.text(max_size=4) | st.sampled_from(["x", "(a+", "tokenize"]), hostile_values, max_size=2),
)
def test_templates(reader: Reader, template: str, messages: Any, kwargs: dict[str, Any]) -> None:
    ask(reader, template, messages, kwargs)


@ANY_SPEED
@given(template=TEMPLATES)
def test_some_of_them_render(reader: Reader, template: str) -> None:
    assert ask(reader, loop([]), CHATS[0], {}) == "read"
    ask(reader, template, CHATS[0], {})


def test_those_without_end_are_refused(reader: Reader) -> None:
    for template in WITHOUT_END:
        assert ask(reader, template, CHATS[0], {}) == "refused"
