//! The table of API keys: the SHA-256 of each key, and what is known about its owner.
//!
//! The table has no keys, only their hashes. A key is found by its hash, so the time of a lookup says
//! nothing about the keys that exist: a client cannot choose the hash of what it sends.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tollgate_rules::document::{Place, Problems};

use super::attribute;
use crate::csv::{Cell, Rows, cells};

const HEADER_HELP: &str = "start with a line of columns, such as sha256,tenant,plan,revoked";
const HASH_HELP: &str =
    "write the SHA-256 of the key, as `printf %s \"$KEY\" | sha256sum` prints it";
/// The most columns.
const MAX_COLUMNS: usize = 18;
/// The longest value.
const MAX_VALUE: usize = 1024;

/// API keys by their SHA-256.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeyTable(HashMap<[u8; 32], ApiKey>);

/// An entry of the file of API keys, without the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApiKey {
    /// Whether the key is no longer accepted.
    pub is_revoked: bool,
    /// The attributes of requests with this key. `api_key`, `subject`, `subject_type` and
    /// `authentication` are always among them.
    pub attributes: Arc<[(Arc<str>, Box<str>)]>,
}

impl fmt::Debug for ApiKeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} API keys", self.0.len())
    }
}

/// The kind of a column.
enum Column {
    Hash,
    Revoked,
    Attribute(Arc<str>),
}

impl ApiKeyTable {
    /// Returns the key with this SHA-256.
    #[must_use]
    pub fn find(&self, sha256: &[u8; 32]) -> Option<&ApiKey> {
        self.0.get(sha256)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the source of `problems`.
    pub(super) fn read(problems: &mut Problems<'_>) -> ApiKeyTable {
        let mut table = ApiKeyTable::default();
        let mut rows = Rows::new(problems.source());
        let Some(header) = rows.next() else {
            problems.report(Place::default(), "the table is empty", HEADER_HELP);
            return table;
        };
        let header = cells(header, problems);
        let Some(columns) = header.and_then(|header| columns(&header, problems)) else {
            return table;
        };
        for row in rows {
            let Some(row) = cells(row, problems) else {
                return table;
            };
            if let [(text, _)] = row.as_slice()
                && text.is_empty()
            {
                continue;
            }
            if let Some((_, place)) = row.get(columns.len()) {
                let message = format!("this row has more cells than columns ({})", columns.len());
                problems.report(*place, message, "put cells that contain a comma in quotes");
                continue;
            }
            let Some((hash, place, key)) = key(&row, &columns, problems) else {
                continue;
            };
            if table.0.insert(hash, key).is_some() {
                let message = "this key is listed twice";
                problems.report(place, message, "keep one of the rows");
            }
        }
        table
    }
}

fn columns(header: &[Cell], problems: &mut Problems<'_>) -> Option<Vec<Column>> {
    if let Some((_, place)) = header.get(MAX_COLUMNS) {
        let message = format!("there are more than {MAX_COLUMNS} columns");
        problems.report(*place, message, "keep the columns that rules use");
        return None;
    }
    let mut columns = Vec::with_capacity(header.len());
    for (index, (name, place)) in header.iter().enumerate() {
        if header[..index].iter().any(|(known, _)| known == name) {
            let message = format!("the column `{name}` is given twice");
            problems.report(*place, message, "keep one of the two");
        }
        columns.push(match name.as_str() {
            "sha256" => Column::Hash,
            "revoked" => Column::Revoked,
            // The table must not have the keys themselves.
            "key" | "secret" | "token" | "password" => {
                let message = format!("a table of API keys cannot have a column `{name}`");
                problems.report(*place, message, HASH_HELP);
                continue;
            }
            name => match problems.accept(*place, attribute(name)) {
                Some(name) => Column::Attribute(name),
                None => continue,
            },
        });
    }
    if !columns.iter().any(|it| matches!(it, Column::Hash)) && problems.is_empty() {
        let place = header
            .first()
            .map_or_else(Place::default, |(_, place)| *place);
        problems.report(place, "there is no column `sha256`", HEADER_HELP);
    }
    problems.is_empty().then_some(columns)
}

fn key(
    row: &[Cell],
    columns: &[Column],
    problems: &mut Problems<'_>,
) -> Option<([u8; 32], Place, ApiKey)> {
    let mut found = None;
    let mut is_revoked = false;
    let mut attributes: Vec<(Arc<str>, Box<str>)> = Vec::with_capacity(columns.len());
    for ((text, place), column) in row.iter().zip(columns) {
        match column {
            Column::Hash => match hash(text) {
                Some(hash) => found = Some((hash, *place)),
                None => {
                    // The cell may have the key itself, so it is not quoted.
                    problems.keep_secret(*place);
                    problems.report(
                        *place,
                        "this is not a SHA-256 in hexadecimal digits",
                        HASH_HELP,
                    );
                    return None;
                }
            },
            Column::Revoked => match text.as_str() {
                "" | "false" | "no" | "0" => {}
                "true" | "yes" | "1" => is_revoked = true,
                _ => {
                    let message = "`revoked` is neither true nor false";
                    problems.report(*place, message, "write true, or leave the cell empty");
                    return None;
                }
            },
            Column::Attribute(_) if text.is_empty() => {}
            Column::Attribute(_) if text.len() > MAX_VALUE => {
                let message = format!("this value is longer than {MAX_VALUE} bytes");
                problems.report(*place, message, "use a shorter one");
                return None;
            }
            Column::Attribute(name) => attributes.push((Arc::clone(name), text.as_str().into())),
        }
    }
    let Some((hash, place)) = found else {
        let start = row.first().map_or_else(Place::default, |(_, place)| *place);
        problems.report(start, "this row has no `sha256`", HASH_HELP);
        return None;
    };
    let known = attributes.iter().find(|(name, _)| &**name == "api_key");
    let name = match known {
        Some((_, name)) => name.to_string(),
        None => {
            let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            attributes.push(("api_key".into(), digits.as_str().into()));
            digits
        }
    };
    attributes.push(("subject".into(), format!("api_key:{name}").into()));
    attributes.push(("subject_type".into(), "api_key".into()));
    attributes.push(("authentication".into(), "api_key".into()));
    let key = ApiKey {
        is_revoked,
        attributes: attributes.into(),
    };
    Some((hash, place, key))
}

fn hash(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let (high, low) = (digit(pair[0])?, digit(pair[1])?);
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(hash)
}
