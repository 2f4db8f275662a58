"""Any producer's EAGLE-3 / EAGLE-3.1 drafter -> one `DrafterSpec` and its tensors under canonical names.

Entrances: `read.read_spec`, `tensors.load_tensors` (torch), `files.file_hashes`. `spec` says what a drafter is; `files`,
`hub`, `safetensors_file` and `pickle_file` find and parse; `producers/` has one file per producer; `inputs`, `aux_ids`,
`rope`, `window` and `vocab` each settle one thing; `layout` names and shapes the tensors; `document` writes
docs/checkpoints.md. What is missing, unused or mis-shaped is reported.
"""
