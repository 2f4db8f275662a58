"""Any producer's EAGLE-3 / EAGLE-3.1 drafter -> one `DrafterSpec` and its tensors under canonical names.

`spec` says what a drafter is; `files` finds config and tensor headers; `producers/` has one file per producer; `read`
puts them together without torch; `tensors` loads the weights (torch). What is missing, unused or mis-shaped is reported.
"""
