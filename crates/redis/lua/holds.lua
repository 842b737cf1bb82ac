-- Makes, settles and extends holds. A call has one request and the record of one hold. The record says what
-- the call may do, and changes in the same step as the states.
--
-- This file has the code that all three operations need. To make a hold, `hold.lua` and `hold_decide.lua`
-- follow. To settle or extend a hold, `hold_find.lua` follows, and then `settle.lua` or `extend.lua`. Every
-- call pays for each function that it defines, so there are few functions.
--
-- KEYS     After the keys of the plan: the record; then, if it is on the same server, the index of due holds: see
--          `records.lua`; then, for the deciding part of a hold that is counted, the open holds of its subject: a
--          sorted set of ids by expiry.
-- ARGV[2]  The arguments:
--            id           16 bytes
--            flags         1 byte   1: the index is in KEYS. 2: the hold has slots. 4: `time` is a point in time.
--                                   8: skip the checks of token and time. 16: the open holds are in KEYS.
--                                   32: the hold was made a moment ago: give it back whole
--            retain        7 bytes  for how long the record is kept. For settle: after the end of the hold, or after
--                                   its expiry if that is later. Otherwise: after the expiry, because an instance may
--                                   end the hold late
--            how           1 byte   for hold: 0 reservation, 1 lease. For settle: 1 commit, 2 release, 3 expire,
--                                   4 release a lease, 5 undo, as if the hold had never been made
--            time          7 bytes  how long the hold lasts
--            token        16 bytes
--            fingerprint   8 bytes
--            waits         1 byte   1: there is a ticket
--            ticket       16 bytes
--            patience      7 bytes  for how long the place in the queue is kept
--            units         7 bytes  for settle: the units that were used
--            fence         7 bytes  for hold: the least fence that the hold may get
--            made          7 bytes  for settle and extend: when the hold was charged; 0 for any hold with the id
--            most          7 bytes  for hold: the most open holds of the subject
--            charges       2 bytes  how many charges the record has
--          and for each charge its position in the plan, or 0 (2 bytes), the cost of a unit and the overdraft
--          (7 bytes each).
-- ARGV[3]  The owner.
-- ARGV[4]  For hold: the text at the end of the record.
-- ARGV[5]  The id as it is written in the index.
-- Returns  The time, a code, the record or '', a number, and for a decision about a hold its answer in detail. A
--          record that was written now comes without the text at its end. The codes:
--            0 done; 1 the hold exists or has ended already; 2 a different hold has this id
--            3 denied: the number is how many clients wait before this one, or -1 if it does not wait
--            4 there is no such hold, or it has expired; 5 the caller may not change the hold
--            6 the hold has not expired yet
--            7 the hold has lost its slots; 8 another program wrote a value: the number is its position in KEYS
--            9 the ledger must restore a state first; 10 another hold has this id by now
--            11 the subject has too many open holds
--            12 no charge denies the hold, but a state is missing, and there is no room for it
-- Record   'h'; the state: 0 open, 1 consumed, 2 released, 3 expired; the purpose (1 byte each); the units
--          (7 bytes); whether it was committed (1 byte), the units that were used, when it was charged, when it
--          expires (7 bytes each); the token (16 bytes), the fingerprint (8 bytes); the fence (7 bytes); how many
--          charges (2 bytes) and what each has taken (7 bytes each); then the text.

local DONE, ALREADY, FOREIGN = 0, 1, 8
local MAX = 9007199254740991
local HEAD = '<c1BBI7BI7I7I7c16c8I7I2'
-- How many milliseconds the index is kept: as long as the longest hold and its record.
local INDEX_KEPT = '32227200000'

local id, bits, retain, how, time, token, fingerprint, waits, ticket, patience, amount, least, made, most, charges, from =
  unpack_at('<c16BI7BI7c16c8Bc16I7I7I7I7I7I2', ARGV[2])
local indexed, counted = bits % 2, bits % 32 >= 16 and 1 or 0
local absolute, certain = bits % 8 >= 4, bits % 16 >= 8
local record_at = #KEYS - indexed - counted
local record_key, index = KEYS[record_at], indexed == 1 and KEYS[record_at + 1] or nil
local open = counted == 1 and KEYS[#KEYS] or nil
hold.id, hold.owner = id, ARGV[3]

-- The record may have been read with the states.
local value
if record_at > whole then
  value = call('GET', record_key)
else
  value = values[record_at]
end
