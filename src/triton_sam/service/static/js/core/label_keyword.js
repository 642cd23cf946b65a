/** The keyword of the text chunk in which a label image tells what its values mean. */
export const LABELS = "labels";
