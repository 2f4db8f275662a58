"""Understands: runs on disk, statistics, diagnosis, prompt files, figures, reports, the command line.

Imports `probes` (measuring), never `app` or streamlit. Importing this package imports neither torch nor transformers.
"""

__version__ = "0.1.0"
