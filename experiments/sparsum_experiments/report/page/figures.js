// Figures: hides and shows methods, and shows the values that one points at.
(() => {
  "use strict";
  const NAMESPACE = "http://www.w3.org/2000/svg";

  function scaled(axis, value) {
    return axis.is_logarithmic ? Math.log10(value) : value;
  }

  function place(axis, value) {
    return axis.start + ((scaled(axis, value) - axis.low) / (axis.high - axis.low)) * (axis.end - axis.start);
  }

  // With as many digits as the axis resolves.
  function inWords(axis, value) {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
    if (axis.is_logarithmic) return String(Number(value.toPrecision(3)));
    const digits = Math.ceil(-Math.log10((axis.high - axis.low) / 500));
    return String(Number(value.toFixed(Math.min(Math.max(digits, 0), 8))));
  }

  // The index of the value that is drawn nearest to a position.
  function nearest(axis, values, at) {
    let best = -1;
    let least = Infinity;
    values.forEach((value, i) => {
      const distance = value === null ? Infinity : Math.abs(place(axis, value) - at);
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  }

  function line(colour, name, value) {
    const row = document.createElement("div");
    const label = document.createElement("i");
    label.style.color = colour;
    label.textContent = name;
    const number = document.createElement("span");
    number.textContent = value;
    row.append(label, number);
    return row;
  }

  function heading(text) {
    const title = document.createElement("b");
    title.textContent = text;
    return title;
  }

  class Chart {
    constructor(figure) {
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.plot = figure.querySelector(".plot");
      this.svg = this.plot.querySelector("svg");
      this.hidden = new Set();
      this.at = null;
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.setAttribute("role", "status");
      this.tip.hidden = true;
      this.cursor = document.createElementNS(NAMESPACE, "path");
      this.cursor.setAttribute("class", "cursor");
      this.svg.append(this.cursor);
      this.plot.append(this.tip);
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "group");
      this.plot.setAttribute("aria-label", `${this.svg.querySelector("title").textContent}: arrow keys read values`);
      this.plot.addEventListener("pointermove", (event) => this.pointAt(event));
      // A finger leaves when it is lifted: the values it tapped stay until the next tap, here or elsewhere.
      this.plot.addEventListener("pointerdown", (event) => this.pointAt(event));
      this.plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.clear(); });
      document.addEventListener("pointerdown", (event) => { if (!this.plot.contains(event.target)) this.clear(); });
      this.plot.addEventListener("blur", () => this.clear());
      this.plot.addEventListener("keydown", (event) => this.press(event));
    }

    get shown() {
      return this.data.series.filter((series) => !this.hidden.has(series.style));
    }

    // Where the arrow keys stop: at the values of the longest line, or at all points from left to right.
    get stops() {
      if (this.data.kind === "points") return [...this.shown].sort((a, b) => a.x - b.x);
      return this.shown.reduce((longest, series) => (series.x.length > longest.length ? series.x : longest), []);
    }

    pointAt(event) {
      const box = this.svg.getBoundingClientRect();
      const view = this.svg.viewBox.baseVal;
      const x = ((event.clientX - box.left) / box.width) * view.width;
      const y = ((event.clientY - box.top) / box.height) * view.height;
      const stops = this.stops;
      if (!stops.length || x < this.data.x.start - 20 || x > this.data.x.end + 20) return this.clear();
      if (this.data.kind === "lines") return this.show(nearest(this.data.x, stops, x));
      const distances = stops.map((series) =>
        Math.hypot(place(this.data.x, series.x) - x, place(this.data.y, series.y) - y));
      const least = Math.min(...distances);
      return least < 60 ? this.show(distances.indexOf(least)) : this.clear();
    }

    press(event) {
      const last = this.stops.length - 1;
      const at = this.at ?? -1;
      const step = this.data.kind === "lines" && event.shiftKey ? 10 : 1;
      const goals = {
        ArrowRight: Math.min(at + step, last),
        ArrowLeft: this.at === null ? last : Math.max(at - step, 0),
        Home: 0,
        End: last,
      };
      if (event.key === "Escape") return this.clear();
      if (!(event.key in goals) || last < 0) return undefined;
      event.preventDefault();
      this.show(goals[event.key]);
      return this.tip.scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    show(i) {
      this.at = i;
      const isPoint = this.data.kind === "points";
      const [x, y] = isPoint ? this.showPoint(this.stops[i]) : this.showLines(this.stops[i]);
      this.tip.hidden = false;
      const view = this.svg.viewBox.baseVal;
      const part = x / view.width;
      const isRight = part > 0.45; // the tip is beside the cursor
      this.tip.style.left = isRight ? "auto" : `calc(${100 * part}% + 14px)`;
      this.tip.style.right = isRight ? `calc(${100 * (1 - part)}% + 14px)` : "auto";
      const isLow = y > view.height / 2; // below a low mark it would leave the box, which may scroll
      this.tip.style.top = isLow ? "auto" : `calc(${(100 * y) / view.height}% + 10px)`;
      this.tip.style.bottom = isLow ? `calc(${100 - (100 * y) / view.height}% + 10px)` : "auto";
    }

    showLines(value) {
      const x = place(this.data.x, value);
      const y = this.data.y;
      const found = [];
      for (const series of this.shown) {
        const i = nearest(this.data.x, series.x, x);
        // A line that ends earlier, or has a gap here, has no value.
        if (i < 0 || series.y[i] === null || Math.abs(place(this.data.x, series.x[i]) - x) > 12) continue;
        const band = series.low.length ? ` (${inWords(y, series.low[i])} to ${inWords(y, series.high[i])})` : "";
        found.push([series.y[i], line(series.colour, series.name, inWords(y, series.y[i]) + band)]);
      }
      found.sort((a, b) => b[0] - a[0]);
      this.tip.replaceChildren(heading(`${this.data.xLabel.split(",")[0]} ${inWords(this.data.x, value)}`), ...found.map((each) => each[1]));
      this.cursor.setAttribute("d", `M${x} ${this.data.y.start}V${this.data.y.end}`);
      return [x, 0];
    }

    showPoint(series) {
      const withError = (axis, value, error) => inWords(axis, value) + (error ? ` ± ${Number(error.toPrecision(2))}` : "");
      const [x, y] = [place(this.data.x, series.x), place(this.data.y, series.y)];
      const name = line(series.colour, series.name, "");
      const rows = [
        line("", this.data.yLabel.split(",")[0], withError(this.data.y, series.y, series.yError)),
        line("", this.data.xLabel.split(",")[0], withError(this.data.x, series.x, series.xError)),
      ];
      this.tip.replaceChildren(name, ...rows);
      this.cursor.setAttribute("d", `M${x} ${this.data.y.start}V${y}M${this.data.x.start} ${y}H${x}`);
      return [x, y];
    }

    clear() {
      this.at = null;
      this.tip.hidden = true;
      this.cursor.removeAttribute("d");
    }

    setHidden(style, isHidden) {
      if (isHidden) this.hidden.add(style);
      else this.hidden.delete(style);
      this.clear();
    }
  }

  // The buttons of a section act on all of its figures.
  function connect(section) {
    const charts = [...section.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));
    const drawn = [...section.querySelectorAll(".plot [data-series]")];
    for (const button of section.querySelectorAll(".legend button")) {
      const own = button.dataset.series;
      const dim = (isOn) => drawn.forEach((each) => {
        each.classList.toggle("is-dimmed", isOn && button.ariaPressed === "true" && each.dataset.series !== own);
      });
      button.addEventListener("click", () => {
        const isHidden = button.ariaPressed === "true";
        button.ariaPressed = String(!isHidden);
        dim(!isHidden);
        drawn.filter((each) => each.dataset.series === own)
          .forEach((each) => each.classList.toggle("is-hidden", isHidden));
        charts.forEach((chart) => chart.setHidden(Number(own), isHidden));
      });
      for (const [event, isOn] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]]) {
        button.addEventListener(event, () => dim(isOn));
      }
    }
  }

  document.querySelectorAll("main > section").forEach(connect);
})();
