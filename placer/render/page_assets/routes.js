/* The lines between boxes: from side to side of two boxes, many lines spread along a side, labels where none stands. */

const TIP = 8; // length of an arrow's head, which begins where the line ends

/* A cubic curve that leaves and arrives at right angles to the sides. */
function curve(a, b, tip = TIP) {
  const span = Math.hypot(b.x - a.x, b.y - a.y);
  const reach = Math.max(18, Math.min(160, span * 0.45));
  const p = [a, { x: a.x + a.nx * reach, y: a.y + a.ny * reach }, { x: b.x + b.nx * (reach + tip), y: b.y + b.ny * (reach + tip) },
    { x: b.x + b.nx * tip, y: b.y + b.ny * tip }];
  const at = (t) => {
    const u = 1 - t;
    const mix = (axis) => u * u * u * p[0][axis] + 3 * u * u * t * p[1][axis] + 3 * u * t * t * p[2][axis] + t * t * t * p[3][axis];
    return { x: mix("x"), y: mix("y") };
  };
  const xy = (q) => q.x.toFixed(1) + "," + q.y.toFixed(1);
  const isStraight = Math.min(Math.abs(a.x - b.x), Math.abs(a.y - b.y)) < 40;
  return { isStraight, path: "M" + xy(p[0]) + "C" + xy(p[1]) + " " + xy(p[2]) + " " + xy(p[3]), at };
}

/* dagre's points as a smooth line through the middles of its pieces, ending an arrow's head before the last. */
function smooth(points) {
  const end = points[points.length - 1];
  const before = points[points.length - 2];
  const long = Math.hypot(end.x - before.x, end.y - before.y) || 1;
  const cut = Math.min(TIP, long - 0.1);
  const p = [...points.slice(0, -1), { x: end.x - ((end.x - before.x) / long) * cut, y: end.y - ((end.y - before.y) / long) * cut }];
  const xy = (x, y) => x.toFixed(1) + "," + y.toFixed(1);
  let path = "M" + xy(p[0].x, p[0].y);
  for (let i = 1; i < p.length - 1; i++) path += "Q" + xy(p[i].x, p[i].y) + " " + xy((p[i].x + p[i + 1].x) / 2, (p[i].y + p[i + 1].y) / 2);
  return path + "L" + xy(p[p.length - 1].x, p[p.length - 1].y);
}

/* The sides by which two boxes face each other: [side of a, side of b]. */
function facing(a, b) {
  if (b.x >= a.x + a.width) return ["right", "left"];
  if (b.x + b.width <= a.x) return ["left", "right"];
  return b.y + b.height / 2 >= a.y + a.height / 2 ? ["bottom", "top"] : ["top", "bottom"];
}

const NORMAL = { left: [-1, 0], right: [1, 0], top: [0, -1], bottom: [0, 1] };

/* A point on a side of a box, `along` it, with the direction that leads away from it. */
function port(box, side, along) {
  const [nx, ny] = NORMAL[side];
  if (nx) return { x: nx > 0 ? box.x + box.width : box.x, y: along, nx, ny };
  return { x: along, y: ny > 0 ? box.y + box.height : box.y, nx, ny };
}

/* Lines between boxes (each with `a` and `b`), so that those at one side of a box do not touch each other. */
function spread(lines) {
  const sides = new Map();
  const numbers = new Map();
  const number = (box) => numbers.get(box) ?? (numbers.set(box, numbers.size), numbers.size - 1);
  for (const line of lines) {
    const [from, to] = facing(line.a, line.b);
    line.ends = [];
    for (const [box, other, side, end] of [[line.a, line.b, from, 0], [line.b, line.a, to, 1]]) {
      const key = number(box) + side;
      if (!sides.has(key)) sides.set(key, { box, side, wishes: [] });
      const upright = side === "left" || side === "right";
      const low = Math.max(upright ? box.y : box.x, upright ? other.y : other.x);
      const high = Math.min(upright ? box.y + box.height : box.x + box.width, upright ? other.y + other.height : other.x + other.width);
      const center = upright ? other.y + other.height / 2 : other.x + other.width / 2;
      // Where the two overlap, the line goes straight across; else it goes to the end that is nearer.
      sides.get(key).wishes.push({ line, end, wish: low < high ? (low + high) / 2 : center });
    }
  }
  for (const { box, side, wishes } of sides.values()) {
    const upright = side === "left" || side === "right";
    const size = upright ? box.height : box.width;
    const margin = Math.min(14, size / 4);
    const low = (upright ? box.y : box.x) + margin;
    const high = low + size - 2 * margin;
    // The way there above the way back, on both sides alike, so that the two do not cross.
    wishes.sort((p, q) => p.wish - q.wish || p.line.order - q.line.order);
    const gap = wishes.length > 1 ? Math.min(26, (high - low) / (wishes.length - 1)) : 0;
    const places = wishes.map((w) => w.wish);
    for (let i = 1; i < places.length; i++) places[i] = Math.max(places[i], places[i - 1] + gap);
    const pushed = places.reduce((sum, p, i) => sum + p - wishes[i].wish, 0) / places.length;
    let least = low;
    for (let i = 0; i < places.length; i++) { places[i] = Math.max(places[i] - pushed, least); least = places[i] + gap; }
    let limit = high;
    for (let i = places.length - 1; i >= 0; i--) { places[i] = Math.min(places[i], limit); limit = places[i] - gap; }
    wishes.forEach((w, i) => (w.line.ends[w.end] = port(box, side, places[i])));
  }
  for (const line of lines) line.curve = curve(line.ends[0], line.ends[1], line.tip);
}

/* A short line downwards, from a part to the rim of what holds it or back. */
function gentle(from, to) {
  const middle = (from.y + to.y) / 2;
  return `M${from.x.toFixed(1)},${from.y.toFixed(1)}C${from.x.toFixed(1)},${middle.toFixed(1)} ${to.x.toFixed(1)},${middle.toFixed(1)} ${to.x.toFixed(1)},${to.y.toFixed(1)}`;
}

/* Places for labels on lines: the middle, or where else on the line it covers no other and nothing solid. null: nowhere. */
function placeLabels(labels, solid) {
  const taken = [];
  for (const label of labels) {
    label.place = null;
    // Lines mostly cross in their middle: a label there could belong to either.
    for (const t of label.curve.isStraight ? [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9, 0.15, 0.85] : [0.28, 0.34, 0.22, 0.4, 0.72, 0.66, 0.78, 0.5, 0.6, 0.14, 0.86, 0.1, 0.9]) {
      const { x, y } = label.curve.at(t);
      const box = { x: x - label.width / 2 - 2, y: y - 11, right: x + label.width / 2 + 2, bottom: y + 11 };
      if (solid.some((b) => overlaps(box, b)) || taken.some((b) => overlaps(box, b))) continue;
      taken.push(box);
      label.place = { x, y };
      break;
    }
  }
}

const overlaps = (a, b) => a.x < b.right && b.x < a.right && a.y < b.bottom && b.y < a.bottom;
