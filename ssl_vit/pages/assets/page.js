// The charts of a page. Text of others is only ever set as textContent, never parsed as markup.
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
      this.colour = lines.map((line, i) => `--c${i % COLOURS}`);
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
        list.append(make("li", {}, button));
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
          width: line.kind === "level" ? 1.25 : 1.75,
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
      const values = this.lines.map((line, i) => `${line.name} ${this.now[i].textContent}`);
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
  }

  // ---- the page -----------------------------------------------------------------------------

  for (const element of document.querySelectorAll(".chart[data-chart]")) drawn.push(new Chart(element, data(element)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(chart => chart.draw()));

  // The page of a run that goes on is loaded again, but not while the reader has a part of it
  // selected, opened, zoomed or in focus: that would be lost
  const seconds = Number(document.documentElement.dataset.refresh);
  const inUse = () => !getSelection().isCollapsed || document.activeElement !== document.body ||
    document.querySelector("details[open], [aria-expanded=true]") || drawn.some(chart => chart.range());
  if (seconds) setInterval(() => inUse() || location.reload(), seconds * 1000);
  document.documentElement.dataset.ready = "true";
})();
