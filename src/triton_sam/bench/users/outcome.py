"""What a run of many people showed, as figures and sentences."""

from __future__ import annotations

from collections import Counter

from triton_sam.bench.figures import Figure
from triton_sam.bench.samples import Series
from triton_sam.bench.users.generator import Generated, UsersLoad
from triton_sam.bench.users.tally import Actions, Tally

#: Above this share of a core, a load-generating process may be what is measured.
BUSY = 0.7
#: A step that comes later than this (p99, milliseconds) is felt in what the server is asked for.
LATE = 20.0
_PERCENTS = (50, 95, 99)
_MAX_MESSAGE = 160


def series(generated: Generated) -> list[Series]:
    """The latencies in milliseconds, as one round; what was never answered has no series."""
    return [
        Series(name, "ms", (tuple(spent * 1e3 for spent in actions.seconds),))
        for name, actions in _kinds(generated.tally).items()
        if actions.seconds
    ]


def figures(load: UsersLoad, generated: Generated) -> list[Figure]:
    """The lines of the table."""
    tally = generated.tally
    by_name = {each.name: each for each in series(generated)}
    lines: list[Figure] = []
    for name, actions in _kinds(tally).items():
        if name not in by_name:
            lines.append(Figure(f"{name}s answered", 0, "", detail=_counts(actions, load)))
            continue
        for percent in _PERCENTS:
            lines.append(
                Figure(
                    f"{name}, p{percent}",
                    by_name[name].percentile(percent),
                    "ms",
                    load.most_p95 if (name, percent) == ("newest hover", 95) else None,
                    _counts(actions, load) if percent == _PERCENTS[0] else "",
                    better="lower" if percent == _PERCENTS[0] else None,
                )
            )
    return [*lines, _share(tally), _errors(tally), *_own_use(generated)]


def notes(load: UsersLoad, generated: Generated) -> list[str]:
    """What limits the figures, a sentence each."""
    found = []
    busiest = max(generated.cpu)
    if busiest > BUSY:
        found.append(
            f"WARNING: a load-generating process used {busiest:.0%} of a core, so the generator may be the limit, "
            f"not the server: give more than --processes {len(generated.cpu)}, or leave it more cores"
        )
    if _delay(generated) > LATE:
        found.append(
            f"WARNING: 1 % of the steps came over {_delay(generated):.0f} ms late, because other programs used the "
            "generator's cores: run it on another machine, or with fewer --users"
        )
    for kind, message in generated.tally.messages.items():
        found.append(f"first {kind}: {' '.join(message.split())[:_MAX_MESSAGE]}")
    if generated.tally.skipped:
        found.append(f"{generated.tally.skipped} steps were left out: a person waits for an image, and after an error")
    return found


def about(load: UsersLoad) -> str:
    """The load in one line."""
    behaviour = load.behaviour
    return (
        f"{load.users} users for {load.seconds:g} s through {load.through}, {behaviour.hover_rate:g} hovers a second "
        f"while moving, a new image every {behaviour.image_seconds:g} s, at most {load.in_flight} hovers of each in "
        f"flight, seed {load.seed}, {load.process_count} load-generating processes"
    )


def _kinds(tally: Tally) -> dict[str, Actions]:
    return {
        "newest hover": tally.hovers,
        "last hover of a movement": tally.last_hovers,
        "click": tally.clicks,
        "new image": tally.images,
    }


def _counts(actions: Actions, load: UsersLoad) -> str:
    parts = [f"{actions.answered} answered of {actions.made}"]
    parts += [f"{actions.superseded} superseded"] if actions.superseded else []
    parts += [f"{actions.errors.total()} errors"] if actions.errors else []
    return f"{', '.join(parts)}; {actions.answered / load.seconds:.1f} a second"


def _share(tally: Tally) -> Figure:
    hovers = tally.hovers
    share = hovers.answered / hovers.made if hovers.made else float("nan")
    sent = hovers.superseded - tally.unsent
    detail = (
        f"{hovers.answered} of {hovers.made}; superseded: {sent} at the server, {tally.unsent} before they were sent"
    )
    return Figure("share of hovers computed", share, "", detail=detail)


def _errors(tally: Tally) -> Figure:
    by_action = {"hovers": tally.hovers, "clicks": tally.clicks, "images": tally.images}
    parts = [f"{name}: {_listed(actions.errors)}" for name, actions in by_action.items() if actions.errors]
    return Figure("errors", tally.errors.total(), "", detail="; ".join(parts))


def _listed(errors: Counter[str]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in errors.most_common())


def _own_use(generated: Generated) -> list[Figure]:
    each = ", ".join(f"{use:.2f}" for use in generated.cpu)
    lines = [Figure("CPU of the load generator", max(generated.cpu), "s/s", detail=f"busiest process; each: {each}")]
    detail = "how late it acted; not in the latencies"
    return [*lines, Figure("delay of the load generator, p99", _delay(generated), "ms", detail=detail)]


def _delay(generated: Generated) -> float:
    """Milliseconds by which 1 % of the steps came late."""
    late = generated.tally.late
    return Series("late", "ms", (tuple(spent * 1e3 for spent in late),)).percentile(99) if late else 0.0
