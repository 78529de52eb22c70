"""Sweeps: read from files, remembered when they are sent, and followed point by point."""
