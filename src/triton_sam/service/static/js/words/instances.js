/**
 * The instances in an answer to words and examples, as objects of a document, and the sentences that tell about them.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {object} Concept  one thing that was looked for
 * @property {string} words  empty: what the examples show
 * @property {number} found  above the threshold of the request, returned or not
 * @property {{mask: Mask, score: number}[]} instances  the best ones, by falling score
 */
import { addFound, areaOf, isUntouched } from "../core/found.js";
import { maskOf } from "../core/document.js";
import { bounds, fromCocoRle } from "../core/mask.js";
import { union } from "../core/mask_ops.js";
import { nextColour } from "../core/palette.js";

/** Of the common pixels to all: with more, two masks are the same object. */
const SAME = 0.7;
/** So many words are named in a sentence, and so many characters of each. */
const NAMED = 3;
const LONGEST_NAMED = 40;

/**
 * @param {{concepts: object[], masks: object[]}} result of /v1/segment
 * @param {string[]} words that were asked for; none: examples only
 * @param {{width: number, height: number}} image original pixels
 * @returns {Concept[]}
 * @throws {Error} if it has something that is not a mask of this image
 */
export function conceptsIn(result, words, { width, height }) {
  const concepts = result.concepts.map(({ found }, index) => ({ words: words[index] ?? "", found, instances: [] }));
  for (const { data, score, concept } of result.masks) {
    const mask = fromCocoRle(data);
    if (mask.width !== width || mask.height !== height) throw new Error(`A mask has ${mask.width} x ${mask.height} pixels.`);
    concepts[concept].instances.push({ mask, score: Number(score) || 0 });
  }
  return concepts;
}

/**
 * Adds the instances as found objects. Those of an earlier find for the same words go, and those of "Find everything", if
 * the user has neither changed nor accepted them. What is an object of the same class already is not added again; what only
 * examples show is not added where there is an object of any class.
 * @param {import("../core/document.js").Document} document
 * @param {Concept[]} concepts
 * @param {(words: string) => import("../core/classes.js").Class|null} classOf
 */
export function withInstances(document, concepts, classOf) {
  const asked = new Set(concepts.map(({ words }) => words));
  const isReplaced = (thing) => isUntouched(thing) && (thing.found.words === undefined || asked.has(thing.found.words));
  const kept = document.things.filter((thing) => !isReplaced(thing));
  const colours = kept.map(({ colour }) => colour);
  const found = concepts.flatMap(({ words, instances }) => {
    const one = classOf(words);
    const isOfIt = ({ classId }) => !words || (classId ?? null) === (one?.id ?? null);
    const known = kept.filter(isOfIt).map(maskOf).filter(Boolean);
    const isNew = ({ mask }) => areaOf(mask) > 0 && !known.some((other) => isSame(mask, other));
    return instances.filter(isNew).map(({ mask, score }) => {
      const colour = nextColour(colours);
      colours.push(colour);
      return { mask, score, colour, one, words };
    });
  });
  return addFound(document, found, null, isReplaced);
}

const isSame = (a, b) => {
  if (!doMeet(bounds(a), bounds(b))) return false;
  const all = areaOf(union(a, b));
  return areaOf(a) + areaOf(b) - all > SAME * all;
};

const doMeet = (a, b) => a && b && a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

/**
 * @param {Concept[]} concepts @param {number} least score of what is shown
 * @returns {{missing: string, counted: string}} missing: what there is none of, and how to see more; counted: for screen readers
 */
export function sentencesFor(concepts, least) {
  const absent = concepts.filter(({ instances }) => !instances.length);
  const present = concepts.filter(({ instances }) => instances.length);
  const told = present.map(({ words, found, instances }) => {
    const shown = instances.filter(({ score }) => score >= least).length;
    const what = shortened(words) || "instance";
    if (!shown) return `No ${what} with a score of ${least.toFixed(2)} or more: lower Least score to see ${instances.length} with less.`;
    return found > instances.length ? `${found.toLocaleString("en")} were found for ${what}, and the best ${instances.length} are here.` : "";
  });
  const counted = concepts.map(({ words, instances }) => {
    const shown = instances.filter(({ score }) => score >= least).length;
    return `${words || "Like the examples"}: ${shown} found.`;
  });
  return { missing: [absentOf(absent), ...told].filter(Boolean).join(" "), counted: counted.join(" ") };
}

/** @returns {string} "No coin, cup, spoon or 3 others found." */
function absentOf(concepts) {
  if (!concepts.length) return "";
  const names = concepts.slice(0, NAMED).map(({ words }) => shortened(words));
  if (!names[0]) return "Nothing like the examples was found.";
  const more = concepts.length - names.length;
  if (more) names.push(more === 1 ? "1 other" : `${more} others`);
  const last = names.pop();
  return `No ${names.length ? `${names.join(", ")} or ${last}` : last} found.`;
}

const shortened = (words) => (words.length > LONGEST_NAMED ? `${words.slice(0, LONGEST_NAMED).trimEnd()}…` : words);
