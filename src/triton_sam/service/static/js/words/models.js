/** Which of the served models find objects by words and examples. */

/** @param {{prompts?: string[]}|undefined} model of {@link Service.models} */
export const takesWords = (model) => model?.prompts?.includes("text") ?? false;
