//! One call about a hold, in one slot: what the script is asked, and what it says. Both are described in
//! `holds.lua` and `records.lua`.

use std::sync::Arc;

use redis::Value as Reply;
use tollgate_core::{Charge, Enforcement, HoldId, OnDenied, Tag, Time, Token};
use tollgate_store::{Applied, Ask, HeldCharge, RETAIN, StoreError, Wait};

use super::ABANDONED;
use super::value::{Value, put};
use crate::name::Name;
use crate::options::ClockSource;
use crate::plan::Plan;
use crate::reply::{self, Answer};
use crate::script::{Family, Script};
use crate::store::{Shared, slot};
use crate::wire::{Operation, Question, Request};

/// The charges of a hold in one slot.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) slot: u16,
    /// What the record in this slot is kept by.
    pub(super) tag: Tag,
    /// Their places in the hold.
    pub(super) places: Vec<usize>,
}

/// The parts of a hold. The first has the record that decides, and may have no charges.
pub(super) fn parts<'c>(
    shared: &Shared,
    id: HoldId,
    tags: impl Iterator<Item = Tag> + 'c,
) -> Vec<Part> {
    let slot_of = |tag: Tag| if shared.is_cluster() { slot(tag) } else { 0 };
    let mut parts = vec![Part {
        slot: slot_of(id.tag()),
        tag: id.tag(),
        places: Vec::new(),
    }];
    for (place, tag) in tags.enumerate() {
        let slot = slot_of(tag);
        match parts.iter_mut().find(|part| part.slot == slot) {
            Some(part) => part.places.push(place),
            None => parts.push(Part {
                slot,
                tag,
                places: vec![place],
            }),
        }
    }
    parts
}

/// What is asked about a hold. What an operation does not need stays as it is by default.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) how: u8,
    pub(super) time: u64,
    pub(super) token: Token,
    pub(super) fingerprint: u64,
    pub(super) wait: Option<Wait>,
    /// To settle: what was used.
    pub(super) units: u64,
    pub(super) least_fence: u64,
    /// To settle or extend: when the hold that is meant was charged; any if not said.
    pub(super) made: Time,
    pub(super) has_slots: bool,
    /// Whether `time` is an instant.
    pub(super) until: bool,
    /// Whether it is done whoever asks, and whatever the time.
    pub(super) certain: bool,
    pub(super) owner: Arc<str>,
    /// To hold: what the record ends with.
    pub(super) text: String,
}

pub(super) const COMMIT: u8 = 1;
pub(super) const RELEASE: u8 = 2;
pub(super) const EXPIRE: u8 = 3;
pub(super) const RELEASE_LEASE: u8 = 4;
pub(super) const UNDO: u8 = 5;

/// What the script says.
#[derive(Debug)]
pub(super) enum Told {
    /// It is done. Nothing is told of what was undone.
    Done(Option<Value>),
    /// It has been done, or has ended, before.
    Before(Value),
    /// Another has this id.
    Conflict(Value),
    /// A charge refuses, and so many wait before it.
    Refused(Option<u64>),
    Unknown,
    NotYours,
    NotYet(Value),
    Lapsed(Value),
    /// A state that a ledger knows is not here.
    Unrestored,
    /// Another has been made under this id than the one that is meant.
    Other,
}

/// Asks about the charges of `part`, whose items are those of `request`, in this order, and those without
/// a bound. The answer of a hold that was decided comes with it.
pub(super) async fn ask(
    shared: &Shared,
    id: HoldId,
    part: &Part,
    charges: &[HeldCharge],
    request: &Request,
    operation: Operation,
    asked: &Asked,
) -> Result<(Told, Option<Applied>), StoreError> {
    let indexed = !shared.is_cluster();
    let naming = &shared.naming;
    let mut keys = vec![naming.hold(part.tag.number(), id.bits())];
    if indexed {
        keys.push(index(shared));
    }
    let question = Arc::new(Question {
        script: None,
        keys,
        arguments: vec![
            question(id, part, charges, operation, asked, indexed),
            asked.owner.as_bytes().to_vec(),
            asked.text.clone().into_bytes(),
            id.to_string().into_bytes(),
        ],
        reply: parking_lot::Mutex::new(Reply::Nil),
    });
    let asking = request.asking_holds(operation, Arc::clone(&question));
    let deadline = shared.deadline();
    shared.execute(part.slot, asking, None, deadline).await?;
    let reply = std::mem::replace(&mut *question.reply.lock(), Reply::Nil);
    read(shared, &question, request, operation, reply)
}

fn question(
    id: HoldId,
    part: &Part,
    charges: &[HeldCharge],
    operation: Operation,
    asked: &Asked,
    indexed: bool,
) -> Vec<u8> {
    let flags = u8::from(indexed)
        | u8::from(asked.has_slots) << 1
        | u8::from(asked.until) << 2
        | u8::from(asked.certain) << 3;
    let mut bytes = id.bits().to_be_bytes().to_vec();
    bytes.push(flags);
    let retain = match operation {
        Operation::Settle => RETAIN,
        _ => ABANDONED,
    };
    put(&mut bytes, retain.as_micros());
    bytes.push(asked.how);
    put(&mut bytes, asked.time);
    bytes.extend(asked.token.bits().to_be_bytes());
    bytes.extend(asked.fingerprint.to_be_bytes());
    bytes.push(u8::from(asked.wait.is_some()));
    bytes.extend(asked.wait.map_or(0, |it| it.ticket).to_be_bytes());
    let patience = asked.wait.map_or(0, |it| it.patience.as_micros());
    put(
        &mut bytes,
        patience.min(tollgate_store::MAX_TTL.as_micros()),
    );
    put(&mut bytes, asked.units);
    put(&mut bytes, asked.least_fence);
    put(&mut bytes, asked.made.as_micros());
    // A hold has few charges.
    let count = u16::try_from(part.places.len()).unwrap_or(u16::MAX);
    bytes.extend(count.to_le_bytes());
    let mut next = 0_u16;
    for place in &part.places {
        let charge = &charges[*place];
        let is_asked = match operation {
            // Only slots are.
            Operation::Extend => charge.is_slot() && charge.taken > 0,
            _ => Family::of(&charge.limit).is_some(),
        };
        let in_plan = if is_asked {
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
    question: &Question,
    request: &Request,
    operation: Operation,
    reply: Reply,
) -> Result<(Told, Option<Applied>), StoreError> {
    let strange = || StoreError::Script("the script's reply about a hold is none".into());
    let Reply::Array(parts) = reply else {
        return Err(strange());
    };
    let mut parts = parts.into_iter();
    let mut head = || parts.next().unwrap_or(Reply::Nil);
    let (now, code, text, number) = (head(), head(), head(), head());
    let (Reply::Int(_), Reply::Int(code), Reply::BulkString(text), Reply::Int(number)) =
        (&now, code, text, number)
    else {
        return Err(strange());
    };
    let record = match text.is_empty() {
        true => None,
        false => Some(Value::of_bytes(&text).ok_or_else(strange)?),
    };
    let told = match (code, record) {
        (0, record) => Told::Done(record),
        (1, Some(record)) => Told::Before(record),
        (2, Some(record)) => Told::Conflict(record),
        (3, _) => Told::Refused(u64::try_from(number).ok()),
        (4, _) => Told::Unknown,
        (5, _) => Told::NotYours,
        (6, Some(record)) => Told::NotYet(record),
        (7, Some(record)) => Told::Lapsed(record),
        (8, _) => {
            let name = foreign(shared, question, request, number);
            return Err(StoreError::Foreign(name.into()));
        }
        (9, _) => Told::Unrestored,
        (10, _) => Told::Other,
        _ => return Err(strange()),
    };
    let is_decided = operation == Operation::Hold && matches!(code, 0 | 3);
    if !is_decided {
        return Ok((told, None));
    }
    let numbers = std::iter::once(now).chain(parts);
    let numbers = numbers.map_while(|it| match it {
        Reply::Int(number) => Some(number),
        _ => None,
    });
    let answer = reply::Reply::new(numbers).and_then(|mut it| it.next(request));
    match answer {
        Some(Answer::Applied(applied)) => Ok((told, Some(applied))),
        _ => Err(strange()),
    }
}

/// The name of the key at a place among those of a call.
fn foreign(shared: &Shared, question: &Question, request: &Request, number: i64) -> String {
    let plan = Plan::new(&[request], &|| shared.now());
    let place = usize::try_from(number).unwrap_or(0).saturating_sub(1);
    let name = match plan.keys().get(place) {
        Some((_, charge)) => &request.charges[*charge].name,
        None => match question.keys.first() {
            Some(record) => record,
            None => return String::new(),
        },
    };
    String::from_utf8_lossy(name).into_owned()
}

/// The items of the charges at `places`, as a hold that exists needs them.
pub(super) fn items(
    shared: &Shared,
    charges: &[HeldCharge],
    places: &[usize],
    wanted: impl Fn(&HeldCharge) -> bool,
) -> Request {
    let held = places.iter().map(|place| &charges[*place]);
    let held = held.filter(|it| wanted(it));
    let charges: Vec<Charge<'_>> = held
        .map(|it| Charge {
            // It is judged by nobody any more.
            enforcement: Enforcement::Shadow,
            on_denied: OnDenied::Nothing,
            ..it.as_charge()
        })
        .collect();
    let ask = Ask::Exactly(0);
    Request::new(
        &shared.naming,
        Operation::Settle,
        &charges,
        ask,
        Time::default(),
    )
}

/// The index of what is due.
fn index(shared: &Shared) -> Name {
    let tag = Tag::default().number();
    shared.naming.due(tag, &shared.options.namespace)
}

/// Asks for a record, or a list of some, at `key` in the slot of `tag`.
pub(super) async fn ask_records(
    shared: &Shared,
    tag: Tag,
    key: Name,
    what: &str,
    arguments: &[&[u8]],
) -> Result<Reply, StoreError> {
    let now = match &shared.options.clock {
        ClockSource::Store => 0,
        ClockSource::Caller(clock) => clock.now().as_micros().max(1),
    };
    let mut all = vec![what.as_bytes().to_vec(), now.to_string().into_bytes()];
    all.extend(arguments.iter().map(|it| it.to_vec()));
    let question = Arc::new(Question {
        script: Some(Script::of_records()),
        keys: vec![key],
        arguments: all,
        reply: parking_lot::Mutex::new(Reply::Nil),
    });
    let naming = &shared.naming;
    let empty = Request::new(
        naming,
        Operation::Settle,
        &[],
        Ask::Exactly(0),
        Time::default(),
    );
    let request = empty.asking_holds(Operation::Settle, Arc::clone(&question));
    let slot = if shared.is_cluster() { slot(tag) } else { 0 };
    let deadline = shared.deadline();
    shared.execute(slot, request, None, deadline).await?;
    let reply = std::mem::replace(&mut *question.reply.lock(), Reply::Nil);
    Ok(reply)
}

/// The value of a record, if there is one.
pub(super) async fn get(
    shared: &Shared,
    tag: Tag,
    id: HoldId,
) -> Result<Option<Value>, StoreError> {
    let key = shared.naming.hold(tag.number(), id.bits());
    let name = String::from_utf8_lossy(&key).into_owned();
    match ask_records(shared, tag, key, "get", &[]).await? {
        Reply::BulkString(bytes) if bytes.is_empty() => Ok(None),
        Reply::BulkString(bytes) => Value::of_bytes(&bytes)
            .map(Some)
            .ok_or_else(|| StoreError::Foreign(name.into())),
        _ => Ok(None),
    }
}

/// Asks the index of what is due.
pub(super) async fn ask_index(
    shared: &Shared,
    what: &str,
    arguments: &[&[u8]],
) -> Result<Reply, StoreError> {
    ask_records(shared, Tag::default(), index(shared), what, arguments).await
}
