-- Refuses, when a job is submitted by whatever command, what `slurmkit plan` refuses, in its words.
--
-- Goes beside slurm.conf, with JobSubmitPlugins=lua there. The words, and the limits of each
-- partition, stand in slurmkit_site.lua in the same folder, made by `slurmkit config slurm-lua`;
-- without that file every job passes. A defect in here or there lets jobs pass, and is logged.

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local SITE = folder .. "slurmkit_site.lua"

-- --- what is asked for ---------------------------------------------------------------------------

-- Reads "gres/gpu:a100:2,gres:shard:3" (the prefix depends on the release; --tres-per-task has
-- "gres/gpu=2") into a list of { name, type, count }; what is no GRES is left out.
local function requests(tres)
   local found = {}
   for item in string.gmatch(tres or "", "[^,]+") do
      local words = {}
      for word in string.gmatch(string.gsub(item, "^gres[:/]", ""), "[^:=]+") do
         table.insert(words, word)
      end
      local count = #words > 1 and tonumber(words[#words])
      table.insert(found, {
         name = words[1] or "",
         type = count and words[3] and words[2] or not count and words[2] or nil,
         count = count or 1,
      })
   end
   return found
end

-- Slurm's "not set" is the largest number of 16 or 32 bits, or the last but one.
local function is_set(number)
   return number ~= nil and number > 0 and number < 65534
end

-- The tasks that one node gets at least: with --ntasks, --ntasks-per-node is only the most.
local function tasks_on_one_node(job)
   if not is_set(job.num_tasks) then
      return is_set(job.ntasks_per_node) and job.ntasks_per_node or 1
   end
   return is_set(job.max_nodes) and math.ceil(job.num_tasks / job.max_nodes) or 1
end

-- What one node must have at least, by each of the three ways to ask: requests per node, per job
-- spread over the most nodes it may get, and per task times the tasks of a node.
local function on_one_node(job)
   local per_job, per_task = requests(job.tres_per_job), requests(job.tres_per_task)
   for _, each in ipairs(per_job) do
      each.count = is_set(job.max_nodes) and math.ceil(each.count / job.max_nodes) or 1
   end
   for _, each in ipairs(per_task) do
      each.count = each.count * tasks_on_one_node(job)
   end
   return { requests(job.tres_per_node), per_job, per_task }
end

-- --- what there is -------------------------------------------------------------------------------

-- The limits of all partitions that the job may start in together, or nil when they are not known.
local function limits_of(job, partitions, site)
   local names = job.partition
   for name, partition in pairs(partitions) do
      if (names == nil or names == "") and partition.flag_default == 1 then
         names = name
      end
   end
   local all = { name = names, most = { gpu = 0, shard = 0, mps = 0 }, types = {} }
   for name in string.gmatch(names or "", "[^,]+") do
      local one = site.partitions[name]
      if one == nil then
         return nil
      end
      for key, most in pairs(one.most) do
         all.most[key] = math.max(all.most[key], most)
      end
      for key, most in pairs(one.types) do
         all.types[key] = math.max(all.types[key] or 0, most)
      end
   end
   return names and all
end

-- --- the checks: each gives the code of a refusal and its values, or nothing ---------------------

local function typed_share(each)
   if (each.name == "shard" or each.name == "mps") and each.type then
      return "typed-shard", each
   end
end

local function whole_and_share(ways)
   local has = {}
   for _, wanted in ipairs(ways) do
      for _, each in ipairs(wanted) do
         has[each.name] = true
      end
   end
   local share = has.shard and "shard" or has.mps and "mps"
   if has.gpu and share then
      return "gpu-and-shared", { name = share }
   end
end

local function bare_profile(each, limits)
   if each.name ~= "gpu" or not each.type or limits.types[each.type] then
      return
   end
   local profile = string.lower(each.type)
   local whole = {}
   for type in pairs(limits.types) do
      if string.lower(string.sub(type, -#profile - 1)):match("^[_-]") and
         string.lower(string.sub(type, -#profile)) == profile then
         table.insert(whole, "gpu:" .. type)
      end
   end
   table.sort(whole)
   if profile:match("%dg%.%d+gb") and #whole > 0 then
      return "mig-profile", { asked = each.type, types = table.concat(whole, ", ") }
   end
end

-- More than one GPU, or one node, of the partition has; none at all is for Slurm to refuse.
local function too_much(each, limits)
   local most = limits.most[each.name]
   local code = ({ shard = "shards-per-gpu", mps = "mps-per-gpu" })[each.name]
   if code and most > 0 and each.count > most then
      return code, { asked = each.count, partition = limits.name, most = most }
   end
end

local function too_many_gpus(wanted, limits)
   local sums = {}
   for _, each in ipairs(wanted) do
      if each.name == "gpu" then
         sums[each.type or ""] = (sums[each.type or ""] or 0) + each.count
      end
   end
   for type, count in pairs(sums) do
      local most = type == "" and limits.most.gpu or limits.types[type] or 0
      local form = type == "" and "gpu:%d" or "gpu:" .. string.gsub(type, "%%", "%%%%") .. ":%d"
      if most > 0 and count > most then
         return "gpus-per-node", {
            asked = form:format(count), partition = limits.name, most = form:format(most),
         }
      end
   end
end

local function first(wanted, limits)
   for _, each in ipairs(wanted) do
      for _, check in ipairs(limits and { typed_share, bare_profile, too_much } or { typed_share }) do
         local code, values = check(each, limits)
         if code then
            return code, values
         end
      end
   end
   if limits then
      return too_many_gpus(wanted, limits)
   end
end

local function refusal(job, partitions, site)
   local ways = on_one_node(job)
   local limits = limits_of(job, partitions, site)
   local code, values = whole_and_share(ways)
   for _, wanted in ipairs(ways) do
      if not code then
         code, values = first(wanted, limits)
      end
   end
   return code, values
end

-- --- what Slurm calls ----------------------------------------------------------------------------

local function say(words, values)
   return (string.gsub(words, "{(%w+)}", function(name) return tostring(values[name]) end))
end

-- Read anew for each job, which takes microseconds: nothing has to be told that it has changed.
local function checked(job, partitions)
   local file = io.open(SITE)
   if file == nil then
      return nil
   end
   file:close()
   local site = dofile(SITE)
   local code, values = refusal(job, partitions, site)
   return code and say(site.words[code], values)
end

function slurm_job_submit(job, partitions, submit_uid)
   local fine, words = pcall(checked, job, partitions)
   if not fine then
      slurm.log_error("slurmkit: job not checked: %s", tostring(words))
   elseif words then
      slurm.log_user("%s", words)
      return slurm.ESLURM_INVALID_GRES or slurm.ERROR  -- 22.05 has no names for its errors
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, modify_uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
