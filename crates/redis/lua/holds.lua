-- Holds, settles and extends: one request, and the record that says what has become of it. The record
-- decides, and is changed in the same step as the states. This is what they have in common; what each does
-- is in `hold.lua`, `settle.lua` and `extend.lua`, the latter two after `found.lua`. A function costs every call
-- that defines it, so there are few.
--
-- KEYS     After those of the plan: the record; and, where the same server keeps it, the index of what is
--          due: a sorted set of ids by the end of their time.
-- ARGV[2]  The question:
--            id           16 bytes
--            flags         1 byte   1: the index is in KEYS. 2: the hold has slots. 4: `time` is an instant.
--                                   8: done whoever asks, and whatever the time
--            retain        7 bytes  for how long a record is kept: to settle, after its end; else after its time
--                                   is over, in case that nobody comes to end it sooner
--            how           1 byte   to hold: 0 reservation, 1 lease. To settle: 1 commit, 2 release, 3 expire,
--                                   4 release a lease, 5 undo: as if it had never been
--            time          7 bytes  how long it is to last
--            token        16 bytes
--            fingerprint   8 bytes
--            waits         1 byte   1: there is a ticket
--            ticket       16 bytes
--            patience      7 bytes  for how long the place in the queue is kept
--            units         7 bytes  to settle: those that were used
--            fence         7 bytes  the least it may be
--            made          7 bytes  to settle or extend: when the hold that is meant was charged; 0 for any
--            charges       2 bytes  how many the record has
--          and for each its place in the plan, or 0 (2 bytes), the cost of a unit and the overdraft
--          (7 bytes each).
-- ARGV[3]  The owner.
-- ARGV[4]  To hold: what the record ends with.
-- ARGV[5]  The id as it stands in the index.
-- Reply    The time, a code, the record or '', a number, and of a hold that was decided its answer in
--          detail. Of what is done now, the record is without what it ends with. Codes: 0 done,
--          1 repeated or ended already, 2 another under this id, 3 refused: the number is how many wait
--          before it, or -1; 4 unknown, 5 not yours, 6 not yet, 7 lapsed, 8 not ours: the number is the
--          place in KEYS; 9 a state is to be restored first; 10 another has this id by now.
-- Record   'h'; the state: 0 open, 1 consumed, 2 released, 3 expired; the purpose (1 byte each); the units
--          (7 bytes); whether it was committed (1 byte), the units that were used, when it was charged, when
--          it expires (7 bytes each); the token (16 bytes), the fingerprint (8 bytes); the fence (7 bytes); how
--          many charges (2 bytes) and what each has taken (7 bytes each); then what it ends with.

local DONE, BEFORE, FOREIGN = 0, 1, 8
local MAX = 9007199254740991
local HEAD = '<c1BBI7BI7I7I7c16c8I7I2'
-- For how long the index is kept: as long as the longest hold may last, and the record of that.
local INDEX_KEPT = '32227200000'

local id, bits, retain, how, time, token, fingerprint, waits, ticket, patience, amount, least, made, charges, from =
  unpack_at('<c16BI7BI7c16c8Bc16I7I7I7I7I2', ARGV[2])
local indexed = bits % 2
local absolute, certain = bits % 8 >= 4, bits >= 8
local record_at = #KEYS - indexed
local record_key, index = KEYS[record_at], indexed == 1 and KEYS[record_at + 1] or nil
hold.id, hold.owner = id, ARGV[3]

-- The record, which may have been read with the states.
local value
if record_at > whole then
  value = call('GET', record_key)
else
  value = values[record_at]
end
