"""What the pages share: the folder of runs, cached aggregates, the state in the URL, charts, probe processes.

Imports `driftscope` and Streamlit, never torch, transformers or vllm. A page (`views/`) shows; what it shows is from here.
"""
