"""The steps from a spec to what is sent: GPUs meant, layout, amounts and script."""
