"""The steps from a spec to what is sent: kinds of GPU, layout, amounts, script."""
