"use strict";
(() => {
  const data = JSON.parse(document.getElementById("steps").textContent);
  const slider = document.getElementById("step");
  const strategy = document.getElementById("strategy");
  const width = 124, row = 24;
  const marks = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"};
  const escape = text => String(text).replace(/[&<>"']/g, mark => marks[mark]);
  const show = token => escape(token.replace(/\n/g, "\u21b5").replace(/ /g, "\u00b7"));

  function drawArc(slot, index, count, arc, share, kind, middle) {
    const [rank, token, score] = arc;
    const left = 20 + slot * width, right = left + width;
    const y = middle + (index - (count - 1) / 2) * row;
    const about = `${token}, rank ${rank + 1}, score ${score === null ? "-inf" : score}`;
    return `<g class="${kind}"><title>${escape(about)}</title>` +
      `<path class="arc" stroke-width="${(0.7 + 4 * share).toFixed(2)}" d="M${left} ${middle} ` +
      `C${left + 30} ${y} ${left + 30} ${y} ${left + width / 2} ${y} ` +
      `S${right - 30} ${y} ${right} ${middle}"/>` +
      `<text x="${left + width / 2}" y="${y - 4}" text-anchor="middle">${show(token)}</text></g>`;
  }

  function shares(arcs) {
    const scores = arcs.map(arc => arc[2] === null ? -Infinity : arc[2]);
    const best = Math.max(...scores);
    const weights = scores.map(score => best === -Infinity ? 1 : Math.exp(score - best));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return weights.map(weight => weight / total);
  }

  function drawLattice(step, drafts) {
    const most = Math.max(...step.arcs.map(arcs => arcs.length));
    const height = row * (most + 1) + 20, middle = height / 2;
    const parts = [];
    step.arcs.forEach((arcs, slot) => {
      const weights = shares(arcs);
      const drafted = new Set(drafts.paths.map(path => path[slot]));
      arcs.forEach((arc, index) => {
        const greedy = arc[0] === step.wanted[slot];
        const kind = (drafted.has(arc[0]) ? "drafted " : "") + (greedy ? "greedy " : "") +
          (greedy && slot < drafts.accepted ? "kept" : "");
        parts.push(drawArc(slot, index, arcs.length, arc, weights[index], kind.trim(), middle));
      });
    });
    for (let slot = 0; slot <= step.arcs.length; slot++) {
      const x = 20 + slot * width;
      parts.push(`<circle cx="${x}" cy="${middle}" r="10" fill="var(--shade)" ` +
        `stroke="currentColor"/><text x="${x}" y="${middle + 4}" text-anchor="middle">` +
        `${slot}</text>`);
    }
    const wide = 40 + step.arcs.length * width;
    return `<svg width="${wide}" height="${height}" viewBox="0 0 ${wide} ${height}" ` +
      `font-family="sans-serif" font-size="12" fill="currentColor">${parts.join("")}</svg>`;
  }

  function draw() {
    const number = Number(slider.value), step = data.steps[number];
    const drafts = step.drafts[strategy.value] || {paths: [], accepted: 0};
    const lattice = document.getElementById("lattice");
    lattice.innerHTML = drawLattice(step, drafts);
    lattice.dataset.step = number;
    document.getElementById("number").textContent = `${number} of 0..${data.steps.length - 1}`;
    const output = step.greedy.map(show);
    document.getElementById("about").innerHTML =
      `${escape(step.task)}, text ${step.text}${step.name ? ` (${escape(step.name)})` : ""}, ` +
      `position ${step.position}, ${step.candidates} candidates a slot: ` +
      `${step.context.map(show).join(" ")} <b>${output.slice(0, drafts.accepted).join(" ")}</b> ` +
      `${output.slice(drafts.accepted).join(" ")} \u2014 ${drafts.accepted} draft tokens accepted of ` +
      `${drafts.paths.length} paths`;
  }

  function follow() {
    const match = /step=(\d+)/.exec(location.hash);
    if (match) slider.value = Math.min(Number(match[1]), data.steps.length - 1);
    draw();
  }

  slider.addEventListener("input", () => {
    history.replaceState(null, "", `#step=${slider.value}`);
    draw();
  });
  strategy.addEventListener("change", draw);
  window.addEventListener("hashchange", follow);
  follow();
})();
