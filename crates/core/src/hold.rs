//! Ids and tokens of holds. A hold takes units for a while, and is settled or given back later.

use std::fmt;
use std::str::FromStr;

use crate::Tag;

/// The start of every id: the version of its layout.
const START: &str = "h1-";
/// The length of an id: the start, 8 digits of the tag, a dash, and 32 digits of the bits.
const LENGTH: usize = START.len() + 8 + 1 + 32;

/// Identifies a hold by 128 random bits that cannot be guessed, and a tag. The record of the hold is
/// stored on the server that has the keys of this tag.
///
/// ```
/// use tollgate_core::{HoldId, Tag};
///
/// let id = HoldId::new(0xabc, Tag::new(7));
/// assert_eq!(id.to_string(), "h1-00000007-00000000000000000000000000000abc");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId {
    id: u128,
    tag: Tag,
}

impl HoldId {
    /// Returns the id with these bits and this tag.
    #[must_use]
    pub const fn new(id: u128, tag: Tag) -> HoldId {
        HoldId { id, tag }
    }

    /// Returns the random bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.id
    }

    /// Returns the tag that decides which server stores the record.
    #[must_use]
    pub const fn tag(self) -> Tag {
        self.tag
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{START}{:08x}-{:032x}", self.tag.number(), self.id)
    }
}

impl FromStr for HoldId {
    type Err = HoldIdError;

    fn from_str(text: &str) -> Result<HoldId, HoldIdError> {
        let rest = text.strip_prefix(START).ok_or(HoldIdError::Start)?;
        if text.len() != LENGTH {
            return Err(HoldIdError::Length(text.len()));
        }
        let (tag, id) = rest.split_once('-').ok_or(HoldIdError::Digits)?;
        let is_hex = |part: &str| {
            let mut bytes = part.bytes();
            bytes.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if tag.len() != 8 || !is_hex(tag) || !is_hex(id) {
            return Err(HoldIdError::Digits);
        }
        let tag = u32::from_str_radix(tag, 16).map_err(|_| HoldIdError::Digits)?;
        let id = u128::from_str_radix(id, 16).map_err(|_| HoldIdError::Digits)?;
        Ok(HoldId::new(id, Tag::new(tag)))
    }
}

/// Why a text is not the id of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldIdError {
    /// The text does not begin like an id.
    #[error("an id begins with `{START}`: send the id as you received it")]
    Start,
    /// The text is too short or too long.
    #[error("an id has {LENGTH} characters, and this one has {0}: send the id as you received it")]
    Length(usize),
    /// The text has characters that an id does not have.
    #[error(
        "after `{START}`, an id has 8 digits, a `-` and 32 digits, each 0-9 or a-f: send the id as you received it"
    )]
    Digits,
}

/// The secret that proves who owns a lease. Not shown in logs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Token(u128);

impl Token {
    /// The token of a hold without a secret.
    pub const NONE: Token = Token(0);

    /// Returns the token with these bits.
    #[must_use]
    pub const fn new(bits: u128) -> Token {
        Token(bits)
    }

    /// Returns the bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_as_they_were() {
        for (id, tag) in [(0, 0), (u128::MAX, u32::MAX), (1 << 77, 0xbeef)] {
            let id = HoldId::new(id, Tag::new(tag));
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        let whole = HoldId::new(7, Tag::new(7)).to_string();
        let digits = |from: &str, to: &str| whole.replacen(from, to, 1).parse::<HoldId>();
        assert_eq!("".parse::<HoldId>(), Err(HoldIdError::Start));
        assert_eq!(digits("h1", "h2"), Err(HoldIdError::Start));
        assert_eq!(whole[..43].parse::<HoldId>(), Err(HoldIdError::Length(43)));
        assert_eq!(digits("07-", "7-0"), Err(HoldIdError::Digits));
        assert_eq!(digits("07-", "+7-"), Err(HoldIdError::Digits));
        assert_eq!(digits("07-", "0A-"), Err(HoldIdError::Digits));
        let long = "h1-".to_owned() + &"é".repeat(1 << 16);
        let length = long.len();
        assert_eq!(long.parse::<HoldId>(), Err(HoldIdError::Length(length)));
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", Token::new(12345)), "Token(***)");
    }
}
