// The list of all runs: only the rows in sight of the reader are made, fifty at a time.
Nero.runList = (() => {
  "use strict";

  const { html, runLink } = Nero.dom;
  const { significant, measured, duration, count } = Nero.numbers;
  const PAGE = 50;
  const NAMES = {
    id: "Run",
    task: "Task",
    optim: "Optimiser",
    lr: "η",
    seed: "Seed",
    status: "Status",
    final: "Final",
    metric: "Metric",
    seconds: "Time",
    device: "Device",
  };
  const NUMERIC = new Set(["lr", "seed", "final", "seconds"]);
  const SHOWN = {
    id: (run) => runLink(run.id, run.id),
    lr: (run) => significant(run.lr),
    final: (run) => measured(run.final),
    seconds: (run) => duration(run.seconds),
    status: (run) => html("span", { class: "status", "data-status": run.status }, run.status),
  };

  function text(run, field) {
    return SHOWN[field]?.(run) ?? String(run[field] ?? "–");
  }

  function kind(field) {
    return NUMERIC.has(field) ? "number" : null;
  }

  function compare(one, other) {
    if (one === other) return 0;
    return one < other ? -1 : 1;
  }

  // Without a value last, whichever way the rest is sorted.
  function sorted(runs, field, direction) {
    const known = runs.filter((run) => (run[field] ?? null) !== null);
    const unknown = runs.filter((run) => (run[field] ?? null) === null);
    return [...known.sort((one, other) => direction * compare(one[field], other[field])), ...unknown];
  }

  class List {
    constructor({ runs, columns = Object.keys(NAMES) }) {
      this.columns = columns;
      this.total = runs.length;
      this.ordered = [...runs];
      this.matches = () => true;
      this.sort = { field: null, direction: 1 };
      this.heads = new Map(columns.map((field) => [field, this.head(field)]));
      this.body = html("tbody");
      this.count = html("p", { class: "count", role: "status" });
      this.more = html("button", { type: "button", class: "more", click: () => this.extend() });
      this.filters = Nero.runFilters.build(runs, (matches) => this.filter(matches));
      this.filter(this.matches);
    }

    get elements() {
      const table = html("table", {}, html("thead", {}, html("tr", {}, [...this.heads.values()])), this.body);
      const scroll = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All runs" }, table);
      return [this.filters, this.count, scroll, this.more];
    }

    head(field) {
      const press = () => this.sortBy(field);
      const attributes = { type: "button", class: "sort", "data-sort": field, click: press };
      return html("th", { scope: "col", class: kind(field) }, html("button", attributes, NAMES[field] ?? field));
    }

    row(run) {
      const cells = this.columns.map((field) => html("td", { class: kind(field) }, text(run, field)));
      return html("tr", { "data-run": run.id }, cells);
    }

    sortBy(field) {
      const again = this.sort.field === field;
      this.sort = { field, direction: again ? -this.sort.direction : 1 };
      this.ordered = sorted(this.ordered, field, this.sort.direction);
      for (const [name, head] of this.heads) {
        if (name === field) head.setAttribute("aria-sort", this.sort.direction > 0 ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      }
      this.filter(this.matches);
    }

    filter(matches) {
      this.matches = matches;
      this.found = this.ordered.filter(matches);
      this.body.replaceChildren();
      this.extend();
    }

    extend() {
      const from = this.body.childElementCount;
      this.body.append(...this.found.slice(from, from + PAGE).map((run) => this.row(run)));
      const shown = this.body.childElementCount;
      const left = this.found.length - shown;
      this.more.hidden = left === 0;
      this.more.textContent = `Show ${count(Math.min(PAGE, left))} more`;
      const of = this.found.length === this.total ? "" : ` of ${count(this.total)}`;
      const listed = left ? `, first ${count(shown)} listed` : "";
      this.count.textContent = `${count(this.found.length)}${of} runs${listed}`;
      if (from && shown > from) this.body.children[from].querySelector("a")?.focus();
    }
  }

  async function build(place) {
    place.textContent = "Unpacking the runs …";
    try {
      place.replaceChildren(...new List(await Nero.runsData.load()).elements);
    } catch (error) {
      place.textContent = `The runs cannot be read: ${error.message}`;
    }
  }

  return { build };
})();
