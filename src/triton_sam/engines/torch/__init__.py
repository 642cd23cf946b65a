"""The engine for GPUs: transformers' networks, rearranged so that few and large steps are left, in CUDA graphs."""
