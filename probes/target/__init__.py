"""The target: any transformers causal LM, its states at layer boundaries, its own text, its attention.

`model` loads and runs it, `write` lets it answer, `rows` keeps a batch in one cache, `trace` is what a finished text left,
`sampler` chooses tokens, `vocab_rows` reduces rows of logits, `demo` is the built-in target. Knows no drafter.
"""
