"""Plans and the outcomes of sweeps as text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nero.plans.expected import Estimate, Expected, device_here, expected, timed_on
from nero.plans.plan import CellState, Experiment, Summary, pending
from nero.runs.formatting import clock, final_text, lay_out


def describe_plan(
    experiment: Experiment,
    states: Sequence[CellState],
    summaries: Mapping[str, Summary],
    here: str | None = None,
    others: Sequence[CellState] = (),
) -> str:
    """Pending runs one by one, then their number and expected time, then what cannot be run yet.

    Args:
        here: this machine's hardware, as summaries name it (default: asked of the machine)
        others: cells that are not to be run, whose logged runs show how long others take
    """
    here = here or device_here()
    device = timed_on(summaries, here)
    runs = pending(states)
    lines = [f"{experiment.name}: {experiment.title}"]
    left = expected(states, summaries, device, others) if device else None
    times = left.runs if left else {}
    lines += [f"  pending  {run.run_id}  {run.epochs} epochs  {_duration(times.get(run.run_id))}" for run in runs]
    settled, to_follow = count_logged(states), sum(state.to_follow for state in states)
    repeats = f"; {to_follow} repeats to follow once the searches are done" if to_follow else ""
    lines.append(f"  {settled} runs done; {len(runs)} pending{repeats}")
    if runs and left:
        lines.append(f"  {describe_expected(left)}")
    if runs and device != here:
        lines.append(f"  expected on this machine ({here}): unknown")
    missing = Counter[str]()
    for state in states:
        missing.update({state.cell.missing_config: state.cell.run_count} if state.cell.missing_config else {})
    lines += [f"  {reason} ({count} runs)" for reason, count in missing.items()]
    return "\n".join(lines)


def count_logged(states: Iterable[CellState]) -> int:
    """The number of settled runs; cells may share some."""
    return len({run_id for state in states for run_id in state.logged})


def describe_logged(experiment: Experiment, states: Sequence[CellState]) -> str:
    """How to train what is logged already once more; nothing if nothing is."""
    if not (logged := count_logged(states)):
        return ""
    whole = logged + len(pending(states)) + sum(state.to_follow for state in states)
    reruns = f"nero sweep {experiment.name} store=DIR reruns them in a store of its own"
    if experiment.is_shipped and not all(state.cell.setting("data") == "embedded" for state in states):
        reruns = f"make {experiment.name} FRESH=1 reruns them in a store of its own, as does store=DIR"
    return f"{logged} of {whole} runs are logged already; {reruns}"


def _duration(estimate: Estimate | None) -> str:
    if estimate is None:
        return "time unknown"
    return f"{estimate.qualifier}{clock(estimate.seconds)}"


def describe_expected(left: Expected) -> str:
    """Such as "expected on NVIDIA H200: 4:10:00 (4:10:00 of GPU-bound runs, 2:30:00 of CPU-bound ones beside them)"."""
    text = f"expected on {left.device}: {clock(left.seconds)}"
    if left.gpu and left.cpu:
        text += f" ({clock(left.gpu)} of GPU-bound runs, {clock(left.cpu)} of CPU-bound ones beside them)"
    if left.bounds:
        text += f"; only an upper bound is known for {_runs(left.bounds)}"
    if left.rough:
        text += f"; only a rough estimate, from runs with other settings, for {_runs(left.rough)}"
    if left.unknown:
        text += f"; {_runs(left.unknown)} of unknown length not counted"
    return text


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def describe_outcomes(outcomes: Iterable[Mapping[str, Any]]) -> str:
    """One line per run of a sweep: status, final metric, time."""
    rows = [("run", "status", "final", "time")]
    for outcome in outcomes:
        final, metric = final_text(outcome), (outcome.get("metric") or {}).get("key", "")
        rows.append(
            (
                str(outcome["run_id"]),
                str(outcome["status"]) + (" (already)" if outcome.get("skipped") else ""),
                f"{metric} {final}" if final else str(outcome.get("message") or "-"),
                clock(outcome["seconds"]) if outcome.get("seconds") is not None else "-",
            )
        )
    return lay_out(rows)
