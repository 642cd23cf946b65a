/**
 * Reads GeoJSON in pixels of the image (y down), as this page and QuPath write it.
 *
 * @typedef {import("./coco.js").ImportedObject} ImportedObject
 * @typedef {import("./coco.js").NamedClass} NamedClass
 */
import { colourFrom } from "../core/classes.js";
import { area } from "../core/mask.js";
import { union } from "../core/mask_ops.js";
import { polygonMask } from "../core/polygon_fill.js";

const SHAPES = ["Polygon", "MultiPolygon"];

/** @param {any} document @returns {boolean} */
export const isGeoJson = (document) => featuresOf(document) !== null;

/** @returns {object[]|null} the features of a collection, of a list (older QuPath), or the one that it is */
function featuresOf(document) {
  if (document?.type === "FeatureCollection" && Array.isArray(document.features)) return document.features;
  if (Array.isArray(document) && document.length && document.every((one) => one?.type === "Feature")) return document;
  if (document?.type === "Feature") return [document];
  if (document?.type === "GeometryCollection" && Array.isArray(document.geometries)) return document.geometries.map(asFeature);
  return SHAPES.includes(document?.type) ? [asFeature(document)] : null;
}

const asFeature = (geometry) => ({ type: "Feature", geometry, properties: {} });

/**
 * @param {any} document of JSON
 * @returns {{imageName: string|null, classes: NamedClass[], features: object[]}} imageName: as this page writes it
 */
export function readGeoJson(document) {
  const features = featuresOf(document);
  const classes = new Map();
  for (const { properties } of features) {
    const name = classNameOf(properties);
    if (!name || classes.has(name)) continue;
    const { color, colorRGB } = properties?.classification ?? {};
    classes.set(name, { name, colour: colourFrom(color ?? colorRGB) });
  }
  const imageName = typeof document.name === "string" ? document.name : null;
  return { imageName, classes: [...classes.values()], features };
}

/** This page writes the class itself, null for none; others a classification, or a plain property. */
function classNameOf(properties) {
  if (!properties) return null;
  if ("class" in properties && properties.class === null) return null;
  const { classification } = properties;
  const path = Array.isArray(classification?.names) ? classification.names.join(": ") : null;
  const found = [properties.class, classification?.name, path, classification, properties.category, properties.label];
  return found.find((value) => typeof value === "string" && value.trim())?.trim() ?? null;
}

/**
 * @param {any} feature
 * @param {{width: number, height: number}} size of the image, original pixels
 * @returns {ImportedObject|null} null if it is no polygon, or none with a pixel of the image
 * @throws {Error} one sentence, if the coordinates are no numbers
 */
export function objectOfFeature({ geometry, properties }, { width, height }) {
  if (!SHAPES.includes(geometry?.type)) return null;
  const polygons = geometry.type === "Polygon" ? [geometry.coordinates] : geometry.coordinates;
  const isPoint = (point) => Array.isArray(point) && Number.isFinite(point[0]) && Number.isFinite(point[1]);
  const isRing = (ring) => Array.isArray(ring) && ring.every(isPoint);
  if (!Array.isArray(polygons) || !polygons.every((rings) => Array.isArray(rings) && rings.every(isRing))) {
    throw new Error("a polygon's coordinates are not numbers");
  }
  const mask = polygons.map((rings) => polygonMask(rings, width, height)).reduce((all, one) => (all ? union(all, one) : one), null);
  if (!mask || area(mask) === 0) return null;
  const name = properties?.name;
  return { className: classNameOf(properties), mask, ...(typeof name === "string" && name.trim() ? { name: name.trim() } : {}) };
}
