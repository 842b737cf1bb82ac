//! One call about a hold in one cluster slot: its arguments and its reply. `holds.lua` and `records.lua` describe
//! both.

use std::sync::Arc;

use redis::Value as Reply;
use tollgate_core::{Charge, Enforcement, HoldId, OnDenied, Tag, Time, Token};
use tollgate_store::{Applied, Ask, HeldCharge, HoldRecord, MAX_TTL, RETAIN, StoreError, Wait};

use super::ABANDONED;
use super::stored::{StoredHold, put};
use crate::call_plan::{CallPlan, Sharing};
use crate::key_name::KeyName;
use crate::options::ClockSource;
use crate::reply::{self, Answer};
use crate::request::{HoldArguments, Operation, Request};
use crate::script::{Family, Script};
use crate::store::Shared;

/// The charges of a hold in one cluster slot.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) slot: u16,
    /// The tag of the record in this cluster slot.
    pub(super) tag: Tag,
    /// The indexes of these charges in the hold.
    pub(super) indexes: Vec<usize>,
}

/// Splits a hold by cluster slots. The first part is in the slot of the deciding record, and may have no
/// charges.
pub(super) fn parts<'c>(
    shared: &Shared,
    id: HoldId,
    tags: impl Iterator<Item = Tag> + 'c,
) -> Vec<Part> {
    let mut parts = vec![Part {
        slot: shared.slot(id.tag()),
        tag: id.tag(),
        indexes: Vec::new(),
    }];
    for (index, tag) in tags.enumerate() {
        let slot = shared.slot(tag);
        match parts.iter_mut().find(|part| part.slot == slot) {
            Some(part) => part.indexes.push(index),
            None => parts.push(Part {
                slot,
                tag,
                indexes: vec![index],
            }),
        }
    }
    parts
}

/// The arguments of a call about a hold. Operations leave fields that they do not need at their defaults.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldCall {
    pub(super) how: u8,
    pub(super) time: u64,
    pub(super) token: Token,
    pub(super) fingerprint: u64,
    pub(super) wait: Option<Wait>,
    /// For settle: the units that were used.
    pub(super) units: u64,
    pub(super) least_fence: u64,
    /// For settle and extend: when the hold was charged; 0 for any hold with the id.
    pub(super) made: Time,
    pub(super) has_slots: bool,
    /// Whether `time` is an instant, and not a duration.
    pub(super) until: bool,
    /// Whether to skip the checks of token and time.
    pub(super) certain: bool,
    /// For settle: whether the hold was made a moment ago, by the same call, and is given back whole. Otherwise
    /// the refill since then is subtracted.
    pub(super) just_made: bool,
    /// For hold: the most open holds of the subject.
    pub(super) most_open: u64,
    /// For hold: the text at the end of the record.
    pub(super) text: String,
}

pub(super) const COMMIT: u8 = 1;
pub(super) const RELEASE: u8 = 2;
pub(super) const EXPIRE: u8 = 3;
pub(super) const RELEASE_LEASE: u8 = 4;
pub(super) const UNDO: u8 = 5;

/// The reply of the script.
#[derive(Debug)]
pub(super) enum HoldReply {
    /// Done, with the new record. The record of an undone hold is no longer stored.
    Done(StoredHold),
    /// The same call was made before, or the hold has ended before.
    Already(StoredHold),
    /// A different hold has this id.
    Conflict(StoredHold),
    /// A charge denies the hold. If the hold waits for slots, the number of clients before it in the queue.
    Denied(Option<u64>),
    Unknown,
    NotYours,
    NotYet(StoredHold),
    Lapsed(StoredHold),
    /// A quota has no state here, and the ledger must restore it first.
    Unrestored,
    /// Another hold has this id now.
    Replaced,
    /// The subject has too many open holds.
    TooMany,
}

/// Makes a call about the charges of `part`. `request` has the limited charges of the part, in the same
/// order. Also returns the decision, if the call made one.
pub(super) async fn ask(
    shared: &Shared,
    record: &HoldRecord,
    part: &Part,
    request: &Request,
    operation: Operation,
    call: &HoldCall,
) -> Result<(HoldReply, Option<Applied>), StoreError> {
    let indexed = !shared.is_cluster();
    let mut keys = vec![shared.naming.hold(part.tag, record.id.bits())];
    if indexed {
        keys.push(shared.naming.due(&shared.options.namespace));
    }
    // Only the deciding part counts the hold.
    let subject = record.subject.filter(|_| part.tag == record.id.tag());
    if let Some(subject) = subject {
        keys.push(shared.open_holds(record.id, subject).1);
    }
    let flags = u8::from(indexed) | u8::from(subject.is_some()) << 4;
    let arguments = vec![
        encode(record, part, operation, call, flags),
        record.owner.as_bytes().to_vec(),
        call.text.clone().into_bytes(),
        record.id.to_string().into_bytes(),
    ];
    let hold = HoldArguments {
        script: None,
        keys,
        arguments,
        ..HoldArguments::default()
    };
    let (hold, reply) = run(shared, part.slot, request, operation, hold).await?;
    read(shared, &hold, request, operation, reply)
}

/// Runs a script about a hold in the cluster slot `slot`. Returns its arguments and its raw reply.
async fn run(
    shared: &Shared,
    slot: u16,
    request: &Request,
    operation: Operation,
    hold: HoldArguments,
) -> Result<(Arc<HoldArguments>, Reply), StoreError> {
    let hold = Arc::new(hold);
    let asking = request.for_hold(operation, Arc::clone(&hold));
    let deadline = shared.deadline();
    shared.execute(slot, asking, None, deadline).await?;
    let reply = std::mem::replace(&mut *hold.reply.lock(), Reply::Nil);
    Ok((hold, reply))
}

/// Lays the arguments out as `holds.lua` describes. `flags` are those about the keys.
fn encode(
    record: &HoldRecord,
    part: &Part,
    operation: Operation,
    call: &HoldCall,
    flags: u8,
) -> Vec<u8> {
    let flags = flags
        | u8::from(call.has_slots) << 1
        | u8::from(call.until) << 2
        | u8::from(call.certain) << 3
        | u8::from(call.just_made) << 5;
    let mut bytes = record.id.bits().to_be_bytes().to_vec();
    bytes.push(flags);
    let retain = match operation {
        Operation::Settle => RETAIN,
        _ => ABANDONED,
    };
    put(&mut bytes, retain.as_micros());
    bytes.push(call.how);
    put(&mut bytes, call.time);
    bytes.extend(call.token.bits().to_be_bytes());
    bytes.extend(call.fingerprint.to_be_bytes());
    bytes.push(u8::from(call.wait.is_some()));
    bytes.extend(call.wait.map_or(0, |it| it.ticket).to_be_bytes());
    let patience = call.wait.map_or(0, |it| it.patience.as_micros());
    put(&mut bytes, patience.min(MAX_TTL.as_micros()));
    put(&mut bytes, call.units);
    put(&mut bytes, call.least_fence);
    put(&mut bytes, call.made.as_micros());
    put(&mut bytes, call.most_open);
    // Cannot overflow: a hold has few charges.
    let count = u16::try_from(part.indexes.len()).unwrap_or(u16::MAX);
    bytes.extend(count.to_le_bytes());
    let mut next = 0_u16;
    for index in &part.indexes {
        let charge = &record.charges[*index];
        let is_sent = match operation {
            // An extension changes only slots.
            Operation::Extend => charge.is_slot() && charge.taken > 0,
            _ => Family::of(&charge.limit).is_some(),
        };
        let in_plan = if is_sent {
            next += 1;
            next
        } else {
            0
        };
        bytes.extend(in_plan.to_le_bytes());
        put(&mut bytes, charge.cost);
        put(&mut bytes, charge.overdraft);
    }
    bytes
}

fn read(
    shared: &Shared,
    arguments: &HoldArguments,
    request: &Request,
    operation: Operation,
    reply: Reply,
) -> Result<(HoldReply, Option<Applied>), StoreError> {
    let malformed = || StoreError::Script("the script sent a malformed reply about a hold".into());
    let Reply::Array(parts) = reply else {
        return Err(malformed());
    };
    let mut parts = parts.into_iter();
    let mut head = || parts.next().unwrap_or(Reply::Nil);
    let (now, code, text, number) = (head(), head(), head(), head());
    let (Reply::Int(_), Reply::Int(code), Reply::BulkString(text), Reply::Int(number)) =
        (&now, code, text, number)
    else {
        return Err(malformed());
    };
    let record = match text.is_empty() {
        true => None,
        false => Some(StoredHold::from_bytes(&text).ok_or_else(malformed)?),
    };
    let answer = match (code, record) {
        (0, Some(record)) => HoldReply::Done(record),
        (1, Some(record)) => HoldReply::Already(record),
        (2, Some(record)) => HoldReply::Conflict(record),
        (3, _) => HoldReply::Denied(u64::try_from(number).ok()),
        (4, _) => HoldReply::Unknown,
        (5, _) => HoldReply::NotYours,
        (6, Some(record)) => HoldReply::NotYet(record),
        (7, Some(record)) => HoldReply::Lapsed(record),
        (8, _) => {
            // The number is the position of the key in the call: first the keys of the plan, then the record.
            let sharing = Sharing {
                naming: &shared.naming,
                slot: 0,
                names_shared: &|_| false,
            };
            let plan = CallPlan::new(&[request], &sharing, &|| shared.now());
            let index = usize::try_from(number).unwrap_or(0).saturating_sub(1);
            let name = match plan.keys.get(index) {
                Some(key) => &request.charges[key.charge].name,
                None => &arguments.keys[0],
            };
            let name = String::from_utf8_lossy(name);
            return Err(StoreError::Foreign(name.into()));
        }
        (9, _) => HoldReply::Unrestored,
        (10, _) => HoldReply::Replaced,
        (11, _) => HoldReply::TooMany,
        (12, _) => {
            let error = StoreError::Full;
            shared.metrics.failed(request.script().name, error.kind());
            return Err(error);
        }
        _ => return Err(malformed()),
    };
    let is_decided = operation == Operation::Hold && matches!(code, 0 | 3);
    if !is_decided {
        return Ok((answer, None));
    }
    let numbers = std::iter::once(now).chain(parts);
    let numbers = numbers.map_while(|it| match it {
        Reply::Int(number) => Some(number),
        _ => None,
    });
    let decision = reply::Reply::new(numbers).and_then(|mut it| it.next(request));
    match decision {
        Some(Answer::Applied(applied)) => Ok((answer, Some(applied))),
        _ => Err(malformed()),
    }
}

/// Returns a request with the charges at `indexes` of an existing hold.
pub(super) fn items(
    shared: &Shared,
    charges: &[HeldCharge],
    indexes: &[usize],
    wanted: impl Fn(&HeldCharge) -> bool,
) -> Request {
    let held = indexes.iter().map(|index| &charges[*index]);
    let held = held.filter(|it| wanted(it)).map(|it| Charge {
        // The hold was decided when it was made, so its charges must not deny now.
        enforcement: Enforcement::Shadow,
        on_denied: OnDenied::Nothing,
        ..it.as_charge()
    });
    let (held, ask): (Vec<Charge<'_>>, _) = (held.collect(), Ask::Exactly(0));
    Request::new(&shared.naming, Operation::Settle, &held, ask)
}

/// Runs `records.lua` on `key`, in the cluster slot of `tag`.
pub(super) async fn ask_records(
    shared: &Shared,
    tag: Tag,
    key: KeyName,
    what: &str,
    more: &[&[u8]],
) -> Result<Reply, StoreError> {
    let now = match &shared.options.clock {
        ClockSource::Store => 0,
        ClockSource::Caller(clock) => clock.now().as_micros().max(1),
    };
    let mut all = vec![what.as_bytes().to_vec(), now.to_string().into_bytes()];
    all.extend(more.iter().map(|it| it.to_vec()));
    let hold = HoldArguments {
        script: Some(Script::of_records()),
        keys: vec![key],
        arguments: all,
        ..HoldArguments::default()
    };
    let empty = items(shared, &[], &[], |_| true);
    let (_, reply) = run(shared, shared.slot(tag), &empty, Operation::Settle, hold).await?;
    Ok(reply)
}

/// Reads the stored form of a hold, if there is one.
pub(super) async fn get(
    shared: &Shared,
    tag: Tag,
    id: HoldId,
) -> Result<Option<StoredHold>, StoreError> {
    let key = shared.naming.hold(tag, id.bits());
    match ask_records(shared, tag, key.clone(), "get", &[]).await? {
        Reply::BulkString(bytes) if !bytes.is_empty() => {
            let foreign = || StoreError::Foreign(String::from_utf8_lossy(&key).into());
            StoredHold::from_bytes(&bytes).map(Some).ok_or_else(foreign)
        }
        _ => Ok(None),
    }
}

/// Runs `records.lua` on the index of due holds.
pub(super) async fn ask_index(
    shared: &Shared,
    what: &str,
    arguments: &[&[u8]],
) -> Result<Reply, StoreError> {
    let key = shared.naming.due(&shared.options.namespace);
    ask_records(shared, Tag::default(), key, what, arguments).await
}
