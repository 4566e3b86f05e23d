"""Python that reproduces the explorer's state."""

from __future__ import annotations

from amos.explorer.sizes import settings_of
from amos.explorer.state import State
from amos.explorer.subject import Offer, Subject, extents_of
from amos.mapping import Mapping

#: Schedules that are drawn for a prediction.
SAMPLES = 32

_JUDGED = """\
op = amos.operators.resolve({resolve})
intrinsic = amos.intrinsics.{intrinsic}
{sized}matching = [  # {loops}
{rows}]

print(amos.check_matching(op, intrinsic, matching, rule={rule!r}{order}))
"""
_SIZED = """\
machine = amos.machines.get({machine!r}, [intrinsic])
intrinsic, machine = resize(intrinsic, machine, {settings!r})
"""
_MAPPED = """
space = amos.enumerate_mappings(op, intrinsic, rule={rule!r}{commute})
mapping = space.find({name!r})
physical = mapping.physical()
print(mapping)
print(physical)
print(f"{{physical.calls}} calls, utilization {{physical.utilization:.1%}}")
"""
_PREDICTED = """
{machine}best = best_sampled(mapping, machine, {samples}, np.random.default_rng(0))
if best is not None:
    prediction, candidate = best
    print(f"{{prediction.seconds * 1e6:.4g}} us: {{prediction.bound}}")
    print(candidate.schedule)
"""


def script(state: State, subject: Subject, offer: Offer, mapping: Mapping | None) -> str:
    """Write a program that judges the matching and, if a rule accepts it, predicts it."""
    unit, rule, machine = subject.space.intrinsic, subject.space.rule, subject.machine
    resolve = [repr(state.operator)]
    if extents := extents_of(state.extents):
        resolve.append(f"extents={extents!r}")
    resolve += [f"{k}={v!r}" for k in ("dtype", "layout") if (v := getattr(state, k))]
    rows = ""
    for t, step in enumerate(unit.iterations):
        rows += f"    {[int(a == t) for a in subject.assignment]},  # {step.name}\n"
    file, settings, looked_up = offer.files.get(state.intrinsic), settings_of(state.sizes), ""
    if settings and machine is not None:
        looked_up = _SIZED.format(machine=machine.name, settings=settings)
    text = _JUDGED.format(
        resolve=", ".join(resolve),
        intrinsic=f"load({file!r})" if file else f"get({state.intrinsic!r})",
        sized=looked_up,
        loops=", ".join(it.name for it in subject.space.operator.iterations),
        rows=rows,
        rule=rule,
        order="" if subject.as_given else f", order={subject.order}",
    )
    start = "import amos\n" + ("from amos.explore.sweep import resize\n" if looked_up else "")
    if mapping is None:
        return f"{start}\n{text}"
    if mapping.rule != rule:
        text += f"\n# Refused under rule {rule!r}; {mapping.rule!r} makes this of it."
    commute = "" if subject.as_given else ", commute=True"
    text += _MAPPED.format(rule=mapping.rule, commute=commute, name=mapping.name)
    if machine is None or unit.name not in machine.peaks or machine.name in offer.machines:
        return f"{start}\n{text}"
    again = "" if looked_up else f"machine = amos.machines.get({machine.name!r}, [intrinsic])\n"
    text += _PREDICTED.format(machine=again, samples=SAMPLES)
    more = "from amos.explore.sampled import best_sampled\n"
    start = start.replace("import amos\n", f"import amos\n{more}", 1)
    return f"import numpy as np\n\n{start}\n{text}"
