"""From sacct's rows to stored runs."""
