"""Statistics of speculative decoding: acceptance by its exact definitions, intervals over prompts, degenerate text.

Functions of numpy arrays; no files, no display. Every threshold is a named constant of `thresholds`.
"""
