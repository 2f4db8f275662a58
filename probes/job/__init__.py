"""A whole measurement: every drafter x system prompt x template x context length x prompt, record by record.

`loaded` holds target and drafters, `condition_texts` the texts of one condition, `measure_job` runs all. Knows no files of
prompts and no runs.
"""
