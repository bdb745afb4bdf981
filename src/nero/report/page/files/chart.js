// One panel's plot: what it shows, and what is read off it.
Nero.Chart = (() => {
  "use strict";

  const { html, svg } = Nero.dom;
  const HELP = "Arrow keys read values, plus and minus zoom, 0 shows the whole.";
  let made = 0;

  class Chart {
    constructor(panel) {
      this.panel = panel;
      this.base = { x: panel.xlim, y: panel.ylim };
      this.view = this.base;
      this.hidden = new Set(); // groups
      this.cursor = null; // the x that is read, if one is
      this.frame = null; // the layout, once there is room for one
      this.clip = `clip-${++made}`;
      this.build();
      Nero.pointer.wire(this);
      Nero.keys.wire(this);
      new ResizeObserver(() => this.draw()).observe(this.plot);
    }

    build() {
      const { panel } = this;
      this.canvas = svg("svg", { "aria-hidden": "true", focusable: "false" });
      this.tooltip = html("div", { class: "tooltip", "aria-hidden": "true", hidden: true });
      this.live = html("p", { class: "unseen readout", "aria-live": "polite" });
      this.resetButton = html("button", { type: "button", class: "reset", hidden: true }, "Reset zoom");
      this.resetButton.addEventListener("click", () => {
        this.reset();
        this.plot.focus();
      });
      const label = `${panel.title ? `${panel.title}: ` : ""}${panel.ylabel} by ${panel.xlabel}. ${HELP}`;
      const focus = { tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": label };
      this.plot = html("div", { class: "plot", ...focus }, this.canvas, this.tooltip);
      const head = html("div", { class: "chart-head" }, html("p", { class: "ylabel" }, panel.ylabel), this.resetButton);
      this.element = html("div", { class: "chart" }, head, this.plot, this.live);
    }

    get shown() {
      return this.panel.series.filter(({ group }) => !this.hidden.has(group));
    }

    get zoomed() {
      return this.view !== this.base;
    }

    draw() {
      if (!this.plot.clientWidth) return;
      this.frame = Nero.layout.compute(this);
      const { frame, panel } = this;
      this.canvas.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
      this.overlay = svg("g");
      this.canvas.replaceChildren(
        Nero.axes.draw(frame, panel),
        ...Nero.curves.draw(frame, panel, this.shown, this.clip),
        Nero.curves.drawMarks(frame, panel, this.hidden, this.clip),
        this.overlay,
      );
      this.resetButton.hidden = !this.zoomed;
      this.plot.dataset.zoomed = this.zoomed;
      const ends = [...this.view.x, ...this.view.y];
      this.plot.dataset.view = ends.map((end) => Nero.numbers.significant(end, 6)).join(" ");
      if (this.cursor !== null) this.read(this.cursor);
    }

    show(view) {
      if (view === this.view) return;
      this.view = view;
      this.draw();
    }

    reset() {
      this.show(this.base);
    }

    hide(groups) {
      this.hidden = groups;
      this.draw();
    }

    // The crosshair to the point nearest to x among those in view; `height` in pixels tells which curve is meant.
    read(x, height = null) {
      const [from, until] = this.view.x;
      const places = Nero.points.places(this.shown).filter((place) => place >= from && place <= until);
      if (!places.length) return this.leave();
      const pixels = places.map((place) => this.frame.x.to(place)); // an axis may be logarithmic
      this.cursor = places[Nero.points.nearestPlace(pixels, this.frame.x.to(x))];
      const values = Nero.points.valuesAt(this.shown, this.cursor);
      const off = ({ mean }) => Math.abs(this.frame.y.to(mean) - height);
      const nearest = height === null ? null : values.toSorted((one, other) => off(one) - off(other))[0];
      this.overlay.replaceChildren(Nero.crosshair.draw(this.frame, this.cursor, values));
      const table = Nero.tooltip.table(this.panel, this.cursor, values, nearest);
      Nero.tooltip.show(this, table, this.frame.x.to(this.cursor));
      this.plot.dataset.cursor = this.cursor;
    }

    readMarks() {
      this.leave();
      const marks = this.panel.marks.filter(({ group }) => !this.hidden.has(group));
      if (marks.length) Nero.tooltip.show(this, Nero.tooltip.markList(marks), this.frame.right);
    }

    say() {
      const values = Nero.points.valuesAt(this.shown, this.cursor);
      this.live.textContent = Nero.tooltip.sentence(this.panel, this.cursor, values);
    }

    sayView() {
      const [from, until] = this.view.x.map((x) => Nero.numbers.significant(x));
      this.live.textContent = `${this.panel.xlabel} ${from} to ${until}`;
    }

    leave() {
      this.cursor = null;
      this.overlay?.replaceChildren();
      Nero.tooltip.hide(this);
      delete this.plot.dataset.cursor;
    }

    select(box) {
      if (!box) return this.overlay?.querySelector(".selection")?.remove();
      this.leave();
      this.overlay.replaceChildren(Nero.crosshair.selection(box));
    }

    // One series before all others, or none.
    lead(place) {
      this.canvas.classList.toggle("led", place !== null);
      for (const part of this.canvas.querySelectorAll("[data-series]")) {
        part.classList.toggle("lead", part.dataset.series === String(place));
      }
    }
  }

  return Chart;
})();
