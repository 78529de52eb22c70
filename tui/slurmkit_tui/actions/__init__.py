"""Actions of the TUI: keys, palette entries and the commands they run."""
