-- The fast path for fair buckets: decides plain requests in order, up to the first one that is not plain, which the
-- general path decides with all that follow it. A plain request asks for an exact amount of one bucket, under the numbers
-- that the bucket has, for a client that the bucket knows under the same weight. The formulas are those of `fair.lua`,
-- which describes limits, states and marks. All amounts are integers below 2^53, so `(a - a % b) / b` is the quotient
-- rounded down, and with `-b` in place of the last `b` it is rounded up. There are no functions, because each call would
-- pay for them.

local is_plain = operation == 0 and not full and runs == 0
while is_plain and at <= #plan do
  -- The next request, and its bucket.
  local charges, manner, units, bucket, shared, l, flags, instead, _, cost, total, next_at =
    unpack_at('<I2BI7I2I2I2BI2I2I7I7', plan, at)
  local base, _, m, weight, lane = unpack_at('<I2I2I2I2B', plan, l + 1)
  local size, from = unpack_at('<B', plan, base + 4)
  local value, head = values[bucket], sub(plan, from, from + size - 1)
  local count = (size - 36) / 2
  -- Marks that further clients share follow the lanes, and stay as they are.
  local fixed = size + 34 + 58 * count
  if not value or #value < fixed or sub(value, 1, size) ~= head then
    break
  end
  local _, tick_length, capacity, token, rate, scale, epoch_length, earned = unpack_at('<c1I2I7I7I4I3I4I7', head)
  local life, ends, tick, generation, epoch, current, previous, shared_marks =
    unpack_at('<I4I7I7I4I5I3I3B', value, size + 1)
  if now - now % 30000000 > generation * 30000000 then
    break
  end
  local new_epoch, here = (now - now % epoch_length) / epoch_length, (now - now % tick_length) / tick_length
  local epochs, refill = new_epoch - epoch, here > tick and (here - tick) * rate or 0

  -- The lanes: their shares, whether they are strict, their levels, and their numbers as in `fair.lua`. A bucket with one
  -- lane needs no tables.
  local shares, strict, fulls, halves, inflows, pool, whole
  if count > 1 then
    shares, strict, fulls, halves, inflows, whole = {}, {}, {}, {}, {}, 0
    for lane = 1, count do
      local it = unpack_at('<I2', head, 35 + 2 * lane)
      shares[lane], strict[lane] = it % 32768, it >= 32768
      whole = whole + it % 32768
    end
    pool = { unpack_at('<' .. string.rep('I7I7I7I4I4I4I4I7I7I7', count), value, size + 35) }
    -- What full lanes would lose goes to the others, as in `inflows` of `fair.lua`.
    local bound, left, lacking, sum = (9007199254740991 - 9007199254740991 % whole) / whole - whole - 2, 0, 0, 0
    bound = refill < bound and refill or bound
    for lane = 1, count do
      local remainder = tick % whole * (rate % whole) % whole
      local own, its_missing = (bound + remainder) * shares[lane], pool[10 * lane - 9]
      remainder = remainder * shares[lane]
      own = (own - own % whole) / whole - (remainder - remainder % whole) / whole
      inflows[lane] = own
      if own > its_missing then
        left = left + own - its_missing
      elseif its_missing > own and not strict[lane] then
        lacking, sum = lacking + its_missing - own, sum + shares[lane]
      end
    end
    left = left < lacking and left or lacking
    local to_divide = left
    for round = 1, 2 do
      for lane = 1, count do
        local lacks, gift = pool[10 * lane - 9] - inflows[lane], left
        if left > 0 and lacks > 0 and not strict[lane] then
          if round == 1 then
            gift = to_divide * shares[lane]
            gift = (gift - gift % sum) / sum
          end
          gift = gift < lacks and gift or lacks
          inflows[lane], left = inflows[lane] + gift, left - gift
        end
      end
    end
  end

  -- The lane of the last request. Its numbers are in these variables.
  local lane_now, part, lane_capacity, full_level, reserve, half, nearly_full = 1, 1, capacity, nil, nil, nil, nil
  local missing, virtual, unmoved, known, known_before, contending, contending_before, shift, wanted, wanted_before
  local all, share, earns = 0, 0, 0
  for lane = 1, count do
    local refilled = refill
    if count > 1 then
      lane_now, part = lane, shares[lane]
      full_level = capacity * token * part
      full_level = (full_level - full_level % whole) / whole
      refilled = inflows[lane]
      missing, virtual, unmoved, known, known_before, contending, contending_before, shift, wanted, wanted_before =
        unpack(pool, 10 * lane - 9, 10 * lane)
    else
      full_level = capacity * token
      missing, virtual, unmoved, known, known_before, contending, contending_before, shift, wanted, wanted_before =
        unpack_at('<I7I7I7I4I4I4I4I7I7I7', value, 73)
    end
    reserve, half = (full_level - full_level % 4) / 4, (full_level - full_level % 2) / 2
    local least = full_level > token and full_level - token or 0
    least = least < token and least or token
    reserve = reserve > least and reserve or least
    half, nearly_full = half > reserve and half or reserve, full_level - (reserve - reserve % 4) / 4
    if epochs > 0 then
      contending, contending_before = 0, epochs == 1 and contending or 0
      wanted, wanted_before = 0, epochs == 1 and wanted or 0
    end
    missing = refilled < missing and missing - refilled or 0
    all = known + known_before
    if all > 0 then
      unmoved = unmoved + refilled
      unmoved = unmoved < full_level and unmoved or full_level
      if unmoved > 0 then
        local moved, one = unmoved * scale, all * token
        moved = (moved - moved % one) / one
        virtual = virtual + moved
        local used = moved * one
        used = (used - used % -scale) / scale
        unmoved = unmoved > used and unmoved - used or 0
      end
    end
    if count > 1 then
      local i = 10 * lane
      fulls[lane], halves[lane] = full_level, half
      pool[i - 9], pool[i - 8], pool[i - 7], pool[i - 4], pool[i - 3] =
        missing, virtual, unmoved, contending, contending_before
      pool[i - 1], pool[i] = wanted, wanted_before
    end
  end
  if epochs > 0 then
    epoch = new_epoch
  end
  if here > tick then
    tick = here
  end
  local weight_before, saves, tolerates, idles = 0, 0, 0, 0
  local memory = (30000000 - 30000000 % epoch_length) / epoch_length
  local is_touched, last = false, 0

  while true do
    lane = lane % 128 + 1
    local mark, kind = values[m], flags % 64
    is_plain = charges == 1
      and manner == 0
      and units > 0
      and shared == 0
      -- The charge may deny, and notes denials.
      and (kind == 17 or kind == 21 or kind == 25)
      and instead == 0
      and cost == total
      and cost > 0
      and mark
      and #mark == 23
    if not is_plain then
      break
    end
    local its_life, its_generation, got, its_weight, contended = unpack_at('<I4I4I7I2I5', mark, 2)
    local age = generation - its_generation
    if its_life ~= life or its_weight ~= weight or age < 0 or age > 1 then
      is_plain = false
      break
    end
    cost = cost * units
    if lane ~= lane_now then
      local i = 10 * lane_now - 9
      pool[i], pool[i + 1], pool[i + 2], pool[i + 3] = missing, virtual, unmoved, known
      pool[i + 4], pool[i + 5], pool[i + 6], pool[i + 7] = known_before, contending, contending_before, shift
      pool[i + 8], pool[i + 9] = wanted, wanted_before
      lane_now, part, full_level, half, weight_before = lane, shares[lane], fulls[lane], halves[lane], 0
      missing, virtual, unmoved, known, known_before, contending, contending_before, shift, wanted, wanted_before =
        unpack(pool, 10 * lane - 9, 10 * lane)
      all = known + known_before
      reserve = (full_level - full_level % 4) / 4
      local least = full_level > token and full_level - token or 0
      least = least < token and least or token
      reserve = reserve > least and reserve or least
      nearly_full = full_level - (reserve - reserve % 4) / 4
    end
    if weight_before == 0 then
      -- What clients may save up: their share of the lane, or what they earn.
      share, earns = full_level * scale, earned
      share, earns = (share - share % all) / all, (earns - earns % all) / all
      share = (share - share % token) / token
      lane_capacity = (full_level - full_level % token) / token
    end
    if cost > lane_capacity then
      is_plain = false
      break
    end
    is_touched, at = true, next_at
    if age == 1 then
      got = got > shift and got - shift or 0
      known, known_before = known + weight, known_before - weight
      current, previous = current + 1, previous - 1
    end
    if weight ~= weight_before then
      weight_before = weight
      local most = half * scale
      most = (most - most % weight) / weight
      most = (most - most % token) / token
      most = most < earns and most or earns
      if count > 1 then
        local rest = most % whole
        most = (most - rest) / whole * part + (rest * part - rest * part % whole) / whole
      end
      saves, tolerates = most > share and most or share, (scale - scale % weight) / weight
      -- How far a calm client may be ahead, and how far while nobody else was denied lately.
      local half = (reserve - reserve % 2) / 2 * scale
      half = (half - half % weight) / weight
      half = (half - half % token) / token
      half = half < most and half or most
      tolerates, idles = tolerates > half and tolerates or half, full_level * scale
      idles = (idles - idles % weight) / weight
      idles = (idles - idles % token) / token
    end

    -- The first round decides, and is written. The second tells what is left, or the time of the next try.
    local asked, allowed, needed, available, passes, when = cost, nil, nil, nil, nil, nil
    for round = 1, 2 do
      local level, surplus_from = missing < full_level and full_level - missing or 0, half
      surplus_from = wanted > surplus_from and wanted or surplus_from
      surplus_from = wanted_before > surplus_from and wanted_before or surplus_from
      local its_virtual, its_got, its_contended = virtual, got, contended
      local contends = its_contended > 0 and its_contended >= epoch
      local is_alone, is_calm = all == weight, not contends
      if not is_alone and its_contended > 0 then
        is_calm = its_contended + memory <= epoch
      end
      local now_contending, now_before = contending, contending_before
      if its_got < its_virtual - saves then
        its_got = its_virtual - saves
      end
      if is_alone and is_calm and its_got > its_virtual then
        its_virtual = its_got
      end
      local others = now_contending + now_before
      if contends then
        others = others > weight and others - weight or 0
      end
      needed = asked * token
      if its_got > its_virtual then
        local together, ahead = others + weight, its_got - its_virtual
        local above, refills = ahead * together * token, ahead * all * token
        needed = surplus_from + (above - above % -scale) / scale
        needed = needed < full_level and needed or full_level
        if level >= needed then
          its_virtual = its_got
        elseif level > surplus_from then
          local moved = (level - surplus_from) * scale
          moved = (moved - moved % together) / together
          moved = (moved - moved % token) / token
          its_virtual = its_virtual + (moved < ahead and moved or ahead)
        end
        refills = (refills - refills % -scale) / scale
        refills = (refills < full_level and refills or full_level) + full_level - missing
        refills = refills > 0 and refills or 0
        needed = needed < refills and needed or refills
      end
      local tolerated, reserved = 0, reserve
      if is_calm then
        tolerated = others == 0 and idles or tolerates
        reserved = is_alone and 0 or (reserve - reserve % 2) / 2
      end
      local is_ahead = its_got > its_virtual + tolerated
      if is_ahead then
        available = 0
      elseif level >= nearly_full then
        available = (level - level % token) / token
      else
        local behind = its_virtual > its_got and (its_virtual - its_got) * weight or 0
        local owed, has = (behind - behind % scale) / scale, (level - level % token) / token
        available = level > reserved and level - reserved or 0
        available = (available - available % token) / token
        owed = owed < has and owed or has
        available = available > owed and available or owed
      end
      passes = not is_ahead and asked <= available
      local wants, needs = asked * token, reserve + asked * token
      wants = wants > nearly_full and wants or nearly_full
      wants = wants < needs and wants or needs
      wants = wants < full_level and wants or full_level
      needed = needed > wants and needed or wants
      needed = needed < full_level and needed or full_level
      local its_wanted = not passes and its_got <= its_virtual and wants > wanted and wants or wanted
      if not passes and its_contended ~= epoch + 1 then
        if its_contended == epoch and its_contended > 0 then
          now_before = now_before > weight and now_before - weight or 0
        end
        its_contended, now_contending = epoch + 1, now_contending + weight
      end
      if round == 1 then
        virtual, got, contended = its_virtual, its_got, its_contended
        contending, contending_before = now_contending, now_before
        allowed, wanted = passes, its_wanted
        if passes then
          missing, asked = missing + cost * token, 0
          local moved = cost * scale
          got = got + (moved - moved % -weight) / weight
          if count == 1 and is_calm and got <= virtual + tolerated then
            -- The second round would be short.
            level = missing < full_level and full_level - missing or 0
            local behind = virtual > got and (virtual - got) * weight or 0
            local owed, has = (behind - behind % scale) / scale, (level - level % token) / token
            available = level > reserved and level - reserved or 0
            available = (available - available % token) / token
            owed = owed < has and owed or has
            available = available > owed and available or owed
            available = level < nearly_full and available or has
            break
          end
        end
      elseif not passes then
        local lacks, by = needed + missing - full_level, rate
        lacks = lacks > 0 and lacks or 0
        if count > 1 then
          lacks, by = (lacks + 1) * whole, rate * part
        end
        when = (tick + (lacks - lacks % -by) / by) * tick_length
        when = when > now and when or now + 1
      end
    end

    local reset = missing - missing % -rate
    if count > 1 then
      pool[10 * lane - 9], reset = missing, 0
      for other = 1, count do
        local owed, by = pool[10 * other - 9], rate * shares[other]
        if owed > 0 then
          owed = (owed + 1) * whole
          owed = (owed - owed % -by) / by * rate
          reset = reset > owed and reset or owed
        end
      end
    end
    reset = (tick + reset / rate) * tick_length
    last = reset
    reset = reset > now and reset or now
    if allowed then
      reply[filled + 1], reply[filled + 2], filled = available, reset, filled + 2
    else
      reply[filled + 1], reply[filled + 2], reply[filled + 3] = -1, 0, 0
      -- The note of the denial can make room at once. The request stays denied, and may try again in the next instant.
      reply[filled + 4], reply[filled + 5] = 1, when or now + 1
      reply[filled + 6], reply[filled + 7], filled = available, reset, filled + 7
    end
    local text = pack('<I7I2I5', got, weight, contended)
    if age == 0 then
      -- The mark expires with its generation. SETRANGE keeps the expiry of the key.
      call('SETRANGE', KEYS[m], '9', text)
    else
      text = pack('<c1I4I4', 'k', life, generation) .. text
      call('SET', KEYS[m], text, 'PX', (time_to_live((generation + 2) * 30000000)))
    end
    if at > #plan then
      break
    end
    values[m] = age == 0 and sub(mark, 1, 9) .. text or text
    local next_bucket, next_base
    charges, manner, units, next_bucket, shared, l, flags, instead, _, cost, total, next_at =
      unpack_at('<I2BI7I2I2I2BI2I2I7I7', plan, at)
    next_base, _, m, weight, lane = unpack_at('<I2I2I2I2B', plan, l + 1)
    if next_bucket ~= bucket or next_base ~= base then
      break
    end
  end

  if is_touched then
    local lasts, grid
    last = last > (generation + 2) * 30000000 and last or (generation + 2) * 30000000
    if last > ends then
      lasts, grid = time_to_live(last)
      ends = last - last % -2 ^ (grid + 10)
    end
    local text, place = nil, '38'
    if count > 1 then
      local i = 10 * lane_now - 9
      pool[i], pool[i + 1], pool[i + 2], pool[i + 3] = missing, virtual, unmoved, known
      pool[i + 4], pool[i + 5], pool[i + 6], pool[i + 7] = known_before, contending, contending_before, shift
      pool[i + 8], pool[i + 9] = wanted, wanted_before
      text = pack('<I4I7I7I4I5I3I3B', life, ends, tick, generation, epoch, current, previous, shared_marks)
        .. pack('<' .. string.rep('I7I7I7I4I4I4I4I7I7I7', count), unpack(pool, 1, 10 * count))
      place = size
    else
      text = pack(
        '<I4I7I7I4I5I3I3BI7I7I7I4I4I4I4I7I7I7',
        life,
        ends,
        tick,
        generation,
        epoch,
        current,
        previous,
        shared_marks,
        missing,
        virtual,
        unmoved,
        known,
        known_before,
        contending,
        contending_before,
        shift,
        wanted,
        wanted_before
      )
    end
    if lasts then
      call('SET', KEYS[bucket], head .. text .. sub(value, fixed + 1), 'PX', lasts)
    else
      -- SETRANGE keeps the expiry of the key.
      call('SETRANGE', KEYS[bucket], place, text)
    end
    values[bucket] = at <= #plan and head .. text .. sub(value, fixed + 1)
  end
end
