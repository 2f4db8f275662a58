"""From numbers to a cause: the loss waterfall, what interventions gained, verdicts with their evidence.

`facts` gathers what is known of a condition, `verdicts` holds the rules (docs/verdicts.md has one row for each),
`intervene` runs interventions that a run lacks. Reads runs only; nothing here imports torch unless it must measure.
"""
