"""What a cluster is and has: discovered, never assumed."""
