-- Ended jobs number @first to @last of @rows, spread over [@begin, @end), for the tables of Slurm
-- 24.11, as slurmctld has slurmdbd fill them. Chance is a hash of a job's number: the same each time.

SET @cluster_id = (SELECT id FROM cluster_table WHERE name = '{cluster}');
SET @gpu = (SELECT id FROM tres_table WHERE type = 'gres' AND name = 'gpu');
SET @a100 = (SELECT id FROM tres_table WHERE type = 'gres' AND name = 'gpu:a100');
SET @h100 = (SELECT id FROM tres_table WHERE type = 'gres' AND name = 'gpu:h100');
SET @gpumem = (SELECT id FROM tres_table WHERE type = 'gres' AND name = 'gpumem');
SET @gpuutil = (SELECT id FROM tres_table WHERE type = 'gres' AND name = 'gpuutil');
SET @none = 4294967294;

CREATE TEMPORARY TABLE people AS
    SELECT row_number() OVER (ORDER BY user) - 1 AS person, id_assoc, acct, user
    FROM `{cluster}_assoc_table` WHERE user LIKE 'bench%' AND NOT deleted;
ALTER TABLE people ADD PRIMARY KEY (person);
SET @people = (SELECT count(*) FROM people);

CREATE TEMPORARY TABLE made AS
WITH drawn AS (
    SELECT seq AS n, md5(seq) AS hash FROM seq_{first}_to_{last}
), chances AS (
    SELECT n, hash,
        conv(substr(hash, 1, 6), 16, 10) / 16777216 AS who,
        conv(substr(hash, 7, 6), 16, 10) / 16777216 AS waits,
        conv(substr(hash, 13, 6), 16, 10) / 16777216 AS length,
        conv(substr(hash, 19, 6), 16, 10) / 16777216 AS angle,
        conv(substr(hash, 25, 4), 16, 10) AS shape,
        conv(substr(hash, 29, 4), 16, 10) AS ending
    FROM drawn
), times AS (
    -- A few people submit most; waits are exponential, lengths lognormal around half an hour.
    SELECT n, shape, ending, floor(@begin + n * (@end - @begin) / @rows) AS submit,
        floor(@people * who * who) AS person, 1 + floor(-ln(waits + 1e-7) * 600) AS waited,
        5 + floor(exp(7.5 + 1.5 * sqrt(-2 * ln(length + 1e-7)) * cos(2 * pi() * angle))) AS lasted
    FROM chances
)
SELECT n, (@cluster_id << 52) + (((@begin * 1000) + floor(n * (@end - @begin) * 1000 / @rows)) << 10)
        AS db_inx,
    10000000 + n AS id, person, submit, least(submit + waited, @end) AS start,
    least(submit + waited + least(lasted, 86400), @end) AS end,
    -- COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, PREEMPTED
    elt(1 + (ending % 100 >= 80) + (ending % 100 >= 89) + (ending % 100 >= 94)
        + (ending % 100 >= 97) + (ending % 100 >= 98) + (ending % 100 >= 99), 3, 5, 4, 6, 11, 7, 8)
        AS state,
    elt(1 + shape % 6, 0, 1, 1, 2, 4, 8) AS gpus, IF(shape DIV 6 % 3, @a100, @h100) AS kind,
    IF(shape % 6, elt(1 + shape % 6, 0, 8, 4, 16, 32, 64), 1 + shape DIV 6 % 32) AS cpus,
    IF(shape % 6 = 5 AND shape DIV 6 % 4 = 0, 2, 1) AS nodes,
    -- A fifth are tasks of arrays of ten.
    IF(n DIV 10 % 5 = 0, 10000000 + n - n % 10, 0) AS array_job, shape
FROM times;

INSERT INTO `{cluster}_job_table` (
    job_db_inx, mod_time, account, cpus_req, exit_code, flags, job_name, id_assoc, id_array_job,
    id_array_task, id_job, id_qos, id_resv, id_wckey, id_user, id_group, het_job_id,
    het_job_offset, kill_requid, state_reason_prev, mem_req, nodelist, nodes_alloc, node_inx,
    `partition`, priority, state, timelimit, time_submit, time_eligible, time_start, time_end,
    work_dir, std_in, std_out, submit_line, tres_alloc, tres_req)
SELECT db_inx, end, acct, cpus, IF(state = 5, 256, 0), 20,
    concat(elt(1 + shape % 4, 'train', 'eval', 'prep', 'sweep'), '-', n % 5000), id_assoc,
    array_job, IF(array_job, n % 10, @none), id, 1, 0, 0, 20000 + person, 20000, 0, @none,
    IF(state = 4, 20000 + person, NULL), 0, 9223372036854776832,
    IF(nodes = 2, 'c[1-2]', concat('c', 1 + n % 7)), nodes, IF(nodes = 2, '0-1', n % 7),
    IF(gpus, 'gpu', 'cpu'), 1000 + shape % 1000, state,
    elt(1 + shape % 5, 60, 240, 720, 1440, 1440), submit, submit, start, end,
    concat('/home/', user), '/dev/null', concat('/home/', user, '/slurm-%j.out'),
    concat('sbatch --gpus=', gpus, ' --time=1440 train-', n % 5000, '.sh'),
    tres, tres
FROM (SELECT made.*, id_assoc, acct, user, concat('1=', cpus, ',2=', cpus * 4096, ',4=', nodes,
    ',5=', cpus + 16 * gpus, IF(gpus, concat(',', @gpu, '=', gpus, ',', kind, '=', gpus), ''))
    AS tres FROM made JOIN people USING (person)) AS jobs
ORDER BY db_inx;

-- Each has a batch step, and one in three an srun step; GPU jobs' steps measured their GPUs.
INSERT INTO `{cluster}_step_table` (
    job_db_inx, exit_code, id_step, nodelist, nodes_alloc, node_inx, state, step_name, task_cnt,
    time_start, time_end, user_sec, user_usec, sys_sec, sys_usec, act_cpufreq, submit_line,
    tres_alloc, tres_usage_in_ave, tres_usage_in_max, tres_usage_in_max_taskid,
    tres_usage_in_max_nodeid, tres_usage_in_min, tres_usage_in_min_taskid,
    tres_usage_in_min_nodeid, tres_usage_in_tot, tres_usage_out_ave, tres_usage_out_max,
    tres_usage_out_min, tres_usage_out_tot)
SELECT db_inx, IF(state = 5, 256, 0), id_step,
    IF(nodes = 2 AND id_step = 0, 'c[1-2]', concat('c', 1 + n % 7)),
    IF(id_step, 1, nodes), IF(nodes = 2 AND id_step = 0, '0-1', n % 7), IF(state = 3, 3, 5),
    IF(id_step, 'batch', 'python'), IF(id_step, 1, nodes), start + 1, end, seconds,
    shape * 10, seconds DIV 20, shape * 7, 2445, IF(id_step, NULL, 'srun python train.py'),
    concat('1=', cpus, ',2=', cpus * 4096, ',4=', nodes,
        IF(gpus, concat(',', @gpu, '=', gpus, ',', kind, '=', gpus), '')),
    used, used, ids, ids, used, ids, ids, used, out_, out_, out_, out_
FROM (SELECT made.*, id_step, (end - start) * cpus * (10 + shape % 80) DIV 100 AS seconds,
        concat('1=', (end - start) * cpus * (10 + shape % 80) * 10, ',2=',
            cpus * 1048576 * (50 + shape % 3000), ',3=0,6=', 1000 * shape, ',7=',
            cpus * 1048576 * (50 + shape % 5000), ',8=', shape % 100,
            IF(gpus, concat(',', @gpumem, '=', gpus * 1048576 * (shape % 40000), ',', @gpuutil, '=',
                gpus * (shape % 101)), '')) AS used,
        '1=0,2=0,6=0,7=0,8=0' AS ids, concat('3=0,6=', 100 * shape) AS out_
    FROM made JOIN (SELECT -5 AS id_step UNION ALL SELECT 0) AS steps
    WHERE end > start + 1 AND (id_step = -5 OR n % 3 = 0)) AS steps
ORDER BY db_inx, id_step;
