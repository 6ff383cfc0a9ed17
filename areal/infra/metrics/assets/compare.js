// Curves of several runs with smoothing and a logarithmic axis, and their answers to the same prompts.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const { make, draw, short, attach } = readout;
  const tick = (value) => short(Number(value.toPrecision(3)));
  const [width, height, left, right, top, bottom] = [480, 196, 64, 14, 8, 26];
  const few = 12;
  let all = false;
  const styleOf = (index) => `c${index % 8} d${Math.floor(index / 8) % 3}`;

  // What is chosen is kept in the address, so that it survives when the page loads itself again.
  const kept = new URLSearchParams(location.hash.slice(1));
  if (kept.has("smooth")) $("smoothing").value = kept.get("smooth");
  $("log").checked = kept.get("log") === "1";
  $("needle").value = kept.get("find") ?? "";
  const keys = [...document.querySelectorAll("button[data-run]")];
  const away = new Set((kept.get("hide") ?? "").split(",").filter(Boolean).map(Number));
  const press = () => { for (const key of keys) key.setAttribute("aria-pressed", String(!away.has(Number(key.dataset.run)))); };
  press();
  const keep = () => {
    const chosen = new URLSearchParams({ smooth: $("smoothing").value, log: $("log").checked ? "1" : "0", find: $("needle").value, prompt: $("prompt").value, hide: [...away].join(",") });
    history.replaceState(null, "", `#${chosen}`);
  };

  // An exponential mean without the pull of its beginning.
  const smooth = (points, weight) => {
    let sum = 0;
    let mass = 0;
    return points.map(([step, value]) => {
      sum = weight * sum + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return [step, sum / mass];
    });
  };

  const chart = (name, lines) => {
    const weight = Number($("smoothing").value);
    const logarithmic = $("log").checked;
    const usable = lines.map((points, index) => (away.has(index) ? [] : logarithmic ? points.filter((point) => point[1] > 0) : points));
    const every = usable.flat();
    if (!every.length) return null;
    const scale = (value) => (logarithmic ? Math.log10(value) : value);
    const values = every.map((point) => scale(point[1]));
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) { const room = Math.abs(low) * 0.1 || 0.5; low -= room; high += room; }
    const first = Math.min(...every.map((point) => point[0]));
    const last = Math.max(...every.map((point) => point[0]));
    const x = (step) => (first === last ? (left + width - right) / 2 : left + (step - first) / (last - first) * (width - left - right));
    const y = (value) => height - bottom - (scale(value) - low) / (high - low) * (height - top - bottom);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
    for (const share of [0, 0.5, 1]) {
      const at = height - bottom - share * (height - top - bottom);
      const value = low + share * (high - low);
      svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
      svg.append(draw("text", { class: "tick", x: left - 7, y: at + 4, "text-anchor": "end" }, tick(logarithmic ? 10 ** value : value)));
    }
    svg.append(draw("text", { class: "tick", x: left, y: height - 8 }, String(first)));
    if (last !== first) svg.append(draw("text", { class: "tick", x: width - right, y: height - 8, "text-anchor": "end" }, String(last)));
    const path = (points) => points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
    const series = usable.map((points, index) => ({
      name: data.runs[index].name, style: styleOf(index), points: weight > 0 ? smooth(points, weight) : points, raw: weight > 0 ? points : null,
    }));
    for (const line of series) {
      if (!line.points.length) continue;
      if (line.points.length === 1) svg.append(draw("circle", { class: `dot ${line.style}`, cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3 }));
      if (line.raw) svg.append(draw("path", { class: `line faded ${line.style}`, d: path(line.raw) }));
      svg.append(draw("path", { class: `line ${line.style}`, d: path(line.points) }));
    }
    attach(svg, { title: name, domain: [first, last], plot: [width, height, left, right, top, bottom], y, series });
    const figure = make("figure", "card");
    const caption = make("figcaption");
    caption.append(make("h3", "", name));
    figure.append(caption, svg);
    return figure;
  };

  const curves = () => {
    const needle = $("needle").value.toLowerCase();
    const names = Object.keys(data.curves).filter((name) => name.toLowerCase().includes(needle));
    const shown = all || needle ? names : names.slice(0, few);
    $("charts").replaceChildren(...shown.map((name) => chart(name, data.curves[name])).filter(Boolean));
    $("more").hidden = shown.length === names.length;
  };
  const changed = () => { curves(); keep(); };
  $("controls").addEventListener("input", changed);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const key of keys) {
    key.addEventListener("click", () => {
      const run = Number(key.dataset.run);
      if (!away.delete(run)) away.add(run);
      press();
      changed();
    });
  }
  $("more").addEventListener("click", () => { all = true; curves(); });
  curves();

  $("none").hidden = data.prompts.length > 0;
  $("choice").hidden = $("text").hidden = data.prompts.length === 0;
  data.prompts.forEach((one, index) => {
    const option = make("option", "", one.prompt.replace(/\s+/g, " ").slice(0, 90));
    option.value = String(index);
    $("prompt").append(option);
  });
  if (data.prompts[Number(kept.get("prompt"))]) $("prompt").value = kept.get("prompt") || "0";
  const answers = () => {
    const one = data.prompts[Number($("prompt").value)];
    if (!one) return;
    $("text").textContent = one.prompt;
    $("answers").replaceChildren(...one.runs.map((run, index) => {
      const column = make("div");
      const head = make("p", "key");
      head.append(make("i", `swatch ${styleOf(index)}`), `${data.runs[index].name}, step ${run.step}`);
      column.append(head);
      for (const sample of run.samples) {
        const card = make("div", "sample");
        const line = make("div", "sample-head");
        line.append(make("span", "badge", `reward ${short(sample.reward)}`));
        card.append(line, make("div", "text", sample.text || "(no text was kept)"));
        column.append(card);
      }
      return column;
    }));
  };
  $("prompt").addEventListener("input", () => { answers(); keep(); });
  answers();
})();
