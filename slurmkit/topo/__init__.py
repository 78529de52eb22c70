"""Where the GPUs of a node sit: at which cores, and which reach which directly."""
