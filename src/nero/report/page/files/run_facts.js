// The words and numbers of one run: results, where it lies, its config, each of its starts.
Nero.runFacts = (() => {
  "use strict";

  const { html } = Nero.dom;
  const { isNumber, significant, measured, duration, energy } = Nero.numbers;

  function facts(pairs) {
    const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
    const rows = known.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)));
    return html("dl", { class: "facts" }, rows);
  }

  function final({ final: value, metric, goal }) {
    const arrow = { min: " ↓", max: " ↑" }[goal] ?? "";
    return [`Final ${metric ?? "value"}${arrow}`, measured(value)];
  }

  function epochs({ epochs_done: done, epochs: all }) {
    return done === all ? String(all) : `${done ?? 0} of ${all}`;
  }

  // The driver counts for the whole card, whoever computes on it.
  function used({ joules, gpu_processes: sharers }) {
    if (sharers === 1) return energy(joules);
    return `${energy(joules)}, ${sharers ? `shared by up to ${sharers} processes` : "shared by an unknown number"}`;
  }

  function results(run, store) {
    return facts([
      final(run),
      ["Task", run.task_name],
      ["Optimiser", run.optim],
      ["Learning rate η", significant(run.lr)],
      ["Seed", String(run.seed)],
      ["Status", html("span", { class: "status", "data-status": run.status }, run.status)],
      ["Data", run.data],
      ["Epochs", epochs(run)],
      ["Time", duration(run.seconds)],
      ["Energy of the GPU", isNumber(run.joules) ? used(run) : null],
      ["Device", run.device],
      ["Path", html("code", { class: "path" }, `${store}/${run.task}/${run.id}`)],
    ]);
  }

  function versions(all) {
    return Object.entries(all ?? {})
      .map(([name, version]) => `${name} ${version}`)
      .join(", ");
  }

  function commit({ commit: id, dirty }) {
    if (!id) return null;
    return [html("code", {}, id), dirty ? " with uncommitted changes" : ""];
  }

  function start(one) {
    const cpus = isNumber(one.cpus) ? `${one.cpus} CPUs` : null;
    const machine = [one.device, one.platform, cpus].filter(Boolean).join(", ");
    const when = String(one.started ?? "time unknown").replace("T", " ").replace("Z", " UTC");
    const rows = facts([
      ["Commit", commit(one)],
      ["Machine", machine],
      ["Versions", versions(one.versions)],
      ["Command", one.command ? html("code", {}, one.command) : null],
    ]);
    return html("li", {}, html("p", { class: "when" }, when), rows);
  }

  function part(title, ...content) {
    return html("section", { class: "part" }, html("h3", {}, title), content);
  }

  function text(title, content) {
    if (!content) return null;
    return part(title, html("pre", { tabindex: "0", role: "region", "aria-label": title }, content));
  }

  function starts(provenance) {
    if (!provenance?.length) return null;
    const title = provenance.length > 1 ? `${provenance.length} starts` : "Start";
    return part(title, html("ol", { class: "starts" }, provenance.map(start)));
  }

  return { results, text, starts, part };
})();
