"""Model folders, and the array files in them."""
