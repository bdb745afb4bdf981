// The list of all runs: fifty rows at a time, with a column for each setting that differs between the runs listed.
Nero.runList = (() => {
  "use strict";

  const { html, runLink } = Nero.dom;
  const { significant, measured, duration, count } = Nero.numbers;
  const PAGE = 50;
  const MOST = 4; // columns of settings: more would not fit beside the others
  const NAMES = {
    choose: "",
    id: "Run",
    task_name: "Task",
    optim: "Optimiser",
    lr: "η",
    seed: "Seed",
    status: "Status",
    epochs: "Epochs",
    final: "Final",
    metric: "Metric",
    seconds: "Time",
    device: "Device",
  };
  const NUMERIC = new Set(["lr", "seed", "epochs", "final", "seconds"]);
  // Settings that have a column, or that follow from one.
  const KNOWN = /^(seed|optim_name|task_name|data|optim\.lr|optim\._|task\._|task\.epochs|task\.schedule)|_target_|_partial_/;
  const SHOWN = {
    choose: (run) => chooser(run),
    id: (run) => runLink(run.id, run.id),
    lr: (run) => significant(run.lr),
    epochs: ({ epochs_done: done, epochs }) => (done === epochs ? String(epochs) : `${done ?? 0} of ${epochs}`),
    final: (run) => measured(run.final),
    seconds: (run) => duration(run.seconds),
    status: (run) => html("span", { class: "status", "data-status": run.status }, run.status),
  };

  function chooser({ id }) {
    const change = (event) => Nero.overlay.choose(id, event.target.checked);
    const name = { "aria-label": `Show the curve of ${id}`, title: "Show its curve" };
    return html("input", { type: "checkbox", class: "choose", checked: Nero.overlay.isChosen(id), change, ...name });
  }

  function setting(run, field) {
    return field in NAMES ? run[field] : run.settings[field];
  }

  function nameOf(field) {
    return NAMES[field] ?? field.split(".").at(-1).replaceAll("_", " ");
  }

  function text(run, field) {
    return SHOWN[field]?.(run) ?? String(setting(run, field) ?? "–");
  }

  function kind(field) {
    return NUMERIC.has(field) ? "number" : field === "choose" ? "choice" : null;
  }

  // Settings in which two of these runs of one task and optimiser differ, the most common ones first.
  function differing(runs) {
    const seen = new Map(); // task, optimiser and key -> values
    for (const { task, optim, settings } of runs) {
      for (const [key, value] of Object.entries(settings)) {
        if (KNOWN.test(key)) continue;
        const place = `${task}\n${optim}\n${key}`;
        seen.set(place, (seen.get(place) ?? new Set()).add(value));
      }
    }
    const counts = new Map();
    for (const [place, values] of seen) {
      const key = place.split("\n")[2];
      if (values.size > 1) counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    return [...counts].sort(([, one], [, other]) => other - one).map(([key]) => key).slice(0, MOST);
  }

  function compare(one, other) {
    if (one === other) return 0;
    if (typeof one !== typeof other) return String(one) < String(other) ? -1 : 1;
    return one < other ? -1 : 1;
  }

  // Without a value last, whichever way the rest is sorted.
  function sorted(runs, field, direction) {
    const known = runs.filter((run) => (setting(run, field) ?? null) !== null);
    const unknown = runs.filter((run) => (setting(run, field) ?? null) === null);
    return [...known.sort((one, other) => direction * compare(setting(one, field), setting(other, field))), ...unknown];
  }

  class List {
    constructor({ runs }) {
      this.total = runs.length;
      this.ordered = [...runs];
      this.sort = { field: null, direction: 1 };
      this.headRow = html("tr");
      this.body = html("tbody");
      this.count = html("p", { class: "count", role: "status" });
      this.more = html("button", { type: "button", class: "more", click: () => this.extend() });
      const [field, direction] = (Nero.state.get("sort") ?? "").split(" ");
      if (field) this.order(field, direction === "down" ? -1 : 1);
      this.filters = Nero.runFilters.build(runs, (matches) => this.filter(matches));
    }

    get elements() {
      const table = html("table", { class: "cards" }, html("thead", {}, this.headRow), this.body);
      const scroll = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All runs" }, table);
      return [this.filters, this.count, scroll, this.more];
    }

    head(field) {
      if (field === "choose") return html("th", { scope: "col" }, html("span", { class: "unseen" }, "Show curve"));
      const press = () => this.sortBy(field);
      const attributes = { type: "button", class: "sort", "data-sort": field, click: press };
      const direction = this.sort.direction > 0 ? "ascending" : "descending";
      const order = this.sort.field === field ? direction : null;
      return html("th", { scope: "col", class: kind(field), "aria-sort": order }, html("button", attributes, nameOf(field)));
    }

    row(run) {
      const cells = this.columns.map((field) => html("td", { class: kind(field), "data-head": nameOf(field) }, text(run, field)));
      return html("tr", { "data-run": run.id }, cells);
    }

    order(field, direction) {
      this.sort = { field, direction };
      this.ordered = sorted(this.ordered, field, direction);
    }

    sortBy(field) {
      const again = this.sort.field === field;
      this.order(field, again ? -this.sort.direction : 1);
      Nero.state.set("sort", `${field}${this.sort.direction < 0 ? " down" : ""}`);
      this.filter(this.matches);
      this.headRow.querySelector(`[data-sort="${field}"]`)?.focus();
    }

    filter(matches) {
      this.matches = matches;
      this.found = this.ordered.filter(matches);
      const fixed = Object.keys(NAMES);
      const at = fixed.indexOf("status");
      const several = new Set(this.found.map(({ device }) => device)).size > 1;
      const rest = fixed.slice(at).filter((field) => field !== "device" || several);
      this.columns = [...fixed.slice(0, at), ...differing(this.found), ...rest];
      this.headRow.replaceChildren(...this.columns.map((field) => this.head(field)));
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

  async function build(section) {
    const [place, overlay] = [section.querySelector(".browser"), section.querySelector(".overlay")];
    place.textContent = "Unpacking the runs …";
    try {
      const data = await Nero.packed.runs();
      Nero.overlay.build(overlay, data.byId);
      place.replaceChildren(...new List(data).elements);
    } catch (error) {
      place.textContent = `The runs cannot be read: ${error.message}`;
    }
  }

  return { build };
})();
