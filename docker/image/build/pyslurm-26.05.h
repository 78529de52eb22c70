/* Included before all else where PySlurm 25.11, made for Slurm 25.11, is compiled for Slurm 26.05. */
#include <slurm/slurm_version.h>
#if (SLURM_VERSION_NUMBER >> 8) != 0x1a05
#error "this header is for Slurm 26.05"
#endif
/* Calls that took a job's number want a slurm_step_id_t; with this slurm.h takes either. */
#define SLURM_BACKWARD_COMPAT
/* It has a new name. */
#define slurm_free_ctl_conf slurm_free_conf
