// Grid, axes, their labels, and the paper's strip behind its marks.
Nero.axes = (() => {
  "use strict";

  const { svg } = Nero.dom;

  function line(name, x1, y1, x2, y2) {
    return svg("line", { class: name, x1, y1, x2, y2 });
  }

  function xTick(frame, [value, label]) {
    const x = frame.x.to(value);
    return [
      line("grid", x, frame.top, x, frame.bottom),
      line("axis", x, frame.bottom, x, frame.bottom + 4),
      svg("text", { x, y: frame.bottom + 17, "text-anchor": "middle" }, label),
    ];
  }

  function yTick(frame, [value, label]) {
    const y = frame.y.to(value);
    return [
      line("grid", frame.left, y, frame.right + frame.strip, y),
      line("axis", frame.left - 4, y, frame.left, y),
      svg("text", { x: frame.left - 8, y, dy: "0.35em", "text-anchor": "end" }, label),
    ];
  }

  function strip(frame) {
    if (!frame.strip) return [];
    const place = { x: frame.right + 2, y: frame.top, width: frame.strip - 2, height: frame.bottom - frame.top };
    const middle = frame.right + frame.strip / 2;
    return [
      svg("rect", { class: "strip", ...place }),
      svg("text", { class: "name", x: middle, y: frame.height - 6, "text-anchor": "middle" }, "paper"),
    ];
  }

  function draw(frame, panel) {
    const middle = (frame.left + frame.right) / 2;
    return svg(
      "g",
      { class: "axes" },
      strip(frame),
      frame.ticks.x.flatMap((tick) => xTick(frame, tick)),
      frame.ticks.y.flatMap((tick) => yTick(frame, tick)),
      line("axis", frame.left, frame.top, frame.left, frame.bottom),
      line("axis", frame.left, frame.bottom, frame.right, frame.bottom),
      svg("text", { class: "name", x: middle, y: frame.height - 6, "text-anchor": "middle" }, panel.xlabel),
    );
  }

  return { draw };
})();
