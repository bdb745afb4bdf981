// What a panel's series hold at an x, and between two.
Nero.points = (() => {
  "use strict";

  const { isNumber } = Nero.numbers;

  function nearestPlace(xs, x) {
    let [low, high] = [0, xs.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  }

  // Half way to its neighbours a point still stands for its series: curves need not be logged at the same places.
  function reach(xs, place) {
    const before = place > 0 ? xs[place] - xs[place - 1] : 0;
    const after = place < xs.length - 1 ? xs[place + 1] - xs[place] : 0;
    return Math.max(before, after) / 2;
  }

  function valueAt(series, x) {
    if (!series.x.length) return null;
    const place = nearestPlace(series.x, x);
    const found = series.x[place];
    if (Math.abs(found - x) > reach(series.x, place) || !isNumber(series.mean[place])) return null;
    const [low, high] = [series.low?.[place], series.high?.[place]];
    return { series, x: found, mean: series.mean[place], low, high, ranged: isNumber(low) && isNumber(high) };
  }

  function valuesAt(shown, x) {
    return shown.map((series) => valueAt(series, x)).filter((value) => value !== null);
  }

  function places(shown) {
    const all = shown.flatMap((series) => series.x.filter((_, place) => isNumber(series.mean[place])));
    return [...new Set(all)].sort((one, other) => one - other);
  }

  function smallestStep(shown) {
    const xs = places(shown);
    return xs.slice(1).reduce((least, x, place) => Math.min(least, x - xs[place]), Infinity);
  }

  // Lowest and highest value drawn for x between two ends; null where there is none.
  function extent(shown, [from, until], positive) {
    let [low, high] = [Infinity, -Infinity];
    for (const series of shown) {
      series.x.forEach((x, place) => {
        if (x < from || x > until) return;
        for (const value of [series.mean[place], series.low?.[place], series.high?.[place]]) {
          if (!isNumber(value) || (positive && value <= 0)) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      });
    }
    return low <= high ? [low, high] : null;
  }

  return { nearestPlace, valuesAt, places, smallestStep, extent };
})();
