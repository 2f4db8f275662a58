"""Decoder layers of drafters, by family; Triton kernels beside them for a CUDA device.

A layer projects, is attended from outside, and finishes. It owns its scale, head sizes and rotary embedding. Knows no
chain and no cache.
"""
