"""Recording inside somebody's own `vllm serve`: configuration, which requests, a run that grows beside the server.

The recorder itself is `probes.vllm`; what is written is a run like any other. Nothing here may fail a request.
"""
