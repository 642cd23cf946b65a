"""Puts the graphs of a model together from published weights and bundled ones, with numpy and onnx alone.

Graphs are exported by torch once, at development time, and kept without their weights as recipes. A recipe says for
each tensor that was taken out which weight belongs there. Filled with a model's weights they are what an export would
write.
"""
