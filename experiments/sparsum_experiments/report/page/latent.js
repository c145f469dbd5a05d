// The switches of the bit-vector VAE: runs its decoder and draws what a code decodes to.
(() => {
  "use strict";

  /** Floats from half precision, little-endian. */
  function fromHalves(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const out = new Float32Array(bytes.length / 2);
    for (let i = 0; i < out.length; i++) {
      const half = view.getUint16(2 * i, true);
      const sign = half & 0x8000 ? -1 : 1;
      const exponent = (half >> 10) & 0x1f;
      const fraction = half & 0x3ff;
      // The file holds only finite numbers: no exponent is 31.
      out[i] = sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
    }
    return out;
  }

  const fromBase64 = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

  /** The decoder: n_bits - n_hidden - (n_pixels x rank), then a linear map from rank to n_levels that all pixels share. */
  class Decoder {
    constructor(data) {
      const weights = fromHalves(fromBase64(data.weights));
      let begin = 0;
      const take = (n) => weights.subarray(begin, (begin += n));
      this.nBits = data.n_bits;
      this.nHidden = data.n_hidden;
      this.nLevels = data.n_levels;
      this.rank = data.rank;
      this.nPixels = data.height * data.width;
      this.hiddenWeight = take(this.nHidden * this.nBits);
      this.hiddenBias = take(this.nHidden);
      this.pixelWeight = take(this.nPixels * this.rank * this.nHidden);
      this.pixelBias = take(this.nPixels * this.rank);
      this.levelWeight = take(this.nLevels * this.rank);
      this.levelBias = take(this.nLevels);
    }

    /** For a code, an array of 0 and 1: the expected and the most probable level of each pixel, and a function that
     * returns how many bits per pixel an image takes. */
    decode(code) {
      const features = this.features(code);
      const expected = new Float32Array(this.nPixels);
      const likely = new Float32Array(this.nPixels);
      const logNorm = new Float32Array(this.nPixels);
      const logits = new Float32Array(this.nLevels);
      for (let pixel = 0; pixel < this.nPixels; pixel++) {
        let best = 0;
        for (let level = 0; level < this.nLevels; level++) {
          logits[level] = this.logit(features, pixel, level);
          if (logits[level] > logits[best]) best = level;
        }
        let total = 0;
        let weighted = 0;
        for (let level = 0; level < this.nLevels; level++) {
          const p = Math.exp(logits[level] - logits[best]);
          total += p;
          weighted += p * level;
        }
        expected[pixel] = weighted / total;
        likely[pixel] = best;
        logNorm[pixel] = logits[best] + Math.log(total);
      }
      const bitsPerPixel = (image) => {
        let nats = 0;
        for (let pixel = 0; pixel < this.nPixels; pixel++) nats += logNorm[pixel] - this.logit(features, pixel, image[pixel]);
        return nats / this.nPixels / Math.LN2;
      };
      return { expected, likely, bitsPerPixel };
    }

    features(code) {
      const hidden = new Float32Array(this.nHidden);
      for (let i = 0; i < this.nHidden; i++) {
        let sum = this.hiddenBias[i];
        for (let bit = 0; bit < this.nBits; bit++) if (code[bit]) sum += this.hiddenWeight[i * this.nBits + bit];
        hidden[i] = Math.max(0, sum);
      }
      const features = Float32Array.from(this.pixelBias);
      for (let i = 0; i < features.length; i++) {
        let sum = 0;
        const row = i * this.nHidden;
        for (let j = 0; j < this.nHidden; j++) sum += this.pixelWeight[row + j] * hidden[j];
        features[i] += sum;
      }
      return features;
    }

    logit(features, pixel, level) {
      let sum = this.levelBias[level];
      for (let r = 0; r < this.rank; r++) sum += this.levelWeight[level * this.rank + r] * features[pixel * this.rank + r];
      return sum;
    }
  }

  /** An element with properties and children; texts are never read as HTML. */
  function make(name, properties = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key.includes("-") || key === "role") node.setAttribute(key, value);
      else node[key] = value;
    }
    node.append(...children);
    return node;
  }

  const codeOf = (bits) => Uint8Array.from(bits, (bit) => (bit === "1" ? 1 : 0));
  const countDifferences = (a, b) => a.reduce((n, bit, i) => n + (bit !== b[i]), 0);

  function percent(p) {
    if (p >= 0.9995) return "100%";
    if (p >= 0.001) return `${(100 * p).toFixed(1)}%`;
    return p >= 1e-6 ? `${(100 * p).toFixed(4).replace(/0+$/, "")}%` : `${(100 * p).toExponential(0)}%`;
  }

  /** One view: what is chosen, and the elements that show it. */
  class BitsView {
    constructor(root, data) {
      this.data = data;
      this.decoder = new Decoder(data);
      this.images = data.examples.map((example) => fromBase64(example.image));
      this.code = new Uint8Array(data.n_bits);
      this.isExpected = true;
      this.switches = Array.from(this.code, (_, bit) => this.makeSwitch(bit));
      this.thumbnails = data.examples.map((example, i) => this.makeThumbnail(example, i));
      this.original = this.makeCanvas("latent-picture", "the chosen test image");
      this.decoded = this.makeCanvas("latent-picture latent-decoded", "what the code decodes to");
      this.caption = make("figcaption");
      this.atomList = make("div", { className: "latent-atoms", role: "group", "aria-label": "codes of the image" });
      this.atomNote = make("p", { className: "latent-note" });
      this.status = make("p", { className: "latent-status", role: "status" });
      this.back = make("button", { type: "button", className: "latent-back" }, "back to the chosen code");
      this.back.addEventListener("click", () => {
        this.chooseAtom(this.atom);
        // A disabled button loses the focus.
        this.atomButtons[this.atom].focus();
      });
      root.append(...this.layOut());
      this.chooseImage(0);
    }

    layOut() {
      const pictures = make(
        "div",
        { className: "latent-pictures" },
        make("figure", {}, this.original, (this.name = make("figcaption"))),
        make("figure", {}, this.decoded, this.caption),
      );
      const grid = make("div", { className: "latent-switches", role: "group", "aria-label": "bits of the code" }, ...this.switches);
      grid.addEventListener("keydown", (event) => this.move(event));
      this.grid = grid;
      const thumbnails = make("div", { className: "latent-thumbnails", role: "group", "aria-label": "test images" }, ...this.thumbnails);
      return [
        thumbnails,
        make(
          "div",
          { className: "latent-columns" },
          make("div", {}, pictures, this.makeModes()),
          make("div", { className: "latent-codes" }, this.atomNote, this.atomList),
        ),
        make("div", { className: "latent-line" }, this.status, this.back),
        grid,
        make("p", { className: "latent-note" }, "Arrow keys move between the switches, the space bar switches."),
      ];
    }

    makeSwitch(bit) {
      const button = make("button", { type: "button", className: "latent-switch", tabIndex: bit ? -1 : 0 });
      button.addEventListener("click", () => {
        this.code[bit] ^= 1;
        this.show();
      });
      button.addEventListener("focus", () => this.switches.forEach((each) => (each.tabIndex = each === button ? 0 : -1)));
      return button;
    }

    makeThumbnail(example, i) {
      const canvas = this.makeCanvas("", "");
      canvas.setAttribute("aria-hidden", "true");
      this.draw(canvas, this.images[i]);
      const button = make("button", { type: "button", title: example.label, "aria-label": `test image ${i + 1}, ${example.label}` }, canvas);
      button.addEventListener("click", () => this.chooseImage(i));
      return button;
    }

    makeModes() {
      const group = `latent-mode-${(BitsView.count = (BitsView.count || 0) + 1)}`;
      const option = (text, isExpected) => {
        const input = make("input", { type: "radio", name: group, checked: isExpected === this.isExpected });
        input.addEventListener("change", () => {
          this.isExpected = isExpected;
          this.showAtoms();
          this.show();
        });
        return make("label", {}, input, ` ${text}`);
      };
      const legend = make("legend", {}, "each pixel at its");
      return make("fieldset", { className: "latent-modes" }, legend, option("expected value", true), option("most probable value", false));
    }

    makeCanvas(className, label) {
      const canvas = make("canvas", { className, width: this.data.width, height: this.data.height, role: "img" });
      if (label) canvas.setAttribute("aria-label", label);
      return canvas;
    }

    draw(canvas, levels) {
      const context = canvas.getContext("2d", { willReadFrequently: true });
      const picture = context.createImageData(canvas.width, canvas.height);
      const scale = 255 / (this.data.n_levels - 1);
      levels.forEach((level, i) => {
        picture.data.fill(Math.round(level * scale), 4 * i, 4 * i + 3);
        picture.data[4 * i + 3] = 255;
      });
      context.putImageData(picture, 0, 0);
    }

    levelsOf(decoded) {
      return this.isExpected ? decoded.expected : decoded.likely;
    }

    chooseImage(i) {
      this.image = i;
      const example = this.data.examples[i];
      this.thumbnails.forEach((each, j) => each.setAttribute("aria-pressed", String(i === j)));
      this.draw(this.original, this.images[i]);
      this.name.textContent = `test image: ${example.label}`;
      this.atoms = example.atoms.map((atom) => codeOf(atom.bits));
      const shown = example.atoms.reduce((sum, atom) => sum + atom.probability, 0);
      const listed = example.atoms.length;
      if (!example.n_atoms) {
        this.atomNote.textContent = `All codes have mass. The ${listed} most probable ones have ${percent(shown)} of it:`;
      } else if (example.n_atoms === 1) {
        this.atomNote.textContent = "One code has all the mass:";
      } else {
        const some = example.n_atoms > listed ? `; the ${listed} most probable ones have ${percent(shown)} of it` : "";
        this.atomNote.textContent = `${example.n_atoms} codes have mass${some}:`;
      }
      this.showAtoms();
      this.chooseAtom(0);
    }

    /** The codes of the image as buttons, each with what it decodes to. */
    showAtoms() {
      this.atomButtons = this.data.examples[this.image].atoms.map((atom, i) => {
        const canvas = this.makeCanvas("", "");
        canvas.setAttribute("aria-hidden", "true");
        this.draw(canvas, this.levelsOf(this.decoder.decode(this.atoms[i])));
        const bar = make("span", { className: "latent-bar" }, make("span"));
        bar.firstChild.style.width = `${100 * atom.probability}%`;
        const n = countDifferences(this.atoms[i], this.atoms[0]);
        const text = i ? `${n} ${n === 1 ? "bit" : "bits"} from the first` : "most probable";
        const words = make("span", { className: "latent-words" }, make("b", {}, percent(atom.probability)), ` ${text}`);
        const button = make("button", { type: "button" }, canvas, make("span", {}, words, bar));
        button.addEventListener("click", () => this.chooseAtom(i));
        return button;
      });
      this.markAtom();
      this.atomList.replaceChildren(...this.atomButtons);
    }

    chooseAtom(i) {
      this.atom = i;
      this.code = Uint8Array.from(this.atoms[i]);
      this.markAtom();
      this.show();
    }

    markAtom() {
      this.atomButtons.forEach((each, i) => each.setAttribute("aria-pressed", String(i === this.atom)));
    }

    /** Decode, and update the switches. */
    show() {
      const decoded = this.decoder.decode(this.code);
      this.draw(this.decoded, this.levelsOf(decoded));
      const moved = [];
      this.switches.forEach((button, bit) => {
        const isOn = this.code[bit] === 1;
        const isMoved = this.code[bit] !== this.atoms[this.atom][bit];
        if (isMoved) moved.push(bit + 1);
        button.textContent = String(bit + 1);
        button.setAttribute("aria-pressed", String(isOn));
        button.setAttribute("aria-label", `bit ${bit + 1}${isMoved ? ", switched away from the code" : ""}`);
        button.classList.toggle("is-moved", isMoved);
      });
      const cost = decoded.bitsPerPixel(this.images[this.image]);
      this.caption.textContent = `decoded; the image takes ${cost.toFixed(3)} bits per pixel`;
      this.status.textContent = moved.length ? `Switched away from the chosen code: ${moved.join(", ")}.` : "The chosen code, unchanged.";
      this.back.disabled = !moved.length;
    }

    /** Arrow keys move between switches, in the rows of the current layout. */
    move(event) {
      const here = this.switches.indexOf(document.activeElement);
      if (here < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
      const top = this.switches[0].offsetTop;
      const second = this.switches.findIndex((each) => each.offsetTop > top);
      const columns = second < 0 ? this.switches.length : second;
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
      let there;
      if (event.key in steps) there = here + steps[event.key];
      else if (event.key === "Home") there = 0;
      else if (event.key === "End") there = this.switches.length - 1;
      else return;
      event.preventDefault();
      if (there >= 0 && there < this.switches.length) this.switches[there].focus();
    }
  }

  for (const root of document.querySelectorAll('[data-latent="bits"]')) {
    new BitsView(root, JSON.parse(root.querySelector("script").textContent));
  }
})();
