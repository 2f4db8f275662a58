"""A prompt: messages as people have them, through a chat template to token ids, each token with its region.

`messages` reads a conversation, `chat_template` renders it (in a process of its own), `tokenization` cuts text into tokens,
`regions` proves where each token comes from, `rendering` joins these, `under_condition` adds system prompt, template and
document. Knows no model: no torch here.
"""
