"""Measures: reads drafter checkpoints, runs the EAGLE pipeline on a target and yields records.

Knows nothing of runs on disk, statistics, figures or the command line; never imports `driftscope` or `app`.
Importing this package imports neither torch nor transformers nor vllm: each part imports what it needs.
"""
