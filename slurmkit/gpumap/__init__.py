"""Which GPU of which node is held by whose job, over the whole cluster.

>>> from slurmkit.gpumap.read import read_gpus
>>> [gpu for gpu in read_gpus(Cluster().slurm).gpus if (gpu.node, gpu.index) == ("c3", 2)]
"""
