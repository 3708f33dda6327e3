-- Changes, the latest first.
SELECT at, who, token_id, role, project, action, subject, before, after
FROM audit
WHERE ({action:String} = '' OR action = {action:String})
  AND ({who:String} = '' OR who = {who:String})
  AND ({subject:String} = '' OR subject = {subject:String})
  AND toUnixTimestamp64Micro(at) >= {since_us:UInt64}
ORDER BY at DESC, segment_id
LIMIT {limit:UInt32} OFFSET {offset:UInt32}
