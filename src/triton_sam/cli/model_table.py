"""``triton-sam models``: the catalogue, with the state of each model on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Column, Table

from triton_sam.console import out
from triton_sam.models.catalog import CATALOG, chosen_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.models.vlm_catalog import VLM_CATALOG, get_vlm, is_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.repository.availability import ModelFacts, advice, availability, state_text, survey
from triton_sam.server.running import find_running, running_models
from triton_sam.settings import Settings

Model = ModelSpec | VlmSpec
_ALL: tuple[Model, ...] = (*CATALOG.values(), *VLM_CATALOG.values())
_FOOT = "`triton-sam models show ID` has its licence and next steps, `triton-sam setup ID` makes it ready."


def current_facts(settings: Settings) -> dict[str, ModelFacts]:
    """Id -> facts of every model, running servers included."""
    return survey(settings, running=running_models(find_running(settings.home)))


def print_models(settings: Settings) -> None:
    """One line for each model: id, size, state, what it is good for. Fits into 80 columns; a pipe gets whole lines."""
    facts = current_facts(settings)
    rows = [(model.id, _size(model), state_text(facts[model.id]), model.best_for) for model in _ALL]
    if not out.is_terminal:
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            out.print(f"{padded}  {row[3]}")
        return
    table = Table(
        *(Column(name, no_wrap=True) for name in ("id", "size", "state")),
        "good for",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    for row in rows:
        table.add_row(*row, style="" if availability(facts[row[0]]).is_here else "dim")
    out.print(table)
    out.print(_FOOT, soft_wrap=False)


def print_details(names: Sequence[str], settings: Settings) -> None:
    """Everything about the named models (a family's name is its default), or about all."""
    chosen: Sequence[Model] = [get_vlm(name) if is_vlm(name) else chosen_spec(name) for name in names]
    facts = current_facts(settings)
    for number, model in enumerate(chosen or _ALL):
        if number:
            out.print()
        out.print(f"{model.id}: {model.title}")
        for name, text in _details(model, facts[model.id]):
            out.print(f"  {name:10} {text}")


def _details(model: Model, facts: ModelFacts) -> list[tuple[str, str]]:
    rows = [
        ("state", state_text(facts)),
        ("next" if not facts.served_at else "address", advice(facts)),
        ("good for", model.best_for),
        ("size", f"{_size(model)}, {model.parameters:g} million parameters"),
        ("licence", model.licence),
    ]
    if isinstance(model, ModelSpec):
        made = "ready-made graphs" if model.files else "exported from its checkpoint, which needs torch once"
        if model.embedded:
            made = "weights that are part of triton-sam"
        elif model.assembly is not None:
            made = "the weights in ready-made graphs, and a memory that is part of triton-sam"
        rows += [("terms", model.terms), ("prompts", ", ".join(sorted(model.prompts))), ("made from", made)]
    else:
        bundled = "" if model.source else "; part of triton-sam"
        rows.append(("made from", f"its checkpoint, which torch runs{bundled}"))
    return [(name, text) for name, text in rows if text]


def _size(model: Model) -> str:
    return "included" if isinstance(model, ModelSpec) and model.embedded else size_text(model.size)


def size_text(count: int) -> str:
    """Bytes as megabytes or gigabytes."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
