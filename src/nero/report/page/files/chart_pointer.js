// Mouse and touch: moving reads values, dragging zooms, a double click shows the whole again.
Nero.pointer = (() => {
  "use strict";

  const { clamp } = Nero.numbers;
  const STILL = 5; // pixels that a click may tremble
  const THIN = 14; // pixels: a box thinner than this is meant as a range of the other axis

  let touched = null; // the chart that a finger read last

  function local(chart, event) {
    const box = chart.plot.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  // What a drag selects; null while it may still be a click. Touch has x alone: up and down scroll the page.
  function selected(frame, from, to, touch) {
    const [across, along] = [Math.abs(to.x - from.x), Math.abs(to.y - from.y)];
    if (across < STILL && (touch || along < STILL)) return null;
    const wide = touch || along < THIN;
    const tall = !wide && across < THIN;
    const xs = [from.x, to.x].map((x) => clamp(x, frame.left, frame.right)).sort((a, b) => a - b);
    const ys = [from.y, to.y].map((y) => clamp(y, frame.top, frame.bottom)).sort((a, b) => a - b);
    const [left, right] = tall ? [frame.left, frame.right] : xs;
    const [top, bottom] = wide ? [frame.top, frame.bottom] : ys;
    return { left, right, top, bottom, wide };
  }

  function zoomTo(chart, box) {
    const { x, y } = chart.frame;
    if (box.right - box.left < 2 || box.bottom - box.top < 2) return;
    const range = [x.from(box.left), x.from(box.right)];
    const view = box.wide
      ? Nero.view.alongX(chart, range)
      : Nero.view.box(chart, range, [y.from(box.bottom), y.from(box.top)]);
    chart.show(view);
  }

  function hover(chart, at) {
    const { frame } = chart;
    if (frame.strip && at.x > frame.right) chart.readMarks();
    else chart.read(frame.x.from(clamp(at.x, frame.left, frame.right)), at.y);
  }

  function wire(chart) {
    const { plot } = chart;
    let from = null;
    let box = null;

    function stop() {
      from = box = null;
      chart.select(null);
    }

    plot.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !event.isPrimary) return;
      from = local(chart, event);
      if (event.pointerType !== "touch" || !chart.frame) return;
      touched = chart;
      hover(chart, from);
    });
    plot.addEventListener("pointermove", (event) => {
      if (!chart.frame || !event.isPrimary) return;
      const at = local(chart, event);
      const touch = event.pointerType === "touch";
      box = from && selected(chart.frame, from, at, touch);
      if (box && !plot.hasPointerCapture(event.pointerId)) plot.setPointerCapture(event.pointerId);
      chart.select(box);
      if (!box && !(touch && !from)) hover(chart, at);
    });
    plot.addEventListener("pointerup", () => {
      if (box) zoomTo(chart, box);
      stop();
    });
    plot.addEventListener("pointercancel", stop);
    plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch" && !from) chart.leave(); // a finger leaves as it lifts: what it read stays
    });
    plot.addEventListener("dblclick", () => chart.reset());
  }

  document.addEventListener("pointerdown", (event) => {
    if (touched && !touched.plot.contains(event.target)) touched.leave();
  });

  return { wire };
})();
