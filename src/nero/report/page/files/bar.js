// The bar that stays in sight: the navigation, switches for curves of all figures, the theme.
Nero.bar = (() => {
  "use strict";

  const MOST = 4; // switches that there is room for
  const SHARED = 2; // figures that a group must be in to have a switch here

  function keepInSight(link) {
    const frame = link.closest(".bar-nav");
    frame.scrollTo({ left: link.offsetLeft - frame.clientWidth / 2 + link.offsetWidth / 2 });
  }

  function mark(link) {
    link.setAttribute("aria-current", "location");
    keepInSight(link);
  }

  // The section that crosses a line just below the bar is the one being read.
  function followReading(links) {
    const follow = (entries) => {
      for (const { isIntersecting, target } of entries) {
        const link = links.find(({ hash }) => hash === `#${target.id}`);
        if (isIntersecting) mark(link);
        else link.removeAttribute("aria-current");
      }
    };
    const watcher = new IntersectionObserver(follow, { rootMargin: "-20% 0px -79% 0px" });
    for (const link of links) {
      const section = document.getElementById(link.hash.slice(1));
      if (section) watcher.observe(section);
    }
  }

  function sharedGroups() {
    const found = new Map();
    for (const { groups } of Nero.figures.all) {
      for (const [group, colour] of groups) found.set(group, { colour, count: (found.get(group)?.count ?? 0) + 1 });
    }
    const shared = [...found.keys()].filter((group) => found.get(group).count >= SHARED);
    return Nero.figures.inOrder(shared).map((group) => [group, found.get(group).colour]);
  }

  function state(group) {
    const having = Nero.figures.all.filter(({ groups }) => groups.has(group));
    const hiding = having.filter(({ hidden }) => hidden.has(group)).length;
    if (hiding === 0) return "true";
    return hiding === having.length ? "false" : "mixed";
  }

  function press(group) {
    const visible = state(group) !== "true";
    Nero.figures.all.forEach((figure) => figure.set(group, visible));
    Nero.figures.keep();
  }

  function buildSwitches(place) {
    const build = ([group, colour]) => Nero.figures.switchFor(group, colour, () => press(group));
    const switches = sharedGroups().slice(0, MOST).map(build);
    const show = () => switches.forEach((button) => button.setAttribute("aria-pressed", state(button.dataset.group)));
    place.append(...switches);
    place.hidden = !switches.length;
    document.addEventListener("switched", show);
    show();
  }

  function build() {
    const bar = document.getElementById("bar");
    followReading([...bar.querySelectorAll(".bar-nav a[href^='#']")]);
    buildSwitches(bar.querySelector(".bar-switches"));
    Nero.theme.wire(document.getElementById("theme"));
  }

  return { build };
})();
