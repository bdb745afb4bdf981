// Each figure: its panels, and a switch for each group of curves that all of them share.
Nero.figures = (() => {
  "use strict";

  const { html } = Nero.dom;
  const all = [];

  let order = []; // of groups: the paper's optimisers, then others as they come

  function placeOf(group) {
    return order.includes(group) ? order.indexOf(group) : order.length;
  }

  function inOrder(groups) {
    return [...groups].sort((one, other) => placeOf(one) - placeOf(other));
  }

  // Group -> colour.
  function groupsOf(panels) {
    const drawn = [...panels.flatMap(({ marks = [] }) => marks), ...panels.flatMap(({ series }) => series)];
    const found = new Map();
    for (const group of inOrder(new Set(drawn.map((part) => part.group)))) {
      const own = drawn.filter((part) => part.group === group);
      found.set(group, (own.find(({ whose }) => whose !== "authors") ?? own[0]).colour);
    }
    return found;
  }

  function switchFor(group, colour, press) {
    const swatch = Nero.colours.ink(html("span", { class: "swatch" }), colour);
    const attributes = { type: "button", class: "switch", "data-group": group, "aria-pressed": "true", click: press };
    return html("button", attributes, swatch, group);
  }

  // Epochs or wall-clock time, for all charts that have both.
  function timeSwitch() {
    const button = html("button", { type: "button", class: "switch time" }, "Wall-clock time");
    const show = () => button.setAttribute("aria-pressed", Nero.state.get("x") === "time");
    button.addEventListener("click", () => Nero.state.set("x", Nero.state.get("x") === "time" ? "" : "time"));
    Nero.state.follow("x", show);
    show();
    return button;
  }

  class Figure {
    constructor(section, { panels }) {
      this.section = section;
      this.hidden = new Set();
      this.groups = groupsOf(panels);
      this.charts = panels.map((panel, place) => new Nero.Chart(panel, `${section.id}-${place + 1}`));
      this.keys = this.charts.map((chart) => Nero.key.build(chart));
      this.switches = new Map(
        [...this.groups].map(([group, colour]) => [group, switchFor(group, colour, () => this.press(group))]),
      );
    }

    build() {
      const place = this.section.querySelector(".panels");
      const drawn = this.charts.some(({ whole }) => whole.series.length);
      if (drawn) {
        const name = `Curves of ${this.section.querySelector("h3")?.textContent ?? "this figure"}`;
        const timed = this.charts.some(({ whole }) => Nero.chartPanel.isTimed(whole));
        const switches = [...this.switches.values(), timed ? timeSwitch() : null];
        place.before(html("div", { class: "legend", role: "group", "aria-label": name }, switches));
      }
      place.append(...this.charts.map((chart, number) => this.panel(chart, number)));
    }

    panel(chart, number) {
      const { title, notes = [], series, rule } = chart.whole;
      const lines = [...notes, ...(rule && !series.length ? [rule.label] : [])].map((note) => html("p", {}, note));
      const head = html("div", { class: "panel-head" }, html("h4", {}, title), lines);
      const plot = series.length ? chart.element : html("p", { class: "empty" }, "No runs are logged yet.");
      return html("article", { class: "panel", "data-panel": number }, head, plot, this.keys[number]);
    }

    press(group) {
      this.set(group, this.hidden.has(group));
      keep();
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

  // In the address: groups hidden in every figure that has them, or in one, as figure5:SGD.
  function keep() {
    const groups = new Set(all.flatMap(({ hidden }) => [...hidden]));
    const words = [...groups].flatMap((group) => {
      const having = all.filter((figure) => figure.groups.has(group));
      const hiding = having.filter(({ hidden }) => hidden.has(group));
      return hiding.length === having.length ? [group] : hiding.map(({ section }) => `${section.id}:${group}`);
    });
    Nero.state.setList("hide", words);
    document.dispatchEvent(new Event("switched"));
  }

  function restore() {
    for (const word of Nero.state.list("hide")) {
      const [id, group] = word.includes(":") ? word.split(":") : [null, word];
      for (const figure of all) if (id === null || figure.section.id === id) figure.set(group, false);
    }
  }

  function build(data, names) {
    order = names;
    for (const section of document.querySelectorAll("[data-figure]")) {
      const figure = data[section.dataset.figure];
      if (!figure?.panels?.length) continue;
      all.push(new Figure(section, figure));
      all.at(-1).build();
    }
    restore();
  }

  return { build, all, inOrder, switchFor, timeSwitch, keep };
})();
