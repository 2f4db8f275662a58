"""The checks: the registry takes every `Check` of each module, its `find` raises them. The first digit of an id is the
module's: 1 layers and fusion, 2 norms and feedback, 3 vocabulary and heads, 4 rope, positions and window, 5 files, 6 the
target, 7 prompts.
"""
