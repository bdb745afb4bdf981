// Numbers as a reader wants them.
Nero.numbers = (() => {
  "use strict";

  const UNITS = [["MJ", 1e6], ["kJ", 1e3], ["J", 1]];

  function isNumber(value) {
    return typeof value === "number" && Number.isFinite(value);
  }

  function significant(value, digits = 4) {
    if (!isNumber(value)) return "–";
    const rounded = Number(value.toPrecision(digits));
    const size = Math.abs(rounded);
    return size >= 1e7 || (size > 0 && size < 1e-5) ? rounded.toExponential() : String(rounded);
  }

  // With the zeros that a measurement has at its end, so that columns line up.
  function measured(value) {
    const text = isNumber(value) ? value.toPrecision(4) : "–";
    return text.includes("e") ? significant(value) : text;
  }

  function range(low, high) {
    return `${measured(low)} to ${measured(high)}`;
  }

  function duration(seconds) {
    if (!isNumber(seconds)) return "–";
    if (seconds < 60) return `${significant(seconds, 3)} s`;
    const whole = Math.round(seconds);
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
    return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
  }

  function energy(joules) {
    const [unit, size] = UNITS.find(([, least]) => joules >= least) ?? ["J", 1];
    return `${significant(joules / size)} ${unit}`;
  }

  function count(value) {
    return value.toLocaleString("en-GB");
  }

  function clamp(value, low, high) {
    return Math.min(Math.max(value, low), high);
  }

  return { isNumber, significant, measured, range, duration, energy, count, clamp };
})();
