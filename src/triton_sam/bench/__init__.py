"""What is measured, how, and its report."""
