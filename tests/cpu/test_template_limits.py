"""Chat templates are rendered as transformers does, and take no more time, memory and text than they are given."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from probes.errors import InputError, quotes_hidden
from probes.prompt import template_process, template_worker
from probes.prompt.rendering import render
from tests import chat_templates
from tests.cpu.test_regions import CONVERSATION, TOOL_CONVERSATION, WEATHER_TOOL, byte_level, wrap

QUESTION = [{"role": "user", "content": "Where is the purple key?"}]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return wrap(byte_level())


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MAX_CPU_SECONDS", 0.5)


ODD_TEMPLATES = {
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "blocks": "  {% if true %}\n  {% for m in messages %}\n{{ m.role }}: {{ m.content }}\n  {% endfor %}\n{% endif %}\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "json": "{{ messages | tojson(indent=2) }}{{ tools | tojson }}{{ documents | tojson }}",
    "namespace": "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}",
    "dict": "{{ dict(a=1) }}{{ messages[0].content }}",
    "tokens": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}",
    "variables": "{{ messages[0].content }}{{ enable_thinking }}{{ numbers }}{{ nothing is none }}",
    "date": "{{ strftime_now('%Y-%m') }}{{ messages[0].content }}",
    "none": "{{ messages[0].get('name', 'no name') }}{{ messages[0].reasoning_content }}",
}


@pytest.mark.parametrize("template", [*chat_templates.ALL.values(), *ODD_TEMPLATES.values()])
@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        (CONVERSATION, None),
        (TOOL_CONVERSATION, [WEATHER_TOOL]),
        ([{"role": "user", "content": "é漢😀\x00\u2028 {{ 7 * 7 }}", "name": None, "thinking": "well"}], None),
    ],
)
def test_a_rendered_text_is_that_of_transformers(
    template: str, messages: list[dict[str, Any]], tools: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    kwargs = {"enable_thinking": False, "numbers": [1, 2.5, (3,)], "nothing": None}
    given = {"tools": tools, "chat_template": template, "add_generation_prompt": True}
    request = {
        "template": template,
        "conversation": messages,
        "tools": tools,
        "add_generation_prompt": True,
        "special_tokens": tokenizer.special_tokens_map,
        "kwargs": kwargs,
    }
    expected: str | Exception
    try:
        expected = tokenizer.apply_chat_template(messages, tokenize=False, **given, **kwargs)
    except Exception as error:
        expected = error
    if isinstance(expected, Exception):
        with pytest.raises(InputError, match=re.escape(str(expected))):
            template_process.render_text(request, template_process.Budget())
    else:
        assert template_process.render_text(request, template_process.Budget()) == expected


NESTED_LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (NESTED_LOOPS, "CPU time"),
        (
            "{% macro m(n) %}{% for i in range(90) %}{{ m(n - 1) if n }}{% endfor %}{% endmacro %}{{ m(20) }}",
            "CPU time",
        ),
        ("{{ lipsum(n=10**7) }}", "CPU time"),
        ("{{ 'x'.center(3 * 10**9) }}", "2,048 MiB of memory"),
        ("{{ '%3000000000d' % 1 }}", "2,048 MiB of memory"),
        ("{{ '{:3000000000}'.format(1) }}", "2,048 MiB of memory"),
        ("{{ 'a' * 3 * 10**9 }}", "2,048 MiB of memory"),
        ("{{ ['a', 'b'] | join('x' * 9000000) }}", "8 MiB of text"),
        ("{{ 'x'.center(9 * 10**6) }}", "8 MiB of text"),
        ("{{ '漢' * (3 * 10**6) }}", "8 MiB of text"),
    ],
    ids=lambda value: value[:24],
)
@pytest.mark.usefixtures("little_time")
def test_a_template_over_a_limit_is_one_message(template: str, words: str, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError) as caught:
        render(tokenizer, QUESTION, template=template)
    assert caught.value.code == "template_limit"
    assert words in str(caught.value)
    assert "NAME=FILE" in caught.value.remedy
    fine = render(tokenizer, QUESTION, template="{{ messages[0].content }}")
    assert fine.text == QUESTION[0]["content"]  # the next one is rendered as ever


@pytest.mark.usefixtures("little_time")
def test_what_is_said_in_the_issue_ends_without_this_process_growing(tokenizer: PreTrainedTokenizerFast) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for template in (
        "{{ messages | tojson(indent=10**9) }}",
        "{{ ('a\n' * 9) | indent(10**9) }}",
        "{% set n = namespace(s='a' * 10) %}{% for i in range(8) %}{% set n.s = n.s | replace('a', 'a' * 10) %}{% endfor %}"
        "{{ n.s }}",
    ):
        with pytest.raises(InputError) as caught:
            render(tokenizer, QUESTION, template=template)
        assert caught.value.code == "template_limit"
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 100 << 20


@pytest.mark.usefixtures("little_time")
def test_a_limit_is_of_the_prompt_and_no_refusal_of_a_marked_text(tokenizer: PreTrainedTokenizerFast) -> None:
    """A template that takes long only when it is given marked text: no other way of finding regions is tried then."""
    template = (
        "{{ messages[0].content }}{% if messages[0].content != 'Where is the purple key?' %}"
        + NESTED_LOOPS
        + "{% endif %}"
    )
    with pytest.raises(InputError) as caught:
        render(tokenizer, QUESTION, template=template)
    assert caught.value.code == "template_limit"


def test_half_a_surrogate_pair_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    for template in ("{{ '\\ud800' }}{{ messages[0].content }}", "{{ messages[0].content }}\ud83d"):
        with pytest.raises(InputError) as caught:
            render(tokenizer, QUESTION, template=template)
        assert caught.value.code in ("not_unicode", "template_failed")


def test_a_failing_template_says_why_also_without_words(tokenizer: PreTrainedTokenizerFast) -> None:
    for template, words in (
        ("{{ raise_exception('no such thing') }}", "the chat template fails: no such thing"),
        ("{{ raise_exception('') }}", "the chat template fails: TemplateError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "the chat template fails: maximum recursion depth"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
        ("{% include '/etc/passwd' %}", "the chat template fails: no loader"),
    ):
        with pytest.raises(InputError) as caught:
            render(tokenizer, QUESTION, template=template)
        assert caught.value.code == "template_failed"
        assert words in str(caught.value)


def test_what_a_template_says_of_the_message_can_be_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    template = "{{ raise_exception('cannot take: ' + messages[0].content) }}"
    with pytest.raises(InputError, match="cannot take: Where is the purple key"), quotes_hidden(False):
        render(tokenizer, QUESTION, template=template)
    with pytest.raises(InputError) as caught, quotes_hidden(True):
        render(tokenizer, QUESTION, template=template)
    assert "purple" not in str(caught.value)
    assert "purple" not in repr(caught.value.args)
    assert caught.value.message.startswith("the chat template fails (what it says is left out")
    assert (caught.value.code, caught.value.where) == ("template_failed", "chat template")


def test_notes_quote_the_template_and_not_the_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    backwards = "{{ messages[0].content }}|{{ messages[0].content | reverse }}"
    rendered = render(tokenizer, QUESTION, template=backwards, chat_template_kwargs={"(a+": 1, "x": 2})
    assert "the template adds no generation prompt" in rendered.notes
    assert "the template does not read x" in rendered.notes
    assert "the template does not read a variable of chat_template_kwargs" in rendered.notes
    assert not any("elprup" in note for note in rendered.notes)


def test_a_tokenizer_with_a_rendering_of_its_own_is_asked_itself() -> None:
    class Own(PreTrainedTokenizerFast):
        def apply_chat_template(self, conversation: Any, *, tokenize: bool, **kwargs: Any) -> Any:
            if conversation[0]["role"] == "system":
                raise ValueError
            text = "".join(f"<{m['content']}>" for m in conversation)
            return self(text, add_special_tokens=False)["input_ids"] if tokenize else text

    base = wrap(byte_level())
    own = Own(tokenizer_object=base.backend_tokenizer, chat_template="{{ 'never read' }}")
    rendered = render(own, QUESTION)
    assert rendered.text == "<Where is the purple key?>"
    with pytest.raises(InputError, match="the chat template fails: ValueError"):
        render(own, [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}])


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from probes.prompt import template_process as t\n"
        "r = {'template': '{{ messages[0].content }}', 'conversation': [{'role': 'user', 'content': 'x'}], 'tools': None,"
        " 'add_generation_prompt': True, 'special_tokens': {}, 'kwargs': {}}\n"
        "assert t.render_text(r, t.Budget()) == 'x'\n"
        "print(t._shared.worker.process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # In a folder with traps for whoever imports from the working directory.
    for name in ("json.py", "transformers.py", "jinja2.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the working directory')")
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    for _ in range(600):
        if not is_running(pid):
            break
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    """A zombie that nobody has waited for yet has ended."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_forked_process_has_its_own(tokenizer: PreTrainedTokenizerFast) -> None:
    assert render(tokenizer, QUESTION, template="{{ messages[0].content }}").text == QUESTION[0]["content"]
    ours = template_process._shared.worker
    assert ours is not None
    pid = os.fork()
    if not pid:
        os._exit(0 if template_process._shared.worker is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert template_process._shared.worker is ours


def test_one_that_was_killed_is_started_again(tokenizer: PreTrainedTokenizerFast) -> None:
    render(tokenizer, QUESTION, template="{{ messages[0].content }}")
    worker = template_process._shared.worker
    assert worker is not None
    worker.process.kill()
    worker.process.wait()
    assert render(tokenizer, QUESTION, template="{{ messages[0].content }}").text == QUESTION[0]["content"]


def test_without_transformers_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "worker.py"
    broken.write_text(Path(template_worker.__file__).read_text().replace("from transformers", "from no_such_package"))
    monkeypatch.setattr(template_worker, "__file__", str(broken))
    with pytest.raises(InputError) as caught:
        template_process._Worker()
    assert caught.value.code == "template_process_failed"
    assert "no_such_package" in caught.value.remedy
