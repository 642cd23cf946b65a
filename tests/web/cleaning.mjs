/**
 * What the page's cleaning makes of masks, for the comparison with the server's: JSON [{mask: {size, counts}, holes,
 * islands}] on standard input, a list of {size, counts} on standard output.
 */

import { text } from "node:stream/consumers";

import { fromCocoRle, toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { cleanMask } from "../../src/triton_sam/service/static/js/core/mask_cleaning.js";

const cases = JSON.parse(await text(process.stdin));
const cleaned = cases.map(({ mask, holes, islands }) => toCocoRle(cleanMask(fromCocoRle(mask), { holes, islands })));
process.stdout.write(JSON.stringify(cleaned));
