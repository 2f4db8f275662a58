"""Chat templates for tests, written by us in the style of the families named; none is a copy of a published one.

Each shows one way in which templates differ: a default system prompt, text of their own beside the system text, no
system role, trimming, think blocks, tools, other special tokens.
"""

from __future__ import annotations

SMOLLM2 = (  # inserts a default system prompt; prints any role; trims nothing
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a tiny test assistant made of few weights.<|im_end|>\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3 = (  # trims contents; writes dates into every system turn; tools in the first user turn; calls as JSON
    "{{- bos_token }}"
    "{%- if messages[0].role == 'system' %}"
    "{%- set system = messages[0].content | trim %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set system = '' %}{%- set turns = messages %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{%- if tools %}{{- 'Environment: python\n' }}{%- endif %}"
    "{{- 'Knowledge ends in December 2023\nToday is 26 July 2024\n\n' }}"
    "{{- system + '<|eot_id|>' }}"
    "{%- for message in turns %}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{%- if loop.first and tools %}"
    "{{- 'You may call one of these functions, in JSON.\n\n' }}"
    "{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}"
    "{%- endif %}"
    "{%- if message.tool_calls %}"
    '{{- \'{"name": "\' + message.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{- message.tool_calls[0].function.arguments | tojson }}{{- '}' }}"
    "{%- elif message.role == 'tool' %}{{- message.content | tojson }}"
    "{%- else %}{{- message.content | trim }}{%- endif %}"
    "{{- '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)

GEMMA = (  # rejects the system role and turns that do not alternate; trims; the assistant is called model
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant') }}"
    "{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

MISTRAL = (  # no system turn: its text goes before the first user text; plain-text markers; no generation prompt
    "{{ bos_token }}"
    "{%- if messages[0].role == 'system' %}"
    "{%- set system = messages[0].content %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set turns = messages %}{%- endif %}"
    "{%- for message in turns %}"
    "{%- if message.role == 'user' %}"
    "{%- if loop.first and system is defined %}{{- '[INST] ' + system + '\n\n' + message.content + ' [/INST]' }}"
    "{%- else %}{{- '[INST] ' + message.content + ' [/INST]' }}{%- endif %}"
    "{%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}"
    "{%- else %}{{- raise_exception('Only user and assistant roles are supported') }}{%- endif %}"
    "{%- endfor %}"
)

MISTRAL_LAST = MISTRAL.replace("loop.first", "loop.last")  # the system text goes into the last user turn

QWEN3 = (  # tools in the system turn; drops earlier reasoning; enable_thinking=False adds an empty think block
    "{%- if tools %}"
    "{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}"
    "{{- '# Tools\n\nYou may call functions from this list:\n<tools>' }}"
    "{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '\n</tools>\n\nAnswer with a JSON object for each call.<|im_end|>\n' }}"
    "{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- elif message.role == 'assistant' %}"
    "{%- set content = message.content if message.content is string else '' %}"
    "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\n' + content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{%- if content or not loop.first %}{{- '\n' }}{%- endif %}"
    '{{- \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)

GPT_OSS = (  # a system turn of its own; the given system text becomes the developer's; channels
    "{{- '<|start|>system<|message|>You are a test model with channels.\nKnowledge ends: 2024-06\n\n' }}"
    "{{- '# Valid channels: analysis, final.<|end|>' }}"
    "{%- set has_instructions = messages[0].role in ('system', 'developer') %}"
    "{%- if has_instructions %}"
    "{{- '<|start|>developer<|message|># Instructions\n\n' + messages[0].content + '<|end|>' }}"
    "{%- endif %}"
    "{%- for message in (messages[1:] if has_instructions else messages) %}"
    "{%- if message.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}"
    "{%- else %}{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)

VICUNA = (  # no special tokens between turns; a default system prompt before a role header in plain text
    "{%- if messages[0].role == 'system' %}"
    "{%- set system = messages[0].content %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set system = 'A talk between a curious user and a test assistant.' %}"
    "{%- set turns = messages %}{%- endif %}"
    "{{- system + ' ' }}"
    "{%- for message in turns %}"
    "{%- if message.role == 'user' %}{{- 'USER: ' + message.content + ' ' }}"
    "{%- else %}{{- 'ASSISTANT: ' + message.content + eos_token }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}"
)

ALL = {
    "smollm2": SMOLLM2,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "mistral_last": MISTRAL_LAST,
    "qwen3": QWEN3,
    "gpt_oss": GPT_OSS,
    "vicuna": VICUNA,
}

SPECIAL_TOKENS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>",
)  # fmt: skip
