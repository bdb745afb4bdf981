// Each figure: its panels, and a switch for each group of curves that all of them share.
Nero.figures = (() => {
  "use strict";

  const { html } = Nero.dom;
  const all = [];

  // Group -> colour. The paper's marks come first: they are in house order, whichever runs are still missing.
  function groupsOf(panels) {
    const found = new Map();
    const drawn = [...panels.flatMap(({ marks = [] }) => marks), ...panels.flatMap(({ series }) => series)];
    for (const { group } of drawn) found.set(group, null);
    for (const group of found.keys()) {
      const own = drawn.filter((part) => part.group === group);
      found.set(group, (own.find(({ whose }) => whose !== "authors") ?? own[0]).colour);
    }
    return found;
  }

  // Axes without anything on them would be made-up ones.
  function isEmpty({ series, marks = [], rule }) {
    return !series.length && !marks.length && !rule;
  }

  function switchFor(group, colour, press) {
    const swatch = Nero.colours.ink(html("span", { class: "swatch" }), colour);
    const attributes = { type: "button", class: "switch", "data-group": group, "aria-pressed": "true", click: press };
    return html("button", attributes, swatch, group);
  }

  class Figure {
    constructor(section, { panels }) {
      this.section = section;
      this.hidden = new Set();
      this.groups = groupsOf(panels);
      this.charts = panels.map((panel) => new Nero.Chart(panel));
      this.keys = this.charts.map((chart) => Nero.key.build(chart));
      this.switches = new Map(
        [...this.groups].map(([group, colour]) => [group, switchFor(group, colour, () => this.press(group))]),
      );
    }

    build() {
      const name = `Curves of ${this.section.querySelector("h2")?.textContent ?? "this figure"}`;
      const legend = html("div", { class: "legend", role: "group", "aria-label": name }, [...this.switches.values()]);
      const place = this.section.querySelector(".panels");
      if (this.groups.size) place.before(legend);
      place.append(...this.charts.map((chart, number) => this.panel(chart, number)));
    }

    panel(chart, number) {
      const { title, notes = [] } = chart.panel;
      const lines = notes.map((note) => html("p", {}, note));
      const head = html("div", { class: "panel-head" }, html("h3", {}, title), lines);
      const plot = isEmpty(chart.panel) ? html("p", { class: "empty" }, "No runs yet.") : chart.element;
      return html("article", { class: "panel", "data-panel": number }, head, plot, this.keys[number]);
    }

    press(group) {
      this.set(group, this.hidden.has(group));
      document.dispatchEvent(new Event("switched"));
    }

    set(group, visible) {
      if (!this.groups.has(group) || visible !== this.hidden.has(group)) return;
      if (visible) this.hidden.delete(group);
      else this.hidden.add(group);
      this.switches.get(group).setAttribute("aria-pressed", visible);
      this.charts.forEach((chart) => chart.hide(this.hidden));
      this.keys.forEach((key) => Nero.key.dim(key, this.hidden));
    }
  }

  function build(data) {
    for (const section of document.querySelectorAll("[data-figure]")) {
      const figure = data[section.dataset.figure];
      if (!figure?.panels?.length) continue;
      all.push(new Figure(section, figure));
      all.at(-1).build();
    }
  }

  return { build, all, switchFor };
})();
