"""Other networks that are trained and measured like our own, for comparison."""
