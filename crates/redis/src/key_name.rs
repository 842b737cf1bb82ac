//! The names of keys: `tg:v1:{<tag>}:<rule>:<subject>:<algorithm>`.
//!
//! The tag in braces determines the cluster slot. The subject is the hash that answers and logs show, so that
//! an operator can find its keys; a name never has the raw value.

use smallvec::SmallVec;
use tollgate_core::{Charge, Tag};

use crate::script::Family;

/// How many slots a Redis Cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// The version of the layout of keys and states. Any change of the layout needs another version.
const VERSION: &str = "v1";

/// The name of a key. Most fit without an allocation.
pub(crate) type KeyName = SmallVec<[u8; 96]>;

/// Makes the names of keys, and parses them.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    start: String,
}

impl KeyNames {
    pub(crate) fn new(prefix: &str) -> KeyNames {
        KeyNames {
            start: format!("{prefix}:{VERSION}:{{"),
        }
    }

    /// Returns the name of the state of `charge`.
    pub(crate) fn name(&self, charge: &Charge<'_>, family: Family) -> KeyName {
        let mut name = self.with_tag(charge.tag, charge.rule);
        name.push(b':');
        name.extend_from_slice(charge.subject().to_hex().as_str().as_bytes());
        name.extend_from_slice(&[b':', family.letter()]);
        name
    }

    /// Returns the name of the overrides of a namespace.
    pub(crate) fn overrides(&self, namespace: &str) -> KeyName {
        self.with_tag(Tag::default(), &format!("overrides:{namespace}"))
    }

    /// Returns the name of the record of a hold.
    pub(crate) fn hold(&self, tag: Tag, id: u128) -> KeyName {
        self.with_tag(tag, &format!("hold:{id:032x}"))
    }

    /// Returns the name of the index of due holds of a namespace.
    pub(crate) fn due(&self, namespace: &str) -> KeyName {
        self.with_tag(Tag::default(), &format!("holds:{namespace}"))
    }

    /// Returns the name of the set of a subject's open holds.
    pub(crate) fn open(&self, tag: Tag, subject: u128) -> KeyName {
        self.with_tag(tag, &format!("open:{subject:032x}"))
    }

    /// Returns the name of a key that remembers a refund.
    pub(crate) fn undone(&self, tag: Tag, id: u128) -> KeyName {
        self.with_tag(tag, &format!("undone:{id:032x}"))
    }

    fn with_tag(&self, tag: Tag, rest: &str) -> KeyName {
        let mut name = KeyName::from_slice(self.start.as_bytes());
        name.extend_from_slice(&tag_digits(tag));
        name.extend_from_slice(b"}:");
        name.extend_from_slice(rest.as_bytes());
        name
    }

    /// Returns a pattern that matches all keys of any layout version.
    pub(crate) fn pattern(prefix: &str) -> String {
        let mut pattern = String::new();
        for it in prefix.chars() {
            if matches!(it, '*' | '?' | '[' | ']' | '\\') {
                pattern.push('\\');
            }
            pattern.push(it);
        }
        pattern + ":*"
    }

    /// Returns the tag in a name, and what the key stores; `None` if Tollgate did not make the name.
    pub(crate) fn parse<'n>(&self, name: &'n [u8]) -> Option<(&'n str, Content<'n>)> {
        let name = std::str::from_utf8(name).ok()?;
        let (tag, rest) = name.strip_prefix(&self.start)?.split_once("}:")?;
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if tag.len() != 8 || !is_hex(tag) {
            return None;
        }
        let mut parts = rest.split(':');
        let (rule, id) = (parts.next()?, parts.next()?);
        let content = match (parts.next(), parts.next()) {
            (None, None) if rule == "overrides" => Content::Overrides,
            (None, None) if rule == "holds" => Content::Due,
            (Some("s"), None) => Content::Slots(rule),
            (Some(letter), None) if letter.len() == 1 => Content::State(rule),
            (None, None) if rule == "undone" => Content::Undone,
            (None, None) if rule == "hold" => Content::Hold,
            (None, None) if rule == "open" => Content::Open,
            _ => return None,
        };
        let is_text = matches!(content, Content::Overrides | Content::Due);
        let is_named = is_text || id.len() == 32 && is_hex(id);
        is_named.then_some((tag, content))
    }
}

/// The content of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content<'n> {
    /// A state of the rule.
    State(&'n str),
    /// The slots of a concurrency limit of the rule: a sorted set.
    Slots(&'n str),
    /// The record of a hold.
    Hold,
    /// The index of due holds: a sorted set of ids, by the time at which an instance has to end each hold.
    Due,
    /// The open holds of a subject: a sorted set of ids, by expiry.
    Open,
    /// A marker that a refund was made.
    Undone,
    /// Overrides: a hash that does not expire.
    Overrides,
}

fn tag_digits(tag: Tag) -> [u8; 8] {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    let mut digits = [0; 8];
    for (digit, shift) in digits.iter_mut().zip((0..32).step_by(4).rev()) {
        *digit = HEX[(tag.number() >> shift & 15) as usize];
    }
    digits
}

/// Returns the cluster slot of keys with this tag.
pub(crate) fn slot_of(tag: Tag) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(&tag_digits(tag)) % SLOTS
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Key, Limit, Span};

    use super::*;

    #[test]
    fn a_name_has_tag_rule_subject_and_algorithm() {
        let limit = Limit::fixed_window(1, Span::SECOND).unwrap();
        let charge = Charge {
            overflow: Key::from_bits(0xfff << 64),
            rule: "login",
            tag: Tag::new(0xbeef),
            ..Charge::new(Key::from_bits(0xabc ^ 0xfff << 64), &limit)
        };
        let name = KeyNames::new("tg").name(&charge, Family::FixedWindow);
        assert_eq!(
            std::str::from_utf8(&name).unwrap(),
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc:f"
        );
    }

    #[test]
    fn only_names_of_tollgate_are_parsed() {
        let naming = KeyNames::new("tg");
        let state = b"tg:v1:{0000beef}:login:00000000000000000000000000000abc:f";
        let slots = b"tg:v1:{0000beef}:jobs:00000000000000000000000000000abc:s";
        for (name, tag, content) in [
            (
                KeyName::from_slice(state),
                "0000beef",
                Content::State("login"),
            ),
            (
                KeyName::from_slice(slots),
                "0000beef",
                Content::Slots("jobs"),
            ),
            (
                naming.undone(Tag::new(0xbeef), 7),
                "0000beef",
                Content::Undone,
            ),
            (naming.hold(Tag::new(0xbeef), 7), "0000beef", Content::Hold),
            (naming.open(Tag::new(0xbeef), 7), "0000beef", Content::Open),
            (naming.overrides("prod"), "00000000", Content::Overrides),
            (naming.due("prod"), "00000000", Content::Due),
        ] {
            assert_eq!(naming.parse(&name), Some((tag, content)));
        }
        for other in [
            "tg:users",
            "tg:v1:{beef}:login:00000000000000000000000000000abc:f",
            "tg:v1:{0000beef}:login:abc:f",
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc",
            "tg:v2:{0000beef}:login:00000000000000000000000000000abc:f",
            "other:v1:{0000beef}:login:00000000000000000000000000000abc:f",
        ] {
            assert_eq!(naming.parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn cluster_slots_follow_the_specification() {
        let checksum = crc16::State::<crc16::XMODEM>::calculate;
        // The checksum's reference value for "123456789" is 0x31C3.
        assert_eq!(checksum(b"123456789"), 0x31C3);
        let slot = slot_of(Tag::new(0x1234_5678));
        assert_eq!(slot, checksum(b"12345678") % SLOTS);
    }
}
