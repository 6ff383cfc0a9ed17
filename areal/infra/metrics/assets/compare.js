// Curves of several runs with smoothing and a logarithmic axis, and their answers to the same prompts.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const short = (value) => {
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  };
  const [width, height, left, right, top, bottom] = [480, 196, 64, 14, 8, 26];
  const few = 12;
  let all = false;

  // What is chosen is kept in the address, so that it survives when the page loads itself again.
  const kept = new URLSearchParams(location.hash.slice(1));
  if (kept.has("smooth")) $("smoothing").value = kept.get("smooth");
  $("log").checked = kept.get("log") === "1";
  $("needle").value = kept.get("find") ?? "";
  const keep = () => {
    const chosen = new URLSearchParams({ smooth: $("smoothing").value, log: $("log").checked ? "1" : "0", find: $("needle").value, prompt: $("prompt").value });
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
    const usable = lines.map((points) => (logarithmic ? points.filter((point) => point[1] > 0) : points));
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
      svg.append(draw("text", { class: "tick", x: left - 7, y: at + 4, "text-anchor": "end" }, short(logarithmic ? 10 ** value : value)));
    }
    svg.append(draw("text", { class: "tick", x: left, y: height - 8 }, String(first)));
    if (last !== first) svg.append(draw("text", { class: "tick", x: width - right, y: height - 8, "text-anchor": "end" }, String(last)));
    const path = (points) => points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
    usable.forEach((points, index) => {
      if (!points.length) return;
      if (points.length === 1) svg.append(draw("circle", { class: `dot c${index % 8}`, cx: x(points[0][0]), cy: y(points[0][1]), r: 3 }));
      if (weight > 0) svg.append(draw("path", { class: `line faded c${index % 8}`, d: path(points) }));
      svg.append(draw("path", { class: `line c${index % 8}`, d: path(weight > 0 ? smooth(points, weight) : points) }));
    });
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
      head.append(make("i", `swatch c${index % 8}`), `${data.runs[index].name}, step ${run.step}`);
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
