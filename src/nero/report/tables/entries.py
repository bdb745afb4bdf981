"""The text of one entry of a table: our result, the paper's, and the verdict."""

from nero.report import cells
from nero.report.cells import CellStatus
from nero.report.figures import style
from nero.report.tables.sheets import RunLink, Text
from nero.report.tables.table import Entry
from nero.report.units import DECIMALS, number, rate, signed


def entry_text(entry: Entry) -> Text:
    """Our result: "11.16 ± 0.17" with n and learning rate, or why there is none."""
    state, cell = entry.state, entry.cell
    problems = cells.problems(state)
    details: list[str | None] = []
    if entry.mean is not None and state.leading_lr is not None:
        details = [
            f"n = {entry.n}" + (f" of {len(cell.seeds)}" if entry.n < len(cell.seeds) else ""),
            f"{problems['diverged']} diverged" if "diverged" in problems else None,
            f"η = {rate(state.leading_lr)}",
        ]
    if entry.status is not CellStatus.MISSING:
        details += [problems.get("search incomplete"), precision_text(entry)]
    # The seeds at the leading learning rate or, if none leads, the diverged runs of the search.
    links = [RunLink.to(run, f"seed {run['seed']}") for run in entry.runs] or [
        RunLink.to(run, f"η = {rate(run['lr'])}") for run in state.search.values() if run is not None
    ]
    return Text(
        value(entry),
        ", ".join(filter(None, details)),
        entry.rank,
        runs=tuple(links),
        cell="|".join((cell.task, cell.label, cells.variant_as_typed(cell.variant), cell.optim)),
        verdict=entry.verdict or "",
    )


def narrow_entry(entry: Entry, seeds: int | None) -> Text:
    """The same in short; an asterisk marks a preliminary result. n is left out if it is `seeds`."""
    if entry.mean is None:
        return Text(value(entry))
    details = ["" if entry.n == seeds else f"n = {entry.n}"]
    details += [] if entry.state.leading_lr is None else [f"η = {rate(entry.state.leading_lr)}"]
    return Text(value(entry) + "*" * (not entry.complete), ", ".join(filter(None, details)), entry.rank)


def narrow_published(entry: Entry, seeds: int | None) -> Text:
    text = published_text(entry)
    return text._replace(detail=text.detail.removeprefix(f"n = {seeds}, "))


def secondary_text(entry: Entry, name: str) -> Text:
    second = entry.secondary
    return Text(_spread(second.mean, second.std, DECIMALS) if second and second.name == name else "")


def value(entry: Entry) -> str:
    """The mean and its deviation, or why there is none."""
    if entry.mean is not None:
        return _spread(entry.mean, entry.std, entry.digits)
    return str(CellStatus.MISSING if entry.status is CellStatus.MISSING else CellStatus.DIVERGED)


def _spread(mean: float, std: float | None, digits: int) -> str:
    return number(mean, digits) + (f" ± {number(std, digits)}" if std is not None else "")


def precision_text(entry: Entry) -> str:
    """The arithmetic of the cell's runs, if it is not that of most cells of its row."""
    return style.precision(entry.marked_precision) if entry.marked_precision else ""


def verdict_text(entry: Entry) -> Text:
    """Such as "agrees: +0.28 [-0.04, +0.60] (preliminary)"."""
    compared = entry.verdict not in (None, CellStatus.MISSING, CellStatus.INCOMPLETE)
    return Text(
        verdict_words(entry), "preliminary" if compared and not entry.complete else "", verdict=entry.verdict or ""
    )


def verdict_words(entry: Entry) -> str:
    """The verdict and the difference that it follows from."""
    if entry.comparison is None:
        return ""
    verdict, *difference = entry.comparison
    shown = [signed(end, entry.digits) for end in difference if end is not None]
    return f"{verdict}: {shown[0]} [{shown[1]}, {shown[2]}]" if shown else str(verdict)


def difference_text(entry: Entry) -> Text:
    """Such as "+0.28 ± 0.32": the difference and half the width of its interval, marked if this does not contain 0."""
    if entry.comparison is None:
        return Text("")
    verdict, mean, low, high = entry.comparison
    if mean is None or low is None or high is None:
        return Text(str(verdict) if verdict is CellStatus.DIVERGED else "")
    mark = "†" if verdict.differs else ""
    return Text(f"{signed(mean, entry.digits)} ± {number((high - low) / 2, entry.digits)}{mark}")


def published_text(entry: Entry) -> Text:
    """The paper's result."""
    theirs = entry.published
    if theirs is None:
        return Text("")
    shown = _spread(theirs.mean, theirs.std, entry.digits)
    return Text(shown, f"n = {theirs.n}, η = {rate(theirs.lr)}", entry.published_rank)
