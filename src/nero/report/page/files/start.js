// Puts everything in its place, once the page has been read.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";

  const { figures = {}, samples = [] } = JSON.parse(document.getElementById("figures-data").textContent);
  Nero.figures.build(figures);
  Nero.samples.build(samples);
  Nero.bar.build();
  Nero.runDialog.build(samples);
  for (const place of document.querySelectorAll("#runs .browser")) Nero.runList.build(place);

  // The browser went to the section before the figures above it had any height.
  const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
  if (target) target.scrollIntoView({ behavior: "instant" });
});
