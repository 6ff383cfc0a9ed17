// Values of curves at a step: under the pointer, or under a cursor that the keys move. Pages put it before their own
// script. Text from a run is only ever shown through textContent.
"use strict";
const readout = (() => {
  const tip = document.getElementById("tip");
  const most = 24;

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
    if (value === null || value === undefined || !Number.isFinite(value)) return "n/a";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  };
  const place = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > document.documentElement.clientWidth ? x - box.width - 12 : x + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(innerHeight - box.height - 8, y + 14))}px`;
  };
  const hide = () => { tip.hidden = true; };

  // Index of the entry nearest to a number, in a sorted list that is not empty.
  const nearest = (sorted, wanted) => {
    let low = 0;
    let high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < wanted) low = middle; else high = middle;
    }
    return wanted - sorted[low] <= sorted[high] - wanted ? low : high;
  };

  // chart: {title, domain: [first, last], plot: [width, height, left, right, top, bottom], y: value to height in the
  // drawing, series: [{name, style, points, raw}]}. Parts of a whole (stacked) are added up; of other curves a step that
  // one of them lacks shows that curve's nearest value and its step. raw: what smoothed points were before.
  const attach = (svg, chart) => {
    const [width, height, left, right, top, bottom] = chart.plot;
    const [first, last] = chart.domain;
    const lines = chart.series.filter((line) => line.points.length).map((line) => ({ ...line, at: line.points.map((point) => point[0]) }));
    const steps = [...new Set(lines.flatMap((line) => line.at))].sort((a, b) => a - b);
    if (!steps.length) return;
    const stacked = lines[0].stacked;
    const x = (step) => (last === first ? (left + width - right) / 2 : left + (step - first) / (last - first) * (width - left - right));
    let index = steps.length - 1;
    const cursor = draw("g", { class: "cursor", visibility: "hidden" });
    svg.append(cursor);

    const valuesAt = (step) => {
      const found = [];
      for (const line of lines) {
        const at = nearest(line.at, step);
        if (stacked && line.at[at] !== step) continue;
        found.push({ line, step: line.at[at], value: line.points[at][1], raw: line.raw ? line.raw[at][1] : null });
      }
      return found;
    };
    const rowOf = ({ line, step, value, raw }, shownStep, isNearest) => {
      const row = make("div", isNearest ? "row nearest" : "row");
      const name = make("span", "name");
      name.append(make("i", `swatch ${line.style}`), ` ${line.name}`);
      const text = make("span", "", short(value));
      if (raw !== null) text.append(make("small", "", ` raw ${short(raw)}`));
      if (step !== shownStep) text.append(make("small", "", ` at ${step.toLocaleString("en")}`));
      row.append(name, text);
      return row;
    };
    // height: of the pointer in the drawing; the curve next to it is emphasised.
    const show = (step, pointer) => {
      index = nearest(steps, step);
      const shown = steps[index];
      let found = valuesAt(shown);
      cursor.replaceChildren(draw("line", { x1: x(shown), x2: x(shown), y1: top, y2: height - bottom }));
      if (!stacked) for (const one of found) cursor.append(draw("circle", { class: `dot ${one.line.style}`, cx: x(one.step), cy: chart.y(one.value), r: 3 }));
      cursor.setAttribute("visibility", "visible");
      const close = stacked || pointer === null || found.length < 2 ? null : found.reduce((best, one) => (Math.abs(chart.y(one.value) - pointer) < Math.abs(chart.y(best.value) - pointer) ? one : best));
      if (!stacked && found.length > 8) found = [...found].sort((a, b) => b.value - a.value);
      const begin = Math.max(0, Math.min(found.length - most, found.indexOf(close) - most / 2));
      const rows = found.slice(begin, begin + most);
      tip.replaceChildren(make("b", "", `step ${shown.toLocaleString("en")}`), ...rows.map((one) => rowOf(one, shown, one === close)));
      if (rows.length < found.length) tip.append(make("div", "", `and ${found.length - rows.length} more`));
      if (stacked && found.length > 1) {
        const row = make("div", "row");
        row.append(make("span", "", "total"), make("span", "", short(found.reduce((sum, one) => sum + one.value, 0))));
        tip.append(row);
      }
      svg.setAttribute("aria-valuenow", shown);
      svg.setAttribute("aria-valuetext", `step ${shown}: ${rows.map((one) => `${one.line.name} ${short(one.value)}`).join(", ")}`);
    };
    const leave = () => { cursor.setAttribute("visibility", "hidden"); hide(); };
    const beside = () => {
      show(steps[index], null);
      const box = svg.getBoundingClientRect();
      place(box.left + x(steps[index]) / width * box.width, box.top + top / height * box.height);
    };
    const follow = (event) => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width * width - left) / (width - left - right);
      show(first + share * (last - first), (event.clientY - box.top) / box.height * height);
      place(event.clientX, event.clientY);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", leave);

    // To a reader of the screen it is a slider over steps whose text is the values.
    svg.setAttribute("role", "slider");
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("aria-label", `${chart.title}: values by step`);
    svg.setAttribute("aria-valuemin", steps[0]);
    svg.setAttribute("aria-valuemax", steps[steps.length - 1]);
    svg.setAttribute("aria-valuenow", steps[index]);
    svg.setAttribute("aria-valuetext", `step ${steps[index]}`);
    const far = Math.max(1, Math.round(steps.length / 10));
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -far, PageUp: far, Home: -steps.length, End: steps.length };
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      const move = moves[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      index = Math.max(0, Math.min(steps.length - 1, index + move));
      beside();
    });
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) beside(); });
    svg.addEventListener("blur", leave);
  };

  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  return { tip, make, draw, short, place, hide, attach };
})();
