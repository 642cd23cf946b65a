/**
 * Objects as GeoJSON, as QuPath reads it.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {import("./coco.js").Picture} Picture
 */

import { polygonsOf } from "../core/polygon.js";

/**
 * @param {Picture} picture
 * @param {Array<{name: string, category?: string, className?: string | null, colour: string, mask: Mask, clean?: number, score?: number | null}>} objects
 *   Colours as "#rrggbb". Without a category of its own an object's name is one.
 * @returns {object} A FeatureCollection for JSON, a Feature an object: its exact border in original pixels,
 *   xy, y downwards. Objects with an empty mask are left out, as they have no geometry.
 */
export function geoJson(picture, objects) {
  const features = objects.map((object) => feature(object, polygonsOf(object.mask)));
  return {
    type: "FeatureCollection",
    name: picture.name,
    features: features.filter(({ geometry }) => geometry.coordinates.length > 0),
  };
}

function feature({ name, category, className = null, colour, clean, score }, polygons) {
  return {
    type: "Feature",
    geometry:
      polygons.length === 1
        ? { type: "Polygon", coordinates: polygons[0] }
        : { type: "MultiPolygon", coordinates: polygons },
    properties: {
      name,
      class: className,
      ...(score == null ? {} : { score }),
      ...(clean ? { clean: { holes: clean, islands: clean } } : {}),
      objectType: "annotation",
      classification: { name: category ?? name, color: redGreenBlue(colour) },
    },
  };
}

function redGreenBlue(colour) {
  if (!/^#[0-9a-f]{6}$/i.test(colour)) throw new Error(`A colour is written as #rrggbb, not as ${colour}.`);
  return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
}
