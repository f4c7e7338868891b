// Charts, sortable tables and comparisons of a page. Text of others is only ever set
// as textContent, never parsed as markup.
(() => {
  "use strict";
  const HEIGHT = 260;
  const ROWS = 2000; // of a chart's table
  const COLOURS = 8; // --c0 to --c7 of the style sheet
  const drawn = []; // charts on the page

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Five digits that count, of a learning rate of 0.00002 as of a loss of 2. In a chart's data null is
  // a value that is not finite, undefined a step without one.
  const written = value => {
    if (value == null) return value === null ? "not finite" : "–";
    const size = Math.abs(value);
    if (size && (size < 1e-6 || size >= 1e9)) return value.toExponential(3);
    return value.toLocaleString("en", { maximumSignificantDigits: 5 });
  };
  const data = element => JSON.parse(element.querySelector("script").textContent);

  // ---- charts -------------------------------------------------------------------------------

  class Chart {
    constructor(element, { title, lines }) {
      this.element = element;
      this.title = title;
      this.lines = lines;
      this.log = false;
      this.shown = lines.map(() => true);
      this.colour = lines.map((line, i) => `--c${(line.group ?? i) % COLOURS}`);
      this.data = uPlot.join(lines.map(line => [line.x, line.y]));
      this.plot = make("div", { class: "plot", tabindex: "0", role: "group" });
      this.plot.setAttribute("aria-roledescription", "chart");
      this.spoken = make("p", { class: "hidden", "aria-live": "polite" });
      element.append(this.tools(), this.plot, this.keys(), this.spoken);
      this.describe();
      this.plot.addEventListener("keydown", event => this.key(event));
      this.resize = new ResizeObserver(() => {
        const width = this.plot.clientWidth;
        if (this.u && width && width !== this.u.width) this.u.setSize({ width, height: HEIGHT });
      });
      this.resize.observe(this.plot);
      this.draw();
    }

    describe() {
      const xs = this.data[0];
      const names = this.lines.map(line => line.name).join(", ");
      const label = `${this.title} by step, ${xs[0]} to ${xs.at(-1)}: ${names}. ` +
        "Arrow keys read values, plus and minus zoom, 0 shows all.";
      this.plot.setAttribute("aria-label", label);
    }

    tools() {
      const button = (text, label, action) => {
        const found = make("button", { type: "button", "aria-label": `${label}: ${this.title}` }, text);
        found.addEventListener("click", () => action(found));
        return found;
      };
      const bar = make("div", { class: "tools" },
        button("+", "Zoom in", () => this.zoom(0.5)),
        button("−", "Zoom out", () => this.zoom(2)),
        button("All", "Show all steps", () => this.reset()));
      if (this.lines.every(line => line.y.every(value => value == null || value > 0))) {
        const log = button("Log", "Logarithmic scale", pressed => {
          this.log = !this.log;
          pressed.setAttribute("aria-pressed", this.log);
          this.draw();
        });
        log.setAttribute("aria-pressed", "false");
        bar.append(log);
      }
      const table = button("Table", "Values as a table", pressed => this.table(pressed));
      table.setAttribute("aria-expanded", "false");
      bar.append(table);
      return bar;
    }

    keys() {
      const list = make("ul", { class: "keys" });
      this.now = this.lines.map((line, i) => {
        const mark = make("span", { class: `mark ${line.kind}`, "aria-hidden": "true" });
        mark.style.borderColor = `var(${this.colour[i]})`;
        const now = make("span", { class: "now" });
        const button = make("button", { type: "button", "aria-pressed": "true" }, mark, `${line.name} `, now);
        button.addEventListener("click", () => {
          this.shown[i] = !this.shown[i];
          button.setAttribute("aria-pressed", this.shown[i]);
          this.u.setSeries(i + 1, { show: this.shown[i] });
        });
        if (line.kind !== "seed") list.append(make("li", {}, button));
        return now;
      });
      return list;
    }

    draw() {
      const scale = this.range();
      this.u?.destroy();
      const axis = {
        stroke: css("--quiet"), font: "12px system-ui, sans-serif",
        grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 },
      };
      const size = (u, values) => Math.max(44, 16 + 7 * Math.max(0, ...(values ?? []).map(v => (v ?? "").length)));
      // as many decimals as the distance of two ticks needs
      const values = (u, found, axis, space, step) => found.map(value => {
        if (value == null) return "";
        let digits = 0;
        while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
        const plain = !this.log && digits < 6 && Math.abs(value) < 1e9;
        return plain ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : String(Number(value.toPrecision(3)));
      });
      const options = {
        width: this.plot.clientWidth || 400,
        height: HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: "steps" }, drag: { x: true, y: true, uni: 20 }, focus: { prox: 16 } },
        focus: { alpha: 0.3 },
        scales: { x: { time: false }, y: { distr: this.log ? 3 : 1 } },
        axes: [axis, { ...axis, size, values }],
        series: [{}, ...this.lines.map((line, i) => ({
          label: line.name, show: this.shown[i], stroke: css(this.colour[i]),
          width: { level: 1.25, seed: 0.6 }[line.kind] ?? 1.75,
          alpha: line.kind === "seed" ? 0.7 : 1,
          dash: line.kind === "level" ? [6, 5] : undefined,
          points: { show: line.kind === "points", size: 6, fill: css(this.colour[i]) },
        }))],
        hooks: { setCursor: [u => this.read(u)], setScale: [(u, key) => key === "x" && this.note(u.scales.x)] },
      };
      this.u = new uPlot(options, this.data, this.plot);
      if (scale) this.u.setScale("x", scale);
      this.read(this.u);
    }

    // The steps that are shown
    note({ min, max }) {
      this.plot.dataset.from = min;
      this.plot.dataset.to = max;
    }

    range() {
      if (!this.u) return null;
      const { min, max } = this.u.scales.x;
      const xs = this.data[0];
      return min > xs[0] || max < xs.at(-1) ? { min, max } : null;
    }

    // The values at the cursor; without one the last ones. A line without a value there gives its
    // last one before.
    read(u) {
      const at = u.cursor.idx ?? this.data[0].length - 1;
      this.now.forEach((element, i) => {
        const column = this.data[i + 1];
        let j = at;
        while (j > 0 && column[j] === undefined) j--;
        element.textContent = written(column[j]);
      });
      return at;
    }

    zoom(factor) {
      const { min, max } = this.u.scales.x;
      const xs = this.data[0];
      const middle = this.u.cursor.idx != null && this.u.cursor.left >= 0 ? xs[this.u.cursor.idx] : (min + max) / 2;
      const half = ((max - min) * factor) / 2;
      const low = Math.max(xs[0], middle - half);
      const high = Math.min(xs.at(-1), middle + half);
      if (high > low) this.u.setScale("x", { min: low, max: high });
    }

    reset() {
      this.u.setData(this.data, true);
    }

    key(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) this.step(move);
      else if (event.key === "+" || event.key === "=") this.zoom(0.5);
      else if (event.key === "-") this.zoom(2);
      else if (event.key === "0" || event.key === "Escape") this.reset();
      else return;
      event.preventDefault();
    }

    step(move) {
      const xs = this.data[0];
      const jump = Math.max(1, Math.round(xs.length / 100)) * move;
      const first = move > 0 ? 0 : xs.length - 1;
      this.at = this.at == null ? first : Math.min(xs.length - 1, Math.max(0, this.at + jump));
      this.u.setCursor({ left: this.u.valToPos(xs[this.at], "x"), top: 10 });
      const values = this.lines.map((line, i) => line.kind !== "seed" && `${line.name} ${this.now[i].textContent}`).filter(Boolean);
      this.spoken.textContent = `step ${xs[this.at]}: ${values.join(", ")}`;
    }

    table(button) {
      const open = this.opened;
      button.setAttribute("aria-expanded", !open);
      this.opened = null;
      if (open) return open.remove();
      const head = ["step", ...this.lines.map(line => line.name)];
      const rows = this.data[0].slice(0, ROWS).map((step, j) =>
        make("tr", {}, ...[step, ...this.lines.map((line, i) => line.kind === "level" ? line.y[0] : this.data[i + 1][j])].map(value =>
          make("td", {}, value === undefined ? "" : String(value ?? "not finite")))));
      const table = make("table", {},
        make("thead", {}, make("tr", {}, ...head.map(text => make("th", { scope: "col" }, text)))),
        make("tbody", {}, ...rows));
      const box = { class: "scroll values", tabindex: "0", role: "region", "aria-label": `${this.title}, values` };
      this.opened = make("div", box, table);
      const left = this.data[0].length - ROWS;
      if (left > 0) this.opened.append(make("p", {}, `${left.toLocaleString("en")} further steps are left out.`));
      this.element.append(this.opened);
    }

    remove() {
      this.resize.disconnect();
      this.u.destroy();
    }
  }

  // ---- tables -------------------------------------------------------------------------------

  const sortable = table => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.classList.contains("pick")) return;
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        body.append(...rows.sort((a, b) => compare(a.cells[column], b.cells[column], down ? -1 : 1)));
      });
    });
  };

  // A search in the rows of all tables of an element; a group without such rows is hidden
  const searchable = element => {
    const rows = [...element.querySelectorAll("tbody tr")];
    const groups = [...element.querySelectorAll(".group")];
    const about = row => [...(row.closest(".group")?.querySelectorAll("h3, p") ?? []), row];
    const texts = rows.map(row => about(row).map(one => one.textContent).join(" ").toLowerCase());
    const count = make("span", { "aria-live": "polite" });
    const input = make("input", { type: "search" });
    const label = make("label", { class: "search" }, `${element.dataset.search} `, input, count);
    element.before(label);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every(word => texts[i].includes(word));
        found += !row.hidden;
      });
      for (const group of groups) group.hidden = !group.querySelector("tbody tr:not([hidden])");
      count.textContent = words.length ? `${found} of ${rows.length}` : `${rows.length} in all`;
    });
    count.textContent = `${rows.length} in all`;
  };

  // By number where both have one, else by text; what is empty comes last either way.
  const compare = (a, b, sign) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    if (typeof x === "number" && typeof y === "number") return sign * (x - y);
    return sign * String(x).localeCompare(String(y), "en", { numeric: true });
  };
  const value = cell => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (text === "" || text === "-") return "";
    return Number.isNaN(Number(text)) ? text : Number(text);
  };

  // ---- comparison of runs -------------------------------------------------------------------

  class Comparison {
    constructor(element) {
      this.element = element;
      const { runs, curves, recipes, steps } = data(element);
      Object.assign(this, { runs, curves, recipes, steps });
      this.boxes = [...document.querySelectorAll("input[data-run]")];
      this.hint = make("p", {}, "Tick runs in the tables below: their curves are laid over each other, and their recipes compared.");
      this.metric = make("select");
      for (const name of Object.keys(curves)) this.metric.append(make("option", { value: name }, name));
      this.choice = make("label", { class: "search" }, "Curve ", this.metric);
      this.output = make("div");
      element.append(this.hint, this.choice, this.output);
      this.metric.addEventListener("change", () => this.show());
      for (const box of this.boxes) box.addEventListener("change", () => this.show());
      this.show();
    }

    show() {
      const picked = this.boxes.filter(box => box.checked).map(box => Number(box.dataset.run)).sort((a, b) => a - b);
      this.hint.hidden = picked.length > 1;
      this.choice.hidden = picked.length === 0 || this.metric.options.length === 0;
      if (this.chart) drawn.splice(drawn.indexOf(this.chart), 1)[0].remove();
      this.chart = null;
      this.output.replaceChildren();
      if (picked.length === 0) return;
      const lines = picked.map(run => this.curves[this.metric.value]?.[run]).filter(Boolean)
        .map(line => ({ ...line, x: this.steps[line.x] }));
      if (lines.length) {
        const place = make("div", { class: "chart" });
        this.output.append(place);
        drawn.push((this.chart = new Chart(place, { title: this.metric.value, lines })));
      } else {
        this.output.append(make("p", {}, "None of these runs has this curve."));
      }
      if (picked.length > 1) this.output.append(make("h3", {}, "How their recipes differ"), this.recipe(picked));
    }

    recipe(picked) {
      const differ = Object.entries(this.recipes).filter(([, texts]) =>
        new Set(picked.map(run => texts[run])).size > 1);
      if (!differ.length) return make("p", {}, "In nothing that is computed.");
      const head = ["key", ...picked.map(run => this.runs[run])];
      const rows = differ.map(([key, texts]) => make("tr", {},
        ...[key, ...picked.map(run => texts[run])].map(text => make("td", { class: text.length > 28 ? "label long" : "label" }, text))));
      const box = { class: "scroll", tabindex: "0", role: "region", "aria-label": "How their recipes differ" };
      return make("div", box, make("table", { class: "recipes" },
        make("thead", {}, make("tr", {}, ...head.map(text => make("th", { scope: "col", class: "label" }, text)))),
        make("tbody", {}, ...rows)));
    }
  }

  // ---- the page -----------------------------------------------------------------------------

  for (const table of document.querySelectorAll("table.sortable")) sortable(table);
  for (const element of document.querySelectorAll("[data-search]")) searchable(element);
  for (const element of document.querySelectorAll(".chart[data-chart]")) drawn.push(new Chart(element, data(element)));
  for (const element of document.querySelectorAll(".comparison")) new Comparison(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(chart => chart.draw()));
  document.documentElement.dataset.ready = "true";
})();
