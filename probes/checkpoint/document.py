"""docs/checkpoints.md, made of the producer files, the layer families and the list of what is refused.

`python -m probes.checkpoint.document > docs/checkpoints.md`; a test compares the file with what this makes.
"""

from __future__ import annotations

from probes.checkpoint.families import FAMILIES, REFUSED
from probes.checkpoint.producer import AuxIdConvention, AuxIdKey, Producer
from probes.checkpoint.producers import all_producers
from probes.checkpoint.read import FIXED_SETTINGS, OVERRIDABLE

HEAD = """\
# Checkpoints

Made by `python -m probes.checkpoint.document > docs/checkpoints.md` from `probes/checkpoint/`; edit there, not here.

A drafter is a local folder or a Hub id (`owner/name`, `owner/name@revision`) with `config.json` and weights:
`model.safetensors`, its shards with an index, or else `pytorch_model.bin` (or its shards), which torch's restricted
reader (`weights_only=True`) must accept; that one needs torch (`driftscope[probe]`), the others do not. Of a Hub id,
reading the settings takes `config.json`, an index and, by HTTP ranges, the headers of the weights and the vocabulary
maps; the weights themselves are downloaded when a drafter is run. Revisions, the cache, offline mode and the token are
huggingface_hub's (`HF_HOME`, `HF_HUB_OFFLINE`, `HF_TOKEN`, `HF_ENDPOINT`).

Tensors beat `config.json` wherever they can show a value: number of captured states, norms, biases, vocabulary sizes,
layers, layer family. Every value carries its origin, and what the files cannot prove is marked uncertain. Ids of
captured layers are boundary ids here: id i is the residual stream entering layer i, n the one leaving the last layer.
"""
ALL_TESTED = """\
Every row is tested alike: one set of random weights, written in each layout by `tests/checkpoint_writers.py` (after the
source named here), must give the same settings and bit-identical logits (`tests/unit/test_checkpoint_layouts.py`,
`tests/cpu/test_checkpoint_tensors.py`), and each trap of a producer has a case with its right value
(`tests/unit/test_checkpoint_producers.py`). "Tested against" names what goes beyond. No published checkpoint was at hand.
"""
TAIL = """\
## Adding a producer

One file in `probes/checkpoint/producers/` that exports `PRODUCER`; nothing else imports it by name. Its layout goes into
`tests/checkpoint_writers.py`, and the tests above run it. A new layer family is a row in `probes/checkpoint/families.py`
and its layer in `probes/drafter/layers/` with a row there; a new algorithm is a row in `probes/checkpoint/algorithms.py`
and its class in `probes/drafter/algorithms/` with a row there.
"""
DEFAULT_IDS = "no ids: 2, n//2, n-3"
NO_MARKS = "none of the other families' tensors"


def checkpoints_document() -> str:
    """The whole file, with a newline at its end."""
    rows = [_row(producer) for producer in sorted(all_producers(), key=lambda p: p.title.lower())]
    producers = _table(("producer", "reads", "flags", "assumed", "tested against"), rows)
    families = _table(
        ("family", "seen by"),
        [(f"`{name}`", ", ".join(f"`*{mark}*`" for mark in row.marks) or NO_MARKS) for name, row in FAMILIES.items()],
    )
    fixed = "\n".join(f"- `{key}` other than `{_json(value)}`" for key, value in sorted(FIXED_SETTINGS.items()))
    refused = "\n".join(f"- {kind.what}" for kind in REFUSED)
    overridable = ", ".join(f"`{name}`" for name in sorted(OVERRIDABLE))
    return "\n".join(
        [
            HEAD,
            "## Producers",
            "",
            ALL_TESTED,
            producers,
            "",
            f"What the tensors do not settle can be replaced by an override: {overridable}.",
            "",
            "## Layer families",
            "",
            families,
            "",
            "## Recognised and refused",
            "",
            refused,
            fixed,
            "- rope by layer type, partial or multimodal rope; quantised weights; biases of the MLP",
            "",
            TAIL,
        ]
    )


def _row(producer: Producer) -> tuple[str, ...]:
    flags = [f"settings in {_sections(producer)}"]
    flags += [f"`{own}` = `{setting}`" for setting, own in (producer.aliases or {}).items()]
    for flag, (default, whose) in (
        ("norm_output", producer.norm_output_default),
        ("norm_before_residual", producer.norm_before_residual_default),
    ):
        flags.append(f"`{flag}` absent: {_json(default)}, as {whose.replace(' when the key is absent', '')}")
    assumed = [*producer.assumed, *(f"{d.message} (finding `{d.code}`, {d.severity})" for d in producer.doubts)]
    return (
        f"{producer.title} (`{producer.name}`)<br>{producer.source}",
        "<br>".join([producer.reads, *(_ids(key) for key in producer.aux_id_keys), DEFAULT_IDS]),
        "<br>".join(flags),
        "<br>".join(assumed) or "-",
        producer.tested,
    )


def _ids(key: AuxIdKey) -> str:
    if key.convention is AuxIdConvention.boundary:
        meaning = "boundary ids" + ("" if key.is_settled else ", uncertain unless the first is 2")
    else:
        exception = "" if key.is_settled else "; boundary ids where the first is 2 or one has no such layer"
        meaning = f"layer outputs, so + 1{exception}"
    with_flag = "" if key.boundary_with is None else f"; boundary ids with `{key.boundary_with}` unless the first is 1"
    return f"layer ids `{key.label}`: {meaning}{with_flag}"


def _sections(producer: Producer) -> str:
    return ", then ".join(f"`{name}`" if name else "the top level" for name in producer.sections)


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    print(checkpoints_document(), end="")
