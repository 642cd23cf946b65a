"""Where the prompts of a job come from: COCO and CSV files, read in a stream, or a function."""
