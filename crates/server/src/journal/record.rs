//! The format of a recorded denial, in memory and in files.
//!
//! A record is a head of fixed size and a JSON object without spaces between its tokens. The head has the numbers
//! that queries compare, so that a query parses the object of a record only if the head matches. A query by door
//! or action first searches the bytes of the object for the field. Numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 3 | checksum of the bytes from 4 on (FNV-1a) |
//! | 4 and 5 | length of the object |
//! | 6 and 7 | zero |
//! | 8 to 15 | sequence number: grows from record to record |
//! | 16 to 23 | time, in microseconds since 1970 |
//! | 24 to 31 | hash of the rule's id (FNV-1a) |
//! | 32 to 47 | hashed subject of the rule that denies; 0 if there is none |
//! | 48 to 95 | hashed subjects of the request's other rules, or 0 |
//! | from 96 | the object |
//!
//! A new field of the object needs no new version: readers ignore fields that they do not know. Any other
//! change needs a new [`VERSION`].

use serde::{Deserialize, Serialize};
use tollgate::{
    DeniedRequest, FailurePolicy, LimitSource, MAX_SUBJECTS, Override, Span, Subject, Time,
};
use utoipa::ToSchema;

use crate::audit::instant;

/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// The length of a head.
pub(super) const HEAD: usize = 96;

/// The longest object. A longer one loses its texts.
const MAX_OBJECT: usize = 2048;

/// The longest record.
pub(super) const MAX_RECORD: usize = HEAD + MAX_OBJECT;

/// The most bytes of a text about the source of numbers, which may quote the reason of an override.
const MAX_SOURCE: usize = 384;

/// A recorded denial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Denial)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct RecordedDenial {
    /// The sequence number in the journal of this instance.
    #[serde(skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// When the request was denied, as in RFC 3339, in UTC, to the millisecond.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(format = "date-time")]
    pub at: String,
    /// The door: `http`, `auth`, `grpc` or `resp`.
    pub door: String,
    /// The action that the request named, cut to 128 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub action: Option<String>,
    /// The tenant that the request named, cut to 128 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub tenant_id: Option<String>,
    /// The rule that denies. `@throttle` for a limit that came with the request, `@holds` for a subject with too
    /// many open reservations and leases, `@block` for a subject that an operator has blocked.
    pub rule_id: String,
    /// The attributes that make the subject, joined with `+`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub subject_type: Option<String>,
    /// The hashed subject of the rule that denies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub subject_hash: Option<String>,
    /// The hashed subjects of the request's other rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub other_subject_hashes: Vec<String>,
    /// The algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub algorithm: Option<String>,
    /// The kind of allowance: `rate`, `budget`, `quota` or `concurrency`.
    pub kind: String,
    /// The largest amount that could be admitted at once. Absent if unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub limit: Option<u64>,
    /// The amount that was left. Absent if the store was not asked or did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub remaining: Option<u64>,
    /// How long the client had to wait. Absent if waiting does not help.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub retry_after_millis: Option<u64>,
    /// Why the request was denied, such as `exceeded`.
    pub reason: String,
    /// The failure policy that decided instead of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub policy: Option<String>,
    /// Each number of the limit, and where it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub numbers_from: Option<String>,
    /// The override that changed the numbers or the state of the rule; or the block.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub by_override: Option<String>,
    /// Why an operator has blocked the subject. Only if `ruleId` is `@block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub block_reason: Option<String>,
    /// When the block ends, as in RFC 3339, in UTC. Absent if it lasts until it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, format = "date-time")]
    pub block_expires_at: Option<String>,
    /// The trace that the request belongs to, if its caller named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub trace_id: Option<String>,
    /// How long the request waited for Redis. Absent if it did not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub redis_latency_millis: Option<f64>,
    /// The version of the config that decided.
    pub config_version: String,
    /// How many denials of the same rule before this one were not recorded, because there were too many in a
    /// second. Absent if none.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub suppressed: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As `skip_serializing_if` wants.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) seq: u64,
    pub(super) at: Time,
    pub(super) rule: u64,
    pub(super) subjects: [u128; MAX_SUBJECTS],
}

/// Appends the record of a denial to `bytes`. `source` is what [`DeniedRequest::source`] returns.
pub(super) fn encode(
    denial: &DeniedRequest,
    source: Option<&LimitSource>,
    seq: u64,
    bytes: &mut Vec<u8>,
) {
    let mut object = object(denial, source);
    let start = bytes.len();
    bytes.resize(start + HEAD, 0);
    write_object(&object, bytes);
    if bytes.len() > start + MAX_RECORD {
        // Texts with many quotes grow when they are escaped.
        object.action = None;
        object.tenant_id = None;
        object.numbers_from = None;
        object.block_reason = None;
        bytes.truncate(start + HEAD);
        write_object(&object, bytes);
    }
    let own = denial.subject();
    let mut subjects = [0; MAX_SUBJECTS];
    subjects[0] = own.map_or(0, Subject::bits);
    let others = denial.subjects().filter(|subject| Some(*subject) != own);
    for (place, subject) in subjects[1..].iter_mut().zip(others) {
        *place = subject.bits();
    }
    let record = &mut bytes[start..];
    let length = u16::try_from(record.len() - HEAD).unwrap_or(0);
    record[4..6].copy_from_slice(&length.to_le_bytes());
    record[8..16].copy_from_slice(&seq.to_le_bytes());
    record[16..24].copy_from_slice(&denial.at.as_micros().to_le_bytes());
    record[24..32].copy_from_slice(&fnv(denial.rule().as_bytes()).to_le_bytes());
    for (place, subject) in record[32..HEAD].chunks_exact_mut(16).zip(subjects) {
        place.copy_from_slice(&subject.to_le_bytes());
    }
    let checksum = checksum(record);
    record[..4].copy_from_slice(&checksum.to_le_bytes());
}

fn write_object(object: &RecordedDenial, bytes: &mut Vec<u8>) {
    // Writing to a vector cannot fail, and all keys are strings.
    let _ = serde_json::to_writer(&mut *bytes, object);
}

/// Returns the fields that are not in the head.
fn object(denial: &DeniedRequest, source: Option<&LimitSource>) -> RecordedDenial {
    let plain = |text: &str| text.replace(char::is_control, " ");
    let source_text = |text: &str| plain(&text[..text.floor_char_boundary(MAX_SOURCE)]);
    let block = denial.block();
    let block_ends = block.and_then(Override::expires_at);
    RecordedDenial {
        door: denial.origin.door.to_owned(),
        action: denial.action().map(plain),
        tenant_id: denial.tenant().map(plain),
        rule_id: denial.rule().to_owned(),
        subject_type: denial.subject_type().map(str::to_owned),
        algorithm: denial.algorithm().map(str::to_owned),
        kind: denial.kind.to_owned(),
        limit: denial.limit,
        remaining: denial.remaining,
        retry_after_millis: denial.retry_after.map(Span::as_millis_ceil),
        reason: denial.reason.to_owned(),
        policy: denial.policy.map(FailurePolicy::name).map(str::to_owned),
        numbers_from: source.map(|it| source_text(&it.numbers)),
        by_override: match block {
            Some(block) => Some(source_text(&block.name())),
            None => source.and_then(|it| it.by_override.as_deref().map(source_text)),
        },
        block_reason: block.map(|it| source_text(it.reason())),
        block_expires_at: block_ends
            .map(|millis| instant(Time::from_micros(millis.saturating_mul(1000)))),
        trace_id: denial.origin.trace.map(|it| format!("{it:032x}")),
        redis_latency_millis: denial.latency.map(millis),
        config_version: denial.config_version().to_owned(),
        suppressed: denial.suppressed,
        ..RecordedDenial::default()
    }
}

/// Returns a latency in milliseconds, to the microsecond.
#[allow(clippy::cast_precision_loss)] // A latency is far below 2^53 microseconds.
fn millis(latency: Span) -> f64 {
    latency.as_micros() as f64 / 1000.0
}

/// Returns the head of the record at the start of `bytes`; `None` if the record is cut short or is not one.
pub(super) fn head(bytes: &[u8]) -> Option<Head> {
    let head = bytes.first_chunk::<HEAD>()?;
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let length = HEAD + usize::from(u16::from_le_bytes([head[4], head[5]]));
    if head[6..8] != [0, 0] || length > MAX_RECORD || length > bytes.len() || length == HEAD {
        return None;
    }
    let mut subjects = [0; MAX_SUBJECTS];
    for (subject, bytes) in subjects.iter_mut().zip(head[32..].chunks_exact(16)) {
        let mut number = [0; 16];
        number.copy_from_slice(bytes);
        *subject = u128::from_le_bytes(number);
    }
    Some(Head {
        length,
        seq: number(8),
        at: Time::from_micros(number(16)),
        rule: number(24),
        subjects,
    })
}

/// Returns whether the checksum of a whole record is right.
pub(super) fn is_intact(record: &[u8]) -> bool {
    record.first_chunk::<4>().map(|it| u32::from_le_bytes(*it)) == Some(checksum(record))
}

/// Decodes a whole record; `None` if it is damaged.
pub(super) fn decode(record: &[u8]) -> Option<RecordedDenial> {
    let head = head(record)?;
    let record = record.get(..head.length)?;
    if !is_intact(record) {
        return None;
    }
    let mut denial: RecordedDenial = serde_json::from_slice(&record[HEAD..]).ok()?;
    let hex = |subject: &u128| format!("{subject:032x}");
    let [own, others @ ..] = &head.subjects;
    denial.seq = head.seq;
    denial.at = instant(head.at);
    denial.subject_hash = (*own != 0).then(|| hex(own));
    let others = others.iter().filter(|subject| **subject != 0);
    denial.other_subject_hashes = others.map(hex).collect();
    Some(denial)
}

/// Returns the hash of a rule's id in heads.
pub(super) fn rule_hash(rule: &str) -> u64 {
    fnv(rule.as_bytes())
}

#[allow(clippy::cast_possible_truncation)] // Both halves of the hash are used.
fn checksum(record: &[u8]) -> u32 {
    let hash = fnv(&record[4..]);
    (hash ^ hash >> 32) as u32
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
