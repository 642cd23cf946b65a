"""What a tracked object is remembered by, and which of it a frame attends to: pure bookkeeping, without arithmetic.

May be imported by all layers above ``core``. Tensors are opaque here: an engine makes them and reads them.
"""
