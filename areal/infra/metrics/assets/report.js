// Values of the curves, and the browser of rollouts. Text from a run is only ever shown through textContent.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const { tip, make, short, place, hide, attach } = readout;

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const chart = data.charts[Number(figure.dataset.chart)];
    const [, height, , , top, bottom] = chart.plot;
    const [, , low, high] = chart.domain;
    const y = (value) => height - bottom - (value - low) / (high - low) * (height - top - bottom);
    attach(figure.querySelector("svg"), { ...chart, y });
  }

  // ---- rollouts ----
  if (!data.groups.length) return;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
  const own = (sample) => [...new Set(sample.versions.map((run) => run[0]).filter((version) => version >= 0))];
  const answer = (sample) => sample.text.completion ?? (sample.pieces.length ? sample.pieces.join("") : Object.entries(sample.text).filter(([key]) => key !== "prompt").map(([, text]) => text).join("\n"));
  const groups = data.groups.map((group) => {
    const rewards = group.samples.map((sample) => sample.reward);
    const prompt = group.samples.length ? group.samples[0].text.prompt ?? "" : "";
    return {
      ...group, rewards, prompt, mean: mean(rewards),
      mixed: group.samples.some((sample) => own(sample).length > 1),
      haystack: [prompt, ...group.samples.map(answer)].join("\n").toLowerCase(),
    };
  });
  const all = groups.flatMap((group) => group.rewards);
  const lowest = Math.min(0, ...all);
  const highest = Math.max(...all, lowest + 1e-9);
  let shown = groups;
  let selected = groups[groups.length - 1];

  const versionClass = (version) => (version < 0 ? "outside" : `v${version % 8}`);
  const rewardClass = (reward) => {
    const share = (reward - lowest) / (highest - lowest);
    return share >= 2 / 3 ? "badge high" : share <= 1 / 3 ? "badge low" : "badge";
  };
  const number = (id) => ($(id).value === "" ? null : Number($(id).value));
  const within = (value, low, high) => (low === null || value >= low) && (high === null || value <= high);

  const filter = () => {
    const needle = $("needle").value.toLowerCase();
    const [stepLow, stepHigh, rewardLow, rewardHigh] = ["step-low", "step-high", "reward-low", "reward-high"].map(number);
    shown = groups.filter((group) =>
      within(group.step, stepLow, stepHigh)
      && (rewardLow === null && rewardHigh === null || group.rewards.some((reward) => within(reward, rewardLow, rewardHigh)))
      && (!$("only-faults").checked || group.faults.length > 0)
      && (!$("only-mixed").checked || group.mixed)
      && (!needle || group.haystack.includes(needle)));
    if (!shown.includes(selected)) selected = shown[shown.length - 1];
    $("count").textContent = `${shown.length} of ${groups.length} prompts`;
    list();
    detail();
  };

  const list = () => {
    $("groups").replaceChildren(...[...shown].reverse().map((group) => {
      const item = make("div", "item");
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(group === selected));
      const top = make("div", "top");
      top.append(make("span", "", `step ${group.step} · prompt ${group.ordinal}`));
      const side = make("span", "", group.samples.length ? `reward ${short(group.mean)}` : "");
      if (group.faults.length) side.append(make("span", "flag", ` · ${group.faults.length} fault${group.faults.length > 1 ? "s" : ""}`));
      top.append(side);
      const bars = make("div", "bars");
      for (const reward of group.rewards.slice(0, 32)) {
        const bar = make("i", reward < 0 ? "negative" : "");
        bar.style.height = `${Math.round(2 + 14 * (reward - lowest) / (highest - lowest))}px`;
        bars.append(bar);
      }
      item.append(top, make("div", "peek", group.prompt.replace(/\s+/g, " ") || "(no prompt text)"), bars);
      item.addEventListener("click", () => { selected = group; list(); detail(); });
      return item;
    }));
    // Not scrollIntoView: that would move the page as well.
    const pane = $("groups");
    const current = pane.querySelector('[aria-selected="true"]');
    if (!current) return;
    const top = current.offsetTop - pane.offsetTop;
    if (top < pane.scrollTop) pane.scrollTop = top;
    else if (top + current.offsetHeight > pane.scrollTop + pane.clientHeight) pane.scrollTop = top + current.offsetHeight - pane.clientHeight;
  };

  const perToken = (sample) => {
    const versions = sample.versions.flatMap(([version, count]) => Array(count).fill(version));
    const colour = $("colour").value;
    return sample.pieces.map((piece, index) => {
      const version = versions[index] ?? -1;
      const token = make("span", "token", piece);
      if (colour === "version" || version < 0) token.classList.add(versionClass(version));
      if (colour === "logprob" && version >= 0) {
        const surprise = Math.min(1, -(sample.logprobs[index] ?? 0) / 4);
        token.style.background = `color-mix(in srgb, var(--c1) ${Math.round(surprise * 65)}%, transparent)`;
      }
      token.addEventListener("pointermove", (event) => {
        tip.replaceChildren(make("b", "", JSON.stringify(piece)));
        const rows = version < 0
          ? [["not sampled by the policy", ""]]
          : [["policy version", version], ["log-probability", short(sample.logprobs[index])]];
        if (sample.tokens.length) rows.push(["token id", sample.tokens[index]]);
        for (const [name, value] of rows) {
          const row = make("div", "row");
          row.append(make("span", "", name), make("span", "", String(value)));
          tip.append(row);
        }
        place(event.clientX, event.clientY);
      });
      token.addEventListener("pointerleave", hide);
      return token;
    });
  };

  // Each image once, with its size and digest; what has no picture is named all the same.
  const figures = (images) => {
    const row = make("div", "pictures");
    for (const [digest, image] of new Map(images.map((one) => [one.digest, one]))) {
      const figure = make("figure", "picture");
      if (Object.hasOwn(data.pictures, digest)) {
        const picture = document.createElement("img");
        picture.src = data.pictures[digest];
        picture.alt = `image ${digest.slice(0, 12)}`;
        figure.append(picture);
      }
      figure.append(make("figcaption", "", `${image.height} x ${image.width} · ${image.length} tokens · ${digest.slice(0, 12)}`));
      figure.title = digest;
      row.append(figure);
    }
    return row;
  };

  const sampleCard = (sample) => {
    const card = make("div", "sample");
    const head = make("div", "sample-head");
    const versions = own(sample);
    head.append(make("span", rewardClass(sample.reward), `reward ${short(sample.reward)}`));
    head.append(make("span", "", `sample ${sample.index}`), make("span", "", `ended by ${sample.stop}`));
    const sampled = sample.versions.reduce((sum, [version, count]) => sum + (version >= 0 ? count : 0), 0);
    head.append(make("span", "", `${sampled} tokens`));
    const named = [...Object.entries(sample.components), ...Object.entries(sample.stats)];
    for (const [name, value] of named) head.append(make("span", "", `${name} ${short(value)}`));
    for (const version of versions.slice(0, 8)) {
      const key = make("span", "key");
      const swatch = make("i", `swatch c${version % 8}`);
      key.append(swatch, `version ${version}`);
      head.append(key);
    }
    const strip = make("div", "strip");
    for (const [version, count] of sample.versions) {
      const part = make("i", versionClass(version));
      part.style.flexGrow = String(count);
      strip.append(part);
    }
    const text = make("div", "text");
    if (sample.pieces.length) text.append(...perToken(sample));
    else text.append(make("span", $("colour").value === "version" && versions.length === 1 ? `token ${versionClass(versions[0])}` : "", answer(sample) || "(no text was kept)"));
    card.append(head, strip, text);
    const later = sample.images.filter((image) => image.start >= sample.promptTokens);
    if (later.length) card.append(figures(later));
    return card;
  };

  const detail = () => {
    const pane = $("group");
    pane.scrollTop = 0;
    if (!selected) {
      pane.replaceChildren(make("p", "note", "No prompt fits the filters."));
      return;
    }
    const parts = [make("h3", "", `Prompt ${selected.ordinal} at step ${selected.step}`)];
    const spread = Math.sqrt(mean(selected.rewards.map((reward) => (reward - selected.mean) ** 2)));
    parts.push(make("p", "facts", selected.samples.length
      ? `${selected.samples.length} samples · mean reward ${short(selected.mean)} · standard deviation ${short(spread)} · admitted at policy version ${selected.admitted}`
      : `no sample survived · admitted at policy version ${selected.admitted}`));
    for (const fault of selected.faults) parts.push(make("div", "fault", `${fault.kind} (attempt ${fault.attempt}): ${fault.message}`));
    parts.push(make("div", "label-small", "Prompt"), make("pre", "prompt", selected.prompt || "(no prompt text was kept)"));
    const shownImages = selected.samples.flatMap((sample) => sample.images.filter((image) => image.start < sample.promptTokens));
    if (shownImages.length) parts.push(figures(shownImages));
    parts.push(make("div", "label-small", "Samples, best first"));
    parts.push(...[...selected.samples].sort((a, b) => b.reward - a.reward).map(sampleCard));
    pane.replaceChildren(...parts);
  };

  $("filters").addEventListener("input", filter);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("groups").addEventListener("keydown", (event) => {
    const move = { ArrowDown: -1, ArrowUp: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    selected = shown[Math.max(0, Math.min(shown.length - 1, shown.indexOf(selected) + move))];
    list();
    detail();
  });
  filter();
})();
