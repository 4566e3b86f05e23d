// What the matrices and the rules mean, for whoever has not read the paper.
import { make } from "./elements.js";

const MEANINGS = [
  ["X", "which loop of the operator indexes which tensor"],
  ["Y", "the matching: which loop goes to which dimension of the intrinsic; loops that go nowhere "
    + "stay around the call"],
  ["Z", "which dimension of the intrinsic indexes which of its operands"],
  ["rule paper", "unions of base matches, as counted in AMOS's Table 6"],
  ["rule access", "Algorithm 1: matched loops and their dimensions index the same operands"],
  ["rule gather", "whatever computes the right result when fragments are gathered element by "
    + "element; each rule accepts all that the one before it accepts"],
  ["idle", "a dimension stays empty though a loop could go there: a waste, not a wrong answer"],
];

/** A list of meanings, closed at first. */
export function legend() {
  return make("details", { class: "legend" },
    make("summary", { text: "What X, Y, Z and the rules mean" }),
    make("dl", {}, ...MEANINGS.flatMap(([name, text]) =>
      [make("dt", { text: name }), make("dd", { text })])));
}
