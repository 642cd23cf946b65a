"""The torch engine, mainly for GPUs: transformers' networks, rearranged into few large steps and CUDA graphs."""
