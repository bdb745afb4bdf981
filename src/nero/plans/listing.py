"""Plans and outcomes as text: what is pending and how long it should take, what came of a sweep."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nero.plans.plan import Cell, CellState, Experiment, Summary, expected_seconds, pending
from nero.runs.columns import lay_out
from nero.runs.tracking import clock, final_text


def describe_plan(experiment: Experiment, states: Sequence[CellState], summaries: Mapping[str, Summary]) -> str:
    """Pending runs one by one, then their count and expected time, then what cannot be run yet."""
    runs = pending(states)
    lines = [f"{experiment.name}: {experiment.title}"]
    expected = _times(states, summaries)
    times = [expected[run.run_id] for run in runs]
    for run, seconds in zip(runs, times, strict=True):
        lines.append(f"  pending  {run.run_id}  {run.epochs} epochs  {clock(seconds) if seconds else 'time unknown'}")
    settled = len({run_id for state in states for run_id in state.logged})  # cells may share runs
    to_follow = sum(state.to_follow for state in states)
    known = [seconds for seconds in times if seconds is not None]
    words = [f"{settled} runs done", f"{len(runs)} pending"]
    if to_follow:
        words.append(f"{to_follow} repeats to follow once the searches are done")
    if known:
        unknown = f", {len(runs) - len(known)} of unknown length" if len(known) < len(runs) else ""
        words.append(f"{clock(sum(known))} expected one after another{unknown}")
    lines.append("  " + "; ".join(words))
    for reason in dict.fromkeys(state.cell.to_come for state in states if state.cell.to_come):
        count = sum(state.cell.run_count for state in states if state.cell.to_come == reason)
        lines.append(f"  {reason} ({count} runs)")
    return "\n".join(lines)


def _times(states: Sequence[CellState], summaries: Mapping[str, Summary]) -> dict[str, float | None]:
    """Expected seconds of each pending run: from runs of the experiment in the same arithmetic, else from all runs.

    Summaries do not say the arithmetic of a run; the cell that asked for it does.
    """
    alike: dict[tuple[str, str, Any], dict[str, Summary]] = {}
    for state in states:
        alike.setdefault(_kind(state.cell), {}).update(state.logged)
    return {
        run.run_id: expected_seconds(run, alike[_kind(state.cell)]) or expected_seconds(run, summaries)
        for state in states
        for run in state.pending
    }


def _kind(cell: Cell) -> tuple[str, str, Any]:
    return cell.task, cell.optim, cell.setting("precision")


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
