"""Container runtimes: pyxis, enroot, Apptainer and OCI."""
