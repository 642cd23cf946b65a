"""What a job works on: the images of its inputs, in an order that is always the same, and their bytes."""
