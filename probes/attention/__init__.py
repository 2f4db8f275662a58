"""Attention that also returns the log-sum-exp, and what can be read off it: region masses and entropy.

`kernel` attends (fused kernels by device, and a plain chunked one), `masses` uses it to see where the probability goes,
`chunk` is how a long text is read. Knows nothing of drafters or rounds; no L x L matrix is
ever made.
"""
