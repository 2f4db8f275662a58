"""The fault bench: known faults put into the demo pair one at a time, and what `driftscope diagnose` makes of each.

`faults` breaks things, `__main__` measures, judges and prints the confusion matrix. Knows no rule of the diagnosis.
"""
