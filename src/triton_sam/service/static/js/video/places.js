/**
 * A stack with more dimensions than slices or times: the others are held at one index each. The service's refusal names them.
 *
 * @typedef {{name: string, most: number}} Place  a dimension by its letter, and its last index
 */

const NAMES = { c: "Channel", s: "Colour", t: "Time", z: "Slice" };

/** @param {string} message of the service @returns {Place[]} the dimensions that it asks for; none if it is about something else */
export function placesIn(message) {
  if (!/\bat=\w+=\d/.test(message)) return [];
  return [...message.matchAll(/\b(\w+) from 0 to (\d+)/g)].map(([, name, most]) => ({ name, most: Number(most) }));
}

/** @param {Place} place @returns {string} for a label */
export const placeLabel = ({ name, most }) => `${NAMES[name] ?? name}, 0 to ${most.toLocaleString("en")}`;

/** @param {Place[]} places @param {number[]} indices @returns {string} the API's `at`, "c=1,t=0" */
export const placesText = (places, indices) =>
  places.map(({ name, most }, index) => `${name}=${Math.min(most, Math.max(0, Math.round(indices[index]) || 0))}`).join(",");
